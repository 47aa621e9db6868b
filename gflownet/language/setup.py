"""Everything that a training needs before its first step: tokens, model, device and precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gflownet.errors import UserError
from gflownet.files import parse_json
from gflownet.language.config import LanguageConfig
from gflownet.language.memory import check_memory
from gflownet.language.model_choice import choose_model, default_rate, model_words
from gflownet.language.text import Tokens, encode, read_text
from gflownet.language.tokenizing import choose_codec, name_of, reproduces
from gflownet.rhn.checkpoint import DESCRIPTION_NAME, model_of
from gflownet.rhn.layers import RHNBlock
from gflownet.rhn.network import RecurrentNetwork
from gflownet.rhn.stack_model import RecurrentStack
from gflownet.rhn.text_codec import TextCodec, load_text_codec
from gflownet.training.precision import Precision, choose_device, has_bfloat16

_CHECKED_CHARACTERS = 20_000  # of the validation part, on which a tokenizer has to reproduce the text


@dataclass(frozen=True)
class Setup:
    """Tokens and model of a run."""

    text_line: str  # sizes of the text in words
    digest: str  # of the text
    codec: TextCodec
    tokenizer: bytes | None  # content of a new tokenizer.json
    is_lossless: bool  # whether the tokens hold the whole text
    parts: Mapping[str, Tokens]  # train, validation, test
    description: dict[str, Any]  # of the model
    model: RecurrentNetwork
    precision: Precision
    learning_rate: float

    @property
    def num_parameters(self) -> int:
        """Number of parameters of the model."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def model_line(self) -> str:
        """The model in words."""
        return f"model: {model_words(self.description)}, {self.num_parameters:,} parameters, {name_of(self.codec)}"


def set_up(config: LanguageConfig, stored_model: Path | None) -> Setup:
    """Read the text and build the model, with weights of the seed; nothing is written.

    Args:
        config: of the run.
        stored_model: folder of the model of a resumed run, whose tokenizer and sizes are used; None for a new run.

    Raises:
        UserError: no usable text, tokenizer or model, too little text for the sequence length, or too little memory.
    """
    device = choose_device(config.device)
    folder = Path(config.log_dir)
    text = read_text(config.text, include=config.include, megabytes=config.megabytes, run_folder=folder)
    if stored_model is None:
        codec, tokenizer = choose_codec(config, text.train)
        description = choose_model(config, vocabulary_size=codec.vocabulary_size)
    else:
        codec, tokenizer = load_text_codec(stored_model), None
        description = _stored(stored_model / DESCRIPTION_NAME)
    parts = {name: encode(pieces, codec) for name, pieces in text.parts().items()}
    _check_lengths(parts, config)
    where = config.from_run or config.model
    check_memory(config, description, where, device)
    torch.manual_seed(config.seed)
    model = model_of(description, where).to(device)
    return Setup(
        text_line=text.line(),
        digest=text.digest(),
        codec=codec,
        tokenizer=tokenizer,
        is_lossless=reproduces(codec, text.validation[0][:_CHECKED_CHARACTERS]),
        parts=parts,
        description=description,
        model=model,
        precision=_precision(config, model, device),
        learning_rate=config.learning_rate or default_rate(description),
    )


def _stored(path: Path) -> dict[str, Any]:
    """Return the description of the model of a resumed run."""
    try:
        return parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: expected the model of the run, got a missing or damaged file ({error})") from None


def _check_lengths(parts: Mapping[str, Tokens], config: LanguageConfig) -> None:
    """Raise UserError for a part that is too short."""
    for name, part in parts.items():
        needed = config.sequence_length + 1 if name == "train" else 2
        if name == "train" and config.batches == "contiguous":
            needed = config.rows * config.sequence_length + 1
        if len(part.tokens) < needed:
            raise UserError(
                f"text: expected at least {needed:,} tokens for {name}, got {len(part.tokens):,}; give more text, or a "
                "smaller sequence_length"
            )


def _precision(config: LanguageConfig, model: nn.Module, device: torch.device) -> Precision:
    """Return the precision of matrix products.

    Raises:
        UserError: bfloat16 for a model with RHN layers, whose wavefront computes in the precision of its weights.
    """
    has_rhn = any(isinstance(module, RHNBlock) for module in model.modules())
    if config.precision == "bfloat16" and has_rhn:
        raise UserError("precision: expected float32 for a model with RHN layers, got bfloat16")
    if config.precision != "auto":
        return config.precision
    is_measured = isinstance(model, RecurrentStack) and not has_rhn
    return "bfloat16" if is_measured and has_bfloat16(device) else "float32"
