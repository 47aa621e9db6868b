"""Files of a saved model, and text as its tokens: one token per byte, or a tokenizer file (no torch)."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable
from pathlib import Path

from gflownet.errors import UserError

DESCRIPTION_NAME = "model.json"
WEIGHTS_NAME = "model.safetensors"
# The tokenizer of a model's folder; a folder without this file holds a model of bytes.
TOKENIZER_NAME = "tokenizer.json"
_FIRST_NOT_ASCII = 0x80


class StreamDecoder:
    """Decode a stream of bytes, whole characters only; the joined pieces equal `decode` of all tokens."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def text(self, tokens: Iterable[int]) -> str:
        """Return the characters that these tokens complete."""
        return self._decoder.decode(bytes(tokens))

    def rest(self) -> str:
        """Return the text of an incomplete last character, and start again."""
        incomplete = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return incomplete


class ByteCodec:
    """One token per byte of UTF-8."""

    vocabulary_size = 256  # tokens are 0 .. vocabulary_size - 1

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text. Raises ValueError for half of a surrogate pair, which UTF-8 cannot encode."""
        try:
            return list(text.encode("utf-8"))
        except UnicodeEncodeError as error:
            raise ValueError(f"text: expected characters that UTF-8 can encode, got {text[error.start]!r}") from None

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of tokens; invalid UTF-8 becomes the replacement character."""
        return bytes(tokens).decode("utf-8", errors="replace")

    def stream(self) -> StreamDecoder:
        """Return a decoder of one answer."""
        return StreamDecoder()

    def token_name(self, token: int) -> str:
        """Return a token as text, as OpenAI's log-probabilities show it: an ASCII character, or another byte."""
        return chr(token) if token < _FIRST_NOT_ASCII else f"bytes:\\x{token:02x}"


BYTES = ByteCodec()
encode, decode = BYTES.encode, BYTES.decode


class TokenizerCodec:
    """A tokenizer of the package tokenizers, for example the tokenizer.json of a model on Hugging Face.

    No special tokens are added to a text, so that every token of a prompt is the user's.
    """

    def __init__(self, path: Path) -> None:
        """Read a tokenizer file.

        Raises:
            UserError: the package is missing, or the file is no tokenizer.
        """
        try:
            from tokenizers import Tokenizer
        except ModuleNotFoundError:
            raise UserError(f"{path}: missing package tokenizers: pip install 'gflownet[language]'") from None
        try:
            self._tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from None
        except Exception as error:  # the package raises Exception itself
            raise UserError(f"{path}: expected a tokenizer of the package tokenizers ({error})") from None
        # Identifiers may have gaps: the model's vocabulary ends after the largest.
        self.vocabulary_size = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values())

    def encode(self, text: str) -> list[int]:
        encode(text)  # refuses half of a surrogate pair
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, tokens: Iterable[int]) -> str:
        return self._tokenizer.decode(list(tokens), skip_special_tokens=False)

    def stream(self) -> _TokenizerStream:
        return _TokenizerStream(self)

    def token_name(self, token: int) -> str:
        """Return the text of the token alone; the name of its bytes if it has a part of a character.

        Names are the keys of log-probabilities: a token without text, or whose bytes are not known, has its number.
        """
        text = self.decode([token])
        if text and "\N{REPLACEMENT CHARACTER}" not in text:
            return text
        raw = _bytes_of_piece(self._tokenizer.id_to_token(token) or "")
        if not text or raw is None or raw.decode(errors="replace") != text:
            return f"{text}<{token}>"
        return text if raw == text.encode() else "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _byte_characters() -> dict[str, int]:
    """Return the byte of each character in a byte-level vocabulary (GPT-2): printable bytes are themselves."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = sorted(set(range(256)) - set(printable))
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_characters()


def _bytes_of_piece(piece: str) -> bytes | None:
    """Return the bytes of an entry of a byte-level vocabulary, or of an entry like <0xE2>; None for another."""
    if match := re.fullmatch("<0x([0-9A-Fa-f]{2})>", piece):
        return bytes.fromhex(match[1])
    return bytes(_BYTE_OF[each] for each in piece) if piece and set(piece) <= _BYTE_OF.keys() else None


class _TokenizerStream:
    """Text of a growing list of tokens: a piece ends where the text has no incomplete character.

    A token's text may depend on the token before, so each piece is decoded together with the tokens of the last one.
    """

    def __init__(self, codec: TokenizerCodec) -> None:
        self._codec = codec
        self._last: list[int] = []  # tokens of the last piece
        self._next: list[int] = []  # tokens after it

    def text(self, tokens: Iterable[int]) -> str:
        self._next += tokens
        piece = self._piece()
        if not piece or piece.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        self._last, self._next = self._next, []
        return piece

    def rest(self) -> str:
        piece = self._piece()
        self._last, self._next = [], []
        return piece

    def _piece(self) -> str:
        return self._codec.decode([*self._last, *self._next])[len(self._codec.decode(self._last)) :]


TextCodec = ByteCodec | TokenizerCodec
TextStream = StreamDecoder | _TokenizerStream


def load_text_codec(folder: Path) -> TextCodec:
    """Return the codec of a model's folder: its tokenizer.json, bytes without one. Raises as `TokenizerCodec`."""
    path = folder / TOKENIZER_NAME
    return TokenizerCodec(path) if path.is_file() else BYTES


def check_model_folder(folder: Path) -> None:
    """Raise UserError for a folder without the files of a model."""
    missing = [name for name in (DESCRIPTION_NAME, WEIGHTS_NAME) if not (folder / name).is_file()]
    if missing:
        expected = f"expected a folder with {DESCRIPTION_NAME} and {WEIGHTS_NAME}"
        raise UserError(f"{folder}: {expected}, got {_content_of(folder, missing)}")


def _content_of(folder: Path, missing: list[str]) -> str:
    if folder.is_dir():
        hint = f"; did you mean {folder / 'model'}?" if (folder / "model" / DESCRIPTION_NAME).is_file() else ""
        return f"one without {' and '.join(missing)}{hint}"
    return "a file" if folder.exists() else "a name that does not exist"
