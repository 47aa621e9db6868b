"""Architectures of a run's report as modules: trained, or with new weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.elements import shown
from gflownet.rhn.checkpoint import model_of
from gflownet.rhn.network import RecurrentNetwork
from gflownet.translation.generated_model import GeneratedModel
from gflownet.translation.model import to_pytorch_model
from gflownet.translation.table_columns import TableColumns

_TOP_NAME = "top_architectures.json"
_UNTRAINED = "weights=False returns the architecture with new weights"


def load(
    path: str | Path, rank: int = 0, *, weights: bool = True, config: Mapping[str, Any] | None = None
) -> GeneratedModel | RecurrentNetwork:
    """Return the model of a rank in a run's top_architectures.json, trained and in evaluation mode.

    A language model is a `RecurrentNetwork`. The model of a graph is translated with the settings of the graph, as it
    was scored, unless `config` (see TranslationConfig) overrides them. Of a run with task=table, `model.predict(rows)`
    takes raw rows.

    Args:
        path: run folder, or its top_architectures.json.
        rank: of the architecture, 0 for the best.
        weights: load the weights of its first training of the final stage; False: new weights, in training mode.
        config: translation settings, of a graph only.

    Raises:
        ValueError: an invalid file, a missing rank, missing, damaged or other weights, or `config` of a language model.
    """
    path = _file(path)
    entry = _entry(path, rank)
    if not weights:
        return _untrained(path, entry, config)
    tensors = _weights(path, entry, rank=rank)
    model = _untrained(path, entry, config)
    expected = {name: list(value.shape) for name, value in model.state_dict().items()}
    sizes = {name: list(value.shape) for name, value in tensors.items()}
    for name in [*expected, *sizes]:
        if expected.get(name) != sizes.get(name):
            raise ValueError(
                f"{path}: rank {rank}: expected weights {name} of shape {expected.get(name)}, got {sizes.get(name)}; "
                f"{_UNTRAINED}"
            )
    model.load_state_dict(tensors)
    return model.eval()


def _untrained(
    path: Path, entry: Mapping[str, Any], config: Mapping[str, Any] | None
) -> GeneratedModel | RecurrentNetwork:
    """Return the model of an entry with new weights."""
    if "language_model" not in entry:
        model = to_pytorch_model(_graph(entry), config)
        model.columns = TableColumns.from_dict(entry["columns"]) if "columns" in entry else None
        return model
    if config:
        raise ValueError(f"{path}: config: expected none for a language model, got {shown(config)}")
    return model_of(entry["language_model"], f"{path}: language_model")


def _file(path: str | Path) -> Path:
    """Return the path of top_architectures.json for itself or its run folder."""
    return Path(path) / _TOP_NAME if Path(path).is_dir() else Path(path)


def load_graph(path: str | Path, rank: int = 0) -> ComputationGraph:
    """Return the graph of a rank in a run's top_architectures.json, or its folder, with its translation settings.

    Raises:
        ValueError: an invalid file or a missing rank.
    """
    return _graph(_entry(_file(path), rank))


def _entry(path: Path, rank: int) -> dict[str, Any]:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: expected a run's {_TOP_NAME}, got none ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected JSON, got {type(error).__name__}: {error}") from None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) and "graph" in entry for entry in entries):
        raise ValueError(f"{path}: expected a JSON list of objects with a graph, as written by a run")
    ranks = [entry.get("rank", position) for position, entry in enumerate(entries)]
    if rank not in ranks:
        raise ValueError(f"{path}: expected a rank out of {shown(ranks)}, got {rank!r}")
    return entries[ranks.index(rank)]


def _graph(entry: Mapping[str, Any]) -> ComputationGraph:
    match entry.get("network", entry["graph"]):
        case {"nodes": [{"name": _}, *_]}:
            raise ValueError(
                "expected a computation graph, got an object of another environment; build its module with your own "
                "code and load the safetensors file of the entry into it (docs/search-your-own-space.md)"
            )
        case data:
            graph = ComputationGraph.from_dict(data)
    # Until 2026-11 the projection was written next to the graph, not into it.
    is_old = "projection" in entry and "translation" not in graph.config
    return graph.with_translation({"projection": entry["projection"]}) if is_old else graph


def _weights(path: Path, entry: Mapping[str, Any], *, rank: int) -> dict[str, Any]:
    """Return the tensors that an entry names."""
    match entry.get("weights"):
        case {"file": str(name), "sha256": str(digest)}:
            file = path.parent / name
        case None:
            raise ValueError(f"{path}: rank {rank}: expected an entry with weights, got one without; {_UNTRAINED}")
        case other:
            raise ValueError(f"{path}: rank {rank}: expected file and sha256 of weights, got {shown(other)}")
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ValueError(f"{file}: expected weights, got none ({error.strerror}); {_UNTRAINED}") from None
    if sha256(content).hexdigest() != digest:
        raise ValueError(f"{file}: expected the weights of rank {rank}, got a damaged or other file; {_UNTRAINED}")
    try:
        return load_tensors(content)
    except SafetensorError as error:
        raise ValueError(f"{file}: expected safetensors, got another format ({error}); {_UNTRAINED}") from None
