"""The tokens of a training: bytes, a tokenizer file, or a tokenizer that is trained on the text."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gflownet.errors import UserError
from gflownet.files import write_whole
from gflownet.language.config import LanguageConfig
from gflownet.rhn.text_codec import BYTES, TOKENIZER_NAME, TextCodec, TokenizerCodec


def write_tokenizer(config: LanguageConfig, pieces: Iterable[str], folder: Path) -> None:
    """Write the tokenizer of a new run to the folder of its model; bytes have none.

    Args:
        config: of the run.
        pieces: training part of the text.
        folder: of the model.

    Raises:
        UserError: the package is missing, or the file is no tokenizer.
    """
    if config.tokenizer is not None:
        try:
            content = Path(config.tokenizer).read_bytes()
        except OSError as error:
            raise UserError(f"tokenizer: {config.tokenizer}: cannot be read ({error.strerror})") from None
        TokenizerCodec(Path(config.tokenizer))  # refuses other files before one is written
        write_whole(folder / TOKENIZER_NAME, content)
    elif config.train_tokenizer is not None:
        write_whole(folder / TOKENIZER_NAME, _trained(pieces, config.train_tokenizer))


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
