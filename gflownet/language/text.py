"""The text of a training: files and folders of the user as three parts of bytes, and their tokens."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile

import torch
from torch import Tensor

from gflownet.errors import UserError
from gflownet.language.config import LanguageConfig
from gflownet.records.marker import MARKER_NAME
from gflownet.rhn.text_codec import BYTES, TextCodec, TokenizerCodec

# Shares of the bytes; the remainder is the training part.
_TEST_SHARE = _VALIDATION_SHARE = 0.1
# With fewer files, every file is cut into pieces: a part has several of them.
_MIN_PIECES = 100
_MIN_PIECE_BYTES = 1_000
_MEGABYTE = 10**6
_PARTS = ("train", "validation", "test")
_NEWLINE = b"\n"
# Folders inside a folder of the user that hold files of others.
_SKIPPED = {"__pycache__", "site-packages", "dist-packages", "node_modules"}


@dataclass(frozen=True)
class Text:
    """Three parts of a text: each file, or each piece of it, is in one of them; copies of a file are left out."""

    train: tuple[str, ...]  # pieces
    validation: tuple[str, ...]
    test: tuple[str, ...]
    num_files: int
    num_skipped: int  # files that are not UTF-8, or empty
    num_copies: int  # files with the same content as another one
    num_omitted: int  # files beyond the maximum size

    def parts(self) -> dict[str, tuple[str, ...]]:
        """Return the pieces of each part by its name."""
        return {name: getattr(self, name) for name in _PARTS}

    def line(self) -> str:
        """Return the sizes in words."""
        sizes = [f"{_size(_num_bytes(pieces))} {name}" for name, pieces in self.parts().items()]
        line = f"text: {self.num_files:,} file{'s' if self.num_files > 1 else ''}, {', '.join(sizes)}"
        line += f"; skipped {self.num_skipped:,} that are empty or not UTF-8" if self.num_skipped else ""
        line += f"; left out {self.num_copies:,} with the content of another" if self.num_copies else ""
        return line + (f"; omitted {self.num_omitted:,} beyond megabytes" if self.num_omitted else "")

    def digest(self) -> str:
        """Return the sha256 of all parts."""
        content = hashlib.sha256()
        for name, pieces in self.parts().items():
            content.update(f"{name} {len(pieces)}".encode())
            for piece in pieces:
                content.update(piece.encode())
        return content.hexdigest()


@dataclass(frozen=True)
class Tokens:
    """The tokens of one part."""

    tokens: Tensor  # [N] uint8 bytes, or int32
    num_bytes: int


def read_text(paths: Sequence[str], *, megabytes: float, run_folder: Path, include: str = "") -> Text:
    """Return the text of files and folders, split by a hash of the names.

    Folders are read recursively, without hidden files, installed packages and the folders of runs. The pieces are the
    files, each content once, so that no held-out file has a copy in the training part; fewer than 100 files are cut
    into about 100 pieces. In the order of the hashes, the first tenth of the bytes
    is the test part, the second the validation part.

    Args:
        paths: of the files and folders.
        megabytes: maximum size; files beyond it are omitted, in the order of the hashes.
        run_folder: of this run.
        include: ends of the names of files in folders, with commas between them; empty for all files.

    Raises:
        UserError: a missing path, no text, or too little for three parts.
    """
    files = {file.resolve(): name for path in paths for file, name in _files(Path(path), run_folder.resolve(), include)}
    contents: list[tuple[str, str, bytes]] = []
    num_skipped, num_files, size = 0, 0, 0
    read: set[bytes] = set()  # digests of the contents
    in_order = sorted((_hash(name), name, file) for file, name in files.items())
    for digest, name, file in in_order:
        if size >= megabytes * _MEGABYTE:
            break
        content = _content(file)
        if content is None:
            num_skipped += 1
            continue
        num_files += 1
        sha = hashlib.sha256(content).digest()
        if sha in read:
            continue
        read.add(sha)
        content = content[: int(megabytes * _MEGABYTE) - size]
        size += len(content)
        contents.append((digest, name, content))
    if not contents:
        got = f"{num_skipped} that are empty or not UTF-8" if num_skipped else "none"
        raise UserError(f"text: expected text files in {', '.join(paths)}, got {got}")
    train, validation, test = _split(_pieces(contents, size), size)
    num_copies, num_omitted = num_files - len(contents), len(files) - num_files - num_skipped
    return Text(train, validation, test, len(contents), num_skipped, num_copies, num_omitted)


def encode(pieces: Sequence[str], codec: TextCodec) -> Tokens:
    """Return the tokens of the pieces of a part, in their order."""
    if codec is BYTES:
        joined = "".join(pieces).encode()
        return Tokens(torch.frombuffer(bytearray(joined or b"\0"), dtype=torch.uint8)[: len(joined)], len(joined))
    tokens = [torch.tensor(codec.encode(piece), dtype=torch.int32) for piece in pieces]
    return Tokens(torch.cat(tokens) if tokens else torch.zeros(0, dtype=torch.int32), _num_bytes(pieces))


def _files(path: Path, run_folder: Path, include: str) -> Iterator[tuple[Path, str]]:
    """Yield the files of an argument, with the names whose hashes order them."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise UserError(f"text: {path}: cannot be read ({error.strerror})") from None
    if stat.S_ISDIR(mode):
        for file in _walk(path, run_folder):
            if file.name.endswith(tuple(include.split(","))):
                yield file, file.relative_to(path).as_posix()
    elif stat.S_ISREG(mode) or stat.S_ISFIFO(mode):  # a shell's <(command) is a pipe
        yield path, path.name
    else:
        raise UserError(f"text: expected a file or a folder, got {path}, which is neither")


