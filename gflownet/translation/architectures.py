"""Loading of reported architectures."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.elements import shown
from gflownet.translation.model import TranslatedModel, to_pytorch_model


def load(path: str | Path, rank: int = 0, *, config: Mapping[str, Any] | None = None) -> TranslatedModel:
    """Return the architecture of a rank in a run's top_architectures.json as an untrained module.

    Translated with the settings of its graph, as it was scored, unless `config` (see TranslationConfig) overrides them.

    Raises: ValueError for an invalid file or a missing rank.
    """
    return to_pytorch_model(load_graph(path, rank), config)


def load_graph(path: str | Path, rank: int = 0) -> ComputationGraph:
    """Return the graph of a rank in a run's top_architectures.json with its translation settings.

    Raises: ValueError as `load`.
    """
    try:
        entries = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected JSON, got {type(error).__name__}: {error}") from None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) and "graph" in entry for entry in entries):
        raise ValueError(f"{path}: expected a JSON list of objects with a graph, as written by a run")
    ranks = [entry.get("rank", position) for position, entry in enumerate(entries)]
    if rank not in ranks:
        raise ValueError(f"{path}: expected a rank out of {shown(ranks)}, got {rank!r}")
    entry = entries[ranks.index(rank)]
    graph = ComputationGraph.from_dict(entry["graph"])
    # Until 2026-11 the projection was written next to the graph, not into it.
    is_old = "projection" in entry and "translation" not in graph.config
    return graph.with_translation({"projection": entry["projection"]}) if is_old else graph
