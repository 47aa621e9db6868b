"""Save language models to a folder and load them.

`model.json` holds the kind, a key of `KINDS`, and the config; `model.safetensors` holds every weight once;
`tokenizer.json`, in a folder of a model whose tokens are not bytes, its tokenizer. Loading a folder executes nothing in
it, but a cell imports the modules of the classes that its graph names.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from gflownet.errors import UserError
from gflownet.files import parse_json, sync_folder, write_whole
from gflownet.rhn.decoding import LanguageModel
from gflownet.rhn.network import RecurrentNetwork
from gflownet.rhn.text_codec import (
    BYTES,
    DESCRIPTION_NAME,
    WEIGHTS_NAME,
    TextCodec,
    check_model_folder,
    load_text_codec,
)

PREPARED_NAME = "model.safetensors.new"  # new weights before they replace the old ones


class Kind(NamedTuple):
    """A kind of language model, as module:Class, imported when a model is saved or loaded."""

    model: str  # a RecurrentNetwork, constructed from its config
    config: str  # a dataclass, constructed from the values of `dataclasses.asdict`


KINDS = {
    "rhn": Kind("gflownet.rhn.network:RHN", "gflownet.rhn.config:RHNConfig"),
    "recurrent_stack": Kind("gflownet.rhn.network:RecurrentStack", "gflownet.rhn.config:StackConfig"),
    "cell_network": Kind("gflownet.rhn.cell_network:CellNetwork", "gflownet.rhn.cell_network:CellConfig"),
}


def description_of(config: Any) -> dict[str, Any]:
    """Return the content of model.json: the kind of a model, by the class of its config, and the config as JSON values.

    Raises:
        ValueError: a config of another class than those of `KINDS`.
    """
    name = f"{type(config).__module__}:{type(config).__qualname__}"
    for kind, homes in KINDS.items():
        if name == homes.config:
            return {"kind": kind, "config": asdict(config)}
    expected = " or ".join(kind.config.partition(":")[2] for kind in KINDS.values())
    raise ValueError(f"config: expected {expected}, got {type(config).__name__}")


def model_of(description: Any, where: str = "language_model") -> RecurrentNetwork:
    """Return an untrained model of the content of a model.json, from torch's global random state.

    Args:
        description: see `description_of`.
        where: start of an error message.

    Raises:
        UserError: another content.
    """
    if not (isinstance(description, dict) and set(description) == {"kind", "config"}):
        raise UserError(f"{where}: expected an object with kind and config, got {description!s:.80}")
    kind, values = description["kind"], description["config"]
    if not (isinstance(kind, str) and kind in KINDS):
        raise UserError(f"{where}: kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    if not isinstance(values, dict):
        raise UserError(f"{where}: config: expected an object, got {values!s:.80}")
    try:
        return _imported(KINDS[kind].model)(_config_of(kind, values))
    except (TypeError, ValueError) as error:
        raise UserError(f"{where}: config: {error}") from None


def save_language_model(folder: Path, model: nn.Module) -> None:
    """Save a model of one of `KINDS` atomically: a killed process never leaves weights and config of different models.

    Weights of the same config are replaced in one rename. For another config the old description is removed first: a
    process killed at that point leaves a folder that `load_language_model` refuses.

    Raises:
        ValueError: a model of another class.
        UserError: a file cannot be written, for example on a full disk.
    """
    description = json.dumps(description_of(getattr(model, "config", model)), indent=1)
    described, prepared = folder / DESCRIPTION_NAME, folder / PREPARED_NAME
    write_whole(prepared, save({name: tensor.detach().cpu().contiguous() for name, tensor in _weights(model).items()}))
    is_same = described.is_file() and described.read_bytes() == description.encode()
    if not is_same:
        described.unlink(missing_ok=True)
        sync_folder(folder)
    prepared.replace(folder / WEIGHTS_NAME)
    sync_folder(folder)
    if not is_same:
        write_whole(described, description)


def load_language_model(folder: Path) -> RecurrentNetwork:
    """Return the model saved in a folder, in evaluation mode, with weights of the saved dtype and its tokenizer.

    Raises:
        UserError: the folder holds no language model, a file is truncated, altered, or made for another config, or a
            tokenizer that `load_text_codec` refuses.
    """
    path = folder / DESCRIPTION_NAME
    check_model_folder(folder)
    try:
        description = parse_json(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path}: expected JSON, got invalid text: {error}") from None
    with torch.device("meta"):
        model = model_of(description, str(path))
    path = folder / WEIGHTS_NAME
    try:
        weights = load(path.read_bytes())
    except SafetensorError as error:
        raise UserError(f"{path}: the file is damaged: expected safetensors ({error})") from None
    _check_shapes(path, weights, _weights(model))
    model.load_state_dict(weights, assign=True, strict=False)
    assert not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    model.codec = load_text_codec(folder)
    return model.eval()


def _config_of(kind: str, values: Mapping[str, Any]) -> Any:
    """Return the config of a kind. Raises ValueError for values of other names."""
    config = _imported(KINDS[kind].config)
    known = [field.name for field in fields(config)]
    for name in values:
        if name not in known:
            raise ValueError(f"expected some of {', '.join(known)}, got {name!r}")
    for field in fields(config):
        if field.default is MISSING and field.default_factory is MISSING and field.name not in values:
            raise ValueError(f"{field.name}: expected it, got nothing")
    return config(**values)


def _imported(home: str) -> Any:
    module, _, name = home.partition(":")
    return getattr(importlib.import_module(module), name)


class TextModel(NamedTuple):
    """A language model for generation, and its tokens."""

    model: LanguageModel
    codec: TextCodec


def load_text_model(folder: Path) -> TextModel:
    """Return the model saved in a folder with its tokenizer.

    Raises:
        UserError: as `load_language_model`, or a vocabulary of another size than the tokenizer's.
    """
    network = load_language_model(folder)
    model, codec = network.decoder(), network.codec
    if model.vocabulary_size != codec.vocabulary_size:
        expected = f"{codec.vocabulary_size} {'bytes' if codec is BYTES else 'tokens'}"
        raise UserError(f"{folder}: expected a model of {expected}, got one of {model.vocabulary_size} tokens")
    return TextModel(model, codec)


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """Return every tensor of a state dict once, under the first of its names."""
    by_identity: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        by_identity.setdefault(id(tensor), (name, tensor))
    return dict(by_identity.values())


def _check_shapes(path: Path, weights: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise UserError for weights that do not fit the config."""
    for name, tensor in expected.items():
        if name not in weights:
            raise UserError(f"{path}: expected the weights described in {DESCRIPTION_NAME}, {name} is missing")
        shape, described = tuple(weights[name].shape), tuple(tensor.shape)
        if shape != described:
            raise UserError(f"{path}: {name}: expected the shape {described} of {DESCRIPTION_NAME}, got {shape}")
    for name in weights.keys() - expected.keys():
        raise UserError(f"{path}: expected the weights described in {DESCRIPTION_NAME}, {name} is not one of them")