def _walk(folder: Path, run_folder: Path) -> Iterator[Path]:
    """Yield the regular files below a folder that are not hidden and not in the folder of a run."""
    for root, folders, names in os.walk(folder):
        here = Path(root)
        if MARKER_NAME in names or here.resolve() == run_folder:
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _SKIPPED)
        yield from (here / name for name in names if not name.startswith(".") and (here / name).is_file())


def _content(file: Path) -> bytes | None:
    """Return the content of a file with a newline at its end; None if it is empty or not UTF-8."""
    try:
        content = file.read_bytes()
        content.decode("utf-8")
    except UnicodeDecodeError:
        return None
    except OSError as error:
        raise UserError(f"text: {file}: cannot be read ({error.strerror})") from None
    if not content.strip() or b"\0" in content:  # zeros: a binary format
        return None
    return content if content.endswith(_NEWLINE) else content + _NEWLINE


def _pieces(contents: Sequence[tuple[str, str, bytes]], size: int) -> list[str]:
    """Return the pieces in the order of the hashes of their names."""
    if len(contents) >= _MIN_PIECES:
        return [content.decode("utf-8", "ignore") for _, _, content in contents]
    length = max(_MIN_PIECE_BYTES, size // _MIN_PIECES)
    named = [
        (_hash(f"{name}:{number}"), piece)
        for _, name, content in contents
        for number, piece in enumerate(_cut(content, length))
    ]
    return [piece.decode("utf-8", "ignore") for _, piece in sorted(named)]


def _cut(content: bytes, length: int) -> Iterator[bytes]:
    """Yield pieces of at least `length` bytes that end with a line, the last one shorter; a long line is cut."""
    start = 0
    while start < len(content):
        newline = content.find(_NEWLINE, start + length - 1, start + 2 * length)
        end = newline + 1 if newline >= 0 else start + length
        while end < len(content) and content[end] & 0xC0 == 0x80:  # inside a character
            end += 1
        yield content[start:end]
        start = end


def _split(pieces: Sequence[str], size: int) -> tuple[tuple[str, ...], ...]:
    """Return the pieces of train, validation and test. Raises UserError for too few."""
    shares = {"test": _TEST_SHARE, "validation": _TEST_SHARE + _VALIDATION_SHARE}
    parts: dict[str, list[str]] = {name: [] for name in _PARTS}
    done = 0
    for piece in pieces:
        part = next((name for name, share in shares.items() if done < share * size), "train")
        parts[part].append(piece)
        done += len(piece.encode())
    for name, part in parts.items():
        if not part:
            expected = f"expected enough for three parts, at least {3 * _MIN_PIECE_BYTES:,} bytes"
            raise UserError(f"text: {expected}, got {size:,} bytes, none left for {name}")
    return tuple(parts["train"]), tuple(parts["validation"]), tuple(parts["test"])


def _hash(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()


def _num_bytes(pieces: Sequence[str]) -> int:
    return sum(len(piece.encode()) for piece in pieces)


def _size(num_bytes: int) -> str:
    return f"{num_bytes / _MEGABYTE:.2f} MB" if num_bytes >= _MEGABYTE / 10 else f"{num_bytes:,} bytes"


def choose_codec(config: LanguageConfig, pieces: Iterable[str]) -> tuple[TextCodec, bytes | None]:
    """Return the tokens of a new run for its training part, and the content of its tokenizer.json; bytes have none.

    Raises:
        UserError: the package is missing, or the file is no tokenizer.
    """
    if config.tokenizer is not None:
        try:
            content = Path(config.tokenizer).read_bytes()
        except OSError as error:
            raise UserError(f"tokenizer: {config.tokenizer}: cannot be read ({error.strerror})") from None
        return TokenizerCodec(Path(config.tokenizer)), content
    if config.train_tokenizer is None:
        return BYTES, None
    content = _trained(pieces, config.train_tokenizer).encode()
    with NamedTemporaryFile(suffix=".json") as file:
        file.write(content)
        file.flush()
        return TokenizerCodec(Path(file.name)), content


def name_of(codec: TextCodec) -> str:
    """Return the tokens in words."""
    return "bytes" if codec is BYTES else f"a tokenizer with {codec.vocabulary_size:,} tokens"


def _trained(pieces: Iterable[str], num_tokens: int) -> str:
    """Return the JSON of a byte-level BPE tokenizer (Sennrich et al. 2016) without normalisation or special tokens."""
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ModuleNotFoundError:
        raise UserError("train_tokenizer: missing package tokenizers: pip install 'gflownet[language]'") from None
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=num_tokens, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(pieces, trainer)
    return tokenizer.to_str()
