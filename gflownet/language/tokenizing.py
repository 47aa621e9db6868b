"""The tokens of a training: bytes, a tokenizer file, or a tokenizer that is trained on the text."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from tempfile import NamedTemporaryFile

from gflownet.errors import UserError
from gflownet.language.config import LanguageConfig
from gflownet.rhn.text_codec import BYTES, TextCodec, TokenizerCodec


def choose_codec(config: LanguageConfig, pieces: Iterable[str]) -> tuple[TextCodec, bytes | None]:
    """Return the tokens of a new run, and the content of its tokenizer.json; bytes have none.

    Args:
        config: of the run.
        pieces: training part of the text.

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


def reproduces(codec: TextCodec, text: str) -> bool:
    """Return whether the tokens of a text hold all of it."""
    return codec.decode(codec.encode(text)) == text


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
