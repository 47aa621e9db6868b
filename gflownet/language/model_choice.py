"""The model of a training: a preset, a YAML file, or a model that a search has found."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gflownet.config import read_yaml
from gflownet.errors import UserError
from gflownet.language.config import LanguageConfig
from gflownet.report.architectures import TOP_NAME
from gflownet.rhn.checkpoint import KINDS
from gflownet.rhn.config import StackConfig, StackLayer, stack_words
from gflownet.terminal.arguments import did_you_mean

# Of LSTM layers: at equal CPU seconds they are ahead of GRU and RHN layers (docs/language-models.md).
MODELS = {
    "S": StackConfig((StackLayer("lstm"),), width=256),
    "M": StackConfig((StackLayer("lstm"), StackLayer("lstm")), width=512),
    "L": StackConfig((StackLayer("lstm"), StackLayer("lstm"), StackLayer("lstm")), width=1024),
}
_VOCABULARY = "vocabulary_size"
# Of S, between the best two of four; wider models get less, in inverse proportion (Yang et al. 2022, table 3).
_RATE, _RATE_WIDTH = 0.008, 256


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
        entries = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"--from: expected a run of a search with {TOP_NAME}, got {run} ({error.strerror})") from None
    except ValueError:
        raise UserError(f"--from: {path}: expected JSON, got a damaged file") from None
    if not isinstance(entries, list) or not entries:
        raise UserError(f"--from: {path}: expected a list of architectures, got {entries!s:.80}")
    if rank >= len(entries):
        raise UserError(f"rank: expected one of 0..{len(entries) - 1}, the architectures of {path}, got {rank}")
    match entries[rank]:
        case {"language_model": {"kind": str(kind), "config": {**values}}}:
            return {"kind": kind, "config": values}
    raise UserError(f"--from: {path}: expected architectures of task=language, rank {rank} has no language model")
