"""Graphs with known scores, read from a file into terminal states."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from gflownet.data.config import OfflineConfig
from gflownet.data.replay import SeenStates
from gflownet.data.sampler import sample_backward
from gflownet.errors import UserError
from gflownet.evaluation.conditioning import Conditioning
from gflownet.evaluation.task import GFNTask, Score
from gflownet.files import is_intact, parse_json
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.states import GraphStates
from gflownet.records.trust import checked_names

_SCORES = ("score", "validation_score")  # names of the score in an entry; the second is used by a run's report


def load_offline(config: OfflineConfig, context: GraphBuildingEnvContext, task: GFNTask) -> SeenStates | None:
    """Read the graphs of the file and their scores or utilities; None without a file.

    An entry is an object with `graph` (node-link form), `score` or `validation_score` and, where the task has several
    objectives, `metrics`. One per line, or all in one JSON list, such as a run's top_architectures.json.

    Raises:
        UserError: the file cannot be read, or an entry is no terminal state of this environment; the text has its line.
    """
    if not config.path:
        return None
    path = Path(config.path)
    entries = _read(path)
    graphs, scores = [], []
    for name, entry in entries:
        try:
            if not isinstance(entry, Mapping):
                raise ValueError(f"expected an object, got {entry!r}")
            if not is_intact(entry):
                raise ValueError("expected an entry as it was written, got another checksum")
            with checked_names(path, entry["graph"], folder=path.parent):
                graphs.append(context.env.terminal_type.from_dict(entry["graph"]))
            scores.append(_score(entry, task))
        except (KeyError, TypeError, ValueError) as error:
            reason = f"expected a field {error}" if isinstance(error, KeyError) else error
            raise UserError(f"offline.path: {config.path}, {name}: {reason}") from None
    try:
        states = context.env.states_of(graphs)
        _check_reached(context, states)
    except ValueError as error:
        index, _, reason = str(error).removeprefix("graph ").partition(": ")
        raise UserError(f"offline.path: {config.path}, {entries[int(index)][0]}: {reason}") from None
    return SeenStates(states, torch.tensor(scores))


def _read(path: Path) -> list[tuple[str, Any]]:
    """Return every entry with its position for error messages."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"offline.path: expected a file of graphs, got {path} ({error})") from None
    lines = [(f"line {number}", line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    try:
        if text.lstrip().startswith("["):
            entries = [(f"entry {position}", entry) for position, entry in enumerate(parse_json(text))]
        else:
            entries = [(name, parse_json(line)) for name, line in lines]
    except json.JSONDecodeError as error:
        raise UserError(f"offline.path: expected JSON lines or a JSON list, got {path} ({error})") from None
    if not entries:
        raise UserError(f"offline.path: expected at least one graph, got {path} without any")
    return entries


def _score(entry: Mapping[str, Any], task: GFNTask) -> Any:
    """Return the score, or the utilities of the chosen objectives."""
    values = [entry[name] for name in _SCORES if name in entry]
    if not values:
        raise KeyError(_SCORES[0])
    value = float(values[0])
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"expected a finite score >= 0, got {value}")
    return task.utilities(Score(value, entry.get("num_parameters"), entry.get("metrics") or {})) or value


def _check_reached(context: GraphBuildingEnvContext, terminal: GraphStates) -> None:
    """Raise ValueError for a state that no trajectory of legal steps reaches."""
    env, num = context.env, len(terminal)
    conditioning = Conditioning(torch.zeros(num, context.num_cond_dim), torch.ones(num))
    # One backward trajectory per state suffices: all of them are legal or none is.
    backward = sample_backward(context, terminal, conditioning=conditioning, generator=torch.Generator())
    illegal = ~env.forward_masks(backward.states).contains(backward.actions)
    order = backward.trajectory.argsort(stable=True)
    length = torch.bincount(backward.trajectory, minlength=num)
    first = backward.states[order[length.cumsum(0) - length]]
    unreachable = ~first.equals(env.initial_states(num))
    unreachable[backward.trajectory[illegal]] = True
    if bool(unreachable.any()):
        index = int(unreachable.nonzero()[0])
        raise ValueError(f"graph {index}: expected a graph that can be built, got one that cannot")
