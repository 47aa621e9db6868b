"""A language model on disk: a folder with its weights as safetensors and, as JSON, what it is.

`model.json` holds the kind, a name of `KINDS`, and the config; `model.safetensors` every weight once. Nothing that is
read is executed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from gflownet.errors import UserError
from gflownet.files import sync_folder
from gflownet.rhn.bytes_text import NUM_TOKENS

if TYPE_CHECKING:
    from gflownet.rhn.decoding import LanguageModel

DESCRIPTION_NAME = "model.json"
WEIGHTS_NAME = "model.safetensors"
_TEMPORARY_SUFFIX = ".tmp"


@dataclass(frozen=True)
class Kind:
    """A kind of language model: where its class is and what makes its config, both as module:name."""

    model: str  # made from a config, which it keeps as `config`; a `StoredModel`
    config: str  # makes that config, a dataclass, from the values that `dataclasses.asdict` says


KINDS = {
    "rhn": Kind(model="gflownet.rhn.network:RHN", config="gflownet.rhn.config:RHNConfig"),
    "recurrent_stack": Kind(
        model="gflownet.rhn.stack_model:RecurrentStack", config="gflownet.rhn.stack_config:StackConfig"
    ),
}


class StoredModel(Protocol):
    """A module that can be saved and generated from."""

    config: Any

    def decoder(self) -> LanguageModel:
        """Return what generates from the weights as they are now."""
        ...


def save_language_model(folder: Path, model: nn.Module) -> None:
    """Save a model of one of `KINDS`, at once or not at all, also when the process is killed.

    The weights of a model of the same config are replaced in one rename. Where the config differs, the old description
    goes first: a process killed then leaves a folder that is no model, never the weights of one and the config of
    another.

    Raises:
        ValueError: a model of another class.
    """
    description = json.dumps({"kind": _kind_of(model), "config": asdict(cast(StoredModel, model).config)}, indent=1)
    folder.mkdir(parents=True, exist_ok=True)
    described = folder / DESCRIPTION_NAME
    weights = save({name: tensor.detach().cpu().contiguous() for name, tensor in _weights(model).items()})
    is_same = described.is_file() and described.read_bytes() == description.encode()
    prepared = _prepare(folder / WEIGHTS_NAME, weights)
    if not is_same:
        described.unlink(missing_ok=True)
        sync_folder(folder)
    prepared.replace(folder / WEIGHTS_NAME)
    if not is_same:
        sync_folder(folder)
        _prepare(described, description.encode()).replace(described)
    sync_folder(folder)


def load_language_model(folder: Path) -> nn.Module:
    """Return the model saved in a folder, in evaluation mode, with weights of the dtype they were saved in.

    Raises:
        UserError: the folder holds no language model, or a file is truncated, altered, or made for another config.
    """
    path = folder / DESCRIPTION_NAME
    missing = [name for name in (DESCRIPTION_NAME, WEIGHTS_NAME) if not (folder / name).is_file()]
    if missing:
        expected = f"expected a folder with {DESCRIPTION_NAME} and {WEIGHTS_NAME}"
        raise UserError(f"{folder}: {expected}, got {_what_is_there(folder, missing)}")
    kind, config = _read_description(path)
    try:
        with torch.device("meta"):
            model = _named(kind.model)(_named(kind.config)(**config))
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}: config: {error}") from None
    weights = _read_weights(folder / WEIGHTS_NAME)
    _check_shapes(folder / WEIGHTS_NAME, weights, _weights(model))
    model.load_state_dict(weights, assign=True, strict=False)
    assert not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    return model.eval()


def load_byte_decoder(folder: Path) -> LanguageModel:
    """Return what generates bytes from the model saved in a folder.

    Raises:
        UserError: as `load_language_model`, or for a model of other tokens.
    """
    model = cast(StoredModel, load_language_model(folder)).decoder()
    if model.vocabulary_size != NUM_TOKENS:
        raise UserError(f"{folder}: expected a model of {NUM_TOKENS} bytes, got one of {model.vocabulary_size} tokens")
    return model


def _named(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return attrgetter(attribute)(import_module(module))


def _kind_of(model: nn.Module) -> str:
    name = f"{type(model).__module__}:{type(model).__name__}"
    for kind, classes in KINDS.items():
        if classes.model == name:
            return kind
    raise ValueError(f"model: expected one of {', '.join(kind.model for kind in KINDS.values())}, got {name}")


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """Return every tensor of a state dict once, under the first of its names."""
    found: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        found.setdefault(id(tensor), (name, tensor))
    return dict(found.values())


def _what_is_there(folder: Path, missing: list[str]) -> str:
    if folder.is_dir():
        return f"one without {' and '.join(missing)}"
    return "a file" if folder.exists() else "a name that does not exist"


def _read_description(path: Path) -> tuple[Kind, Mapping[str, Any]]:
    """Return the kind and the values of its config."""
    try:
        description = json.loads(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path}: expected JSON, got something else: {error}") from None
    if not (isinstance(description, dict) and set(description) == {"kind", "config"}):
        raise UserError(f"{path}: expected an object with kind and config, got {description!s:.80}")
    kind, config = description["kind"], description["config"]
    if not (isinstance(kind, str) and kind in KINDS):
        raise UserError(f"{path}: kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    if not isinstance(config, dict):
        raise UserError(f"{path}: config: expected an object, got {config!s:.80}")
    return KINDS[kind], config


def _read_weights(path: Path) -> dict[str, Tensor]:
    try:
        return load(path.read_bytes())
    except SafetensorError as error:
        raise UserError(f"{path}: expected a whole file of safetensors, got a damaged one ({error})") from None


def _check_shapes(path: Path, weights: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Refuse weights that do not fit the config."""
    for name, tensor in expected.items():
        if name not in weights:
            raise UserError(f"{path}: expected the weights that {DESCRIPTION_NAME} describes, got none named {name}")
        got, wanted = tuple(weights[name].shape), tuple(tensor.shape)
        if got != wanted:
            raise UserError(f"{path}: {name}: expected the shape {wanted} that {DESCRIPTION_NAME} says, got {got}")
    for name in weights.keys() - expected.keys():
        raise UserError(f"{path}: expected the weights that {DESCRIPTION_NAME} describes, got {name} besides")


def _prepare(path: Path, data: bytes) -> Path:
    """Write `data` beside a path and return where, to be renamed when it is safe."""
    temporary = path.with_name(path.name + _TEMPORARY_SUFFIX)
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return temporary
