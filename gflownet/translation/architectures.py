"""A found architecture back as a module."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.translation.model import TranslatedModel, to_pytorch_model


def load(path: str | Path, rank: int = 0, *, config: Mapping[str, Any] | None = None) -> TranslatedModel:
    """The architecture of a rank in a run's top_architectures.json, with fresh first values, ready to be trained.

    It is translated with the projection it was scored with unless `config` (see TranslationConfig) says otherwise.

    Raises: ValueError for a file of another form or a rank it does not hold.
    """
    entries = json.loads(Path(path).read_text(encoding="utf-8"))
    if not isinstance(entries, list) or not all(isinstance(entry, dict) and "graph" in entry for entry in entries):
        raise ValueError(f"{path}: expected a JSON list of objects with a graph, as a run writes it")
    by_rank = {entry.get("rank", position): entry for position, entry in enumerate(entries)}
    if rank not in by_rank:
        raise ValueError(f"{path}: expected a rank out of {sorted(by_rank)}, got {rank!r}")
    entry = by_rank[rank]
    options = {"projection": entry.get("projection", "auto"), **(config or {})}
    return to_pytorch_model(ComputationGraph.from_dict(entry["graph"]), options)
