"""Everything that a training needs before its first step: tokens, model, device and precision."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gflownet.errors import UserError, did_you_mean
from gflownet.files import is_intact, parse_json, read_yaml
from gflownet.language.config import LanguageConfig
from gflownet.language.text import Tokens, choose_codec, encode, name_of, read_text
from gflownet.records.trust import checked_names
from gflownet.report.architectures import TOP_NAME
from gflownet.rhn.cell_network import CellConfig
from gflownet.rhn.checkpoint import DESCRIPTION_NAME, KINDS, model_of
from gflownet.rhn.config import StackConfig, StackLayer, stack_words
from gflownet.rhn.layers import RHNBlock
from gflownet.rhn.network import RecurrentNetwork, RecurrentStack
from gflownet.rhn.text_codec import TextCodec, load_text_codec
from gflownet.training.precision import Precision, choose_device, has_bfloat16

_CHECKED_CHARACTERS = 20_000  # of the validation part, on which a tokenizer has to reproduce the text
_GIGABYTE = 10**9
# Bytes of float32 for a parameter: its weight, its gradient, and one moment of the optimiser or more.
_PARAMETER_BYTES = 12
_TOKEN_BYTES, _LOGIT_BYTES = 8, 4
# Of LSTM layers: at equal CPU seconds they are ahead of GRU and RHN layers (docs/language-models.md).
MODELS = {
    "S": StackConfig((StackLayer("lstm"),), width=256),
    "M": StackConfig((StackLayer("lstm"), StackLayer("lstm")), width=512),
    "L": StackConfig((StackLayer("lstm"), StackLayer("lstm"), StackLayer("lstm")), width=1024),
}
_VOCABULARY = "vocabulary_size"
# Of S, between the best two of four; wider models get less, in inverse proportion (Yang et al. 2022, table 3).
_RATE, _RATE_WIDTH = 0.008, 256


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
    parts, checked = {name: encode(each, codec) for name, each in text.parts().items()}, text.validation[0]
    checked = checked[:_CHECKED_CHARACTERS]
    _check_lengths(parts, config)
    where = config.from_run or config.model
    _check_memory(config, description, where, device)
    torch.manual_seed(config.seed)
    model = model_of(description, where).to(device)
    return Setup(
        text_line=text.line(),
        digest=text.digest(),
        codec=codec,
        tokenizer=tokenizer,
        is_lossless=codec.decode(codec.encode(checked)) == checked,
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


def _check_memory(config: LanguageConfig, description: Mapping[str, Any], where: str, device: torch.device) -> None:
    """Raise UserError for a model or a batch that needs more than all memory of the device.

    Only what a step holds at least is counted: weights, gradients and one moment, the tokens of a batch, its logits.
    `where` names the option of the model in messages.
    """
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
    else:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        with torch.device("meta"):  # no memory
            model = model_of(description, where)
    except RuntimeError as error:
        raise UserError(
            f"{where}: expected a model that fits into {_size(memory)}, got one that no tensor holds"
        ) from error
    size = _PARAMETER_BYTES * sum(parameter.numel() for parameter in model.parameters())
    if size > memory:
        got = f"got a model whose training needs at least {_size(size)}"
        raise UserError(f"{where}: expected sizes that fit into the memory of {_size(memory)}, {got}")
    vocabulary_size = description["config"]["vocabulary_size"]
    size = config.rows * config.sequence_length * (_TOKEN_BYTES + _LOGIT_BYTES * vocabulary_size)
    if size > memory:
        got = f"got {config.rows} rows of {config.sequence_length} tokens, at least {_size(size)}"
        raise UserError(f"rows: expected a batch that fits into the memory of {_size(memory)}, {got}")


def _size(num_bytes: int) -> str:
    return f"{num_bytes / _GIGABYTE:,.0f} GB"


def choose_model(config: LanguageConfig, *, vocabulary_size: int) -> dict[str, Any]:
    """Return the kind and config of the model, as `gflownet.rhn.checkpoint.describe`, for a vocabulary.

    Raises:
        UserError: no such file, run or rank, or an invalid description.
    """
    if config.from_run is not None:
        description = _found(Path(config.from_run), config.rank)
    elif config.model in MODELS:
        description = {"kind": "recurrent_stack", "config": asdict(MODELS[config.model])}
    else:
        description = _described(config.model)
    return {"kind": description["kind"], "config": {**description["config"], _VOCABULARY: vocabulary_size}}


def default_rate(description: Mapping[str, Any]) -> float:
    """Return the default learning rate of a model."""
    sizes = description["config"]
    width = sizes.get("width", sizes.get("hidden_size", _RATE_WIDTH))
    return _RATE * min(1.0, _RATE_WIDTH / width)


def model_words(description: Mapping[str, Any]) -> str:
    """Return a model in words, first layer first."""
    if description["kind"] == "recurrent_stack":
        return stack_words(StackConfig(**description["config"]))
    if description["kind"] == "cell_network":
        return CellConfig(**description["config"]).words
    sizes = (f"{name} {value}" for name, value in description["config"].items() if type(value) is int)
    return f"{description['kind']}: {', '.join(sizes)}"


def _described(name: str) -> dict[str, Any]:
    """Return the content of a YAML file with `kind` and the fields of its config."""
    path = Path(name)
    if not path.suffix:
        names = list(MODELS)
        raise UserError(
            f"model: expected one of {', '.join(names)} or a YAML file, got {name!r}{did_you_mean(name, names)}"
        )
    if not os.path.isfile(path):  # a name too long is none
        raise UserError(f"model: no such file: {name}")
    tree = read_yaml(path)
    kind = tree.pop("kind", None)
    if not (isinstance(kind, str) and kind in KINDS):
        raise UserError(f"model: {path}: kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    values = tree.pop("config", {})
    if not isinstance(values, dict):
        raise UserError(f"model: {path}: config: expected a group of sizes, got {values!r:.80}")
    return {"kind": kind, "config": {**values, **tree}}


def _found(run: Path, rank: int) -> dict[str, Any]:
    """Return the model of a rank in top_architectures.json."""
    path = run / TOP_NAME if os.path.isdir(run) else run
    try:
        entries = parse_json(path.read_bytes())
    except OSError as error:
        raise UserError(f"--from: expected a run of a search with {TOP_NAME}, got {run} ({error.strerror})") from None
    except ValueError:
        raise UserError(f"--from: {path}: expected JSON, got a damaged file") from None
    if not isinstance(entries, list) or not entries:
        raise UserError(f"--from: {path}: expected a list of architectures, got {entries!s:.80}")
    if rank >= len(entries):
        raise UserError(f"rank: expected one of 0..{len(entries) - 1}, the architectures of {path}, got {rank}")
    if not is_intact(entries[rank]):
        raise UserError(f"--from: {path}: expected rank {rank} as the run wrote it, got another checksum")
    match entries[rank]:
        case {"language_model": {"kind": str(kind), "config": {**values}}}:
            with checked_names(path, values, folder=path.parent):
                return {"kind": kind, "config": values}
    raise UserError(f"--from: {path}: expected architectures of task=language, rank {rank} has no language model")
