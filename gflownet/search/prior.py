"""Earlier searches from which a search starts: their evaluations, as far as their graphs are in the space of today.

Letters: n evaluations, K objectives.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gflownet.errors import UserError, counted
from gflownet.evaluation.evaluator import evaluation_of
from gflownet.evaluation.statistics import largest_addition
from gflownet.evaluation.store.database import STORE_NAME
from gflownet.evaluation.store.overview import StoreOverview
from gflownet.evaluation.store.rows import EvaluationRecord, EvaluationStatus
from gflownet.evaluation.task import GFNTask
from gflownet.learning.sampler import uniform_states
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates
from gflownet.options import leaves
from gflownet.records.marker import read_marker
from gflownet.records.trust import check_config, checked_names
from gflownet.search.history import History
from gflownet.search.surrogate import rank_correlation

_MIN_COMPARED = 5  # architectures of both searches before their scores are correlated
# Attributes of inputs and outputs that depend on the data.
_OF_DATA = {"input": ("shape", "layout", "dtype", "output_size"), "output": ("features", "output_size")}


@dataclass(frozen=True)
class EarlierSearch:
    """The evaluations of an earlier run: its own scores, on graphs of the space of today."""

    name: str  # of its folder, or of its database
    history: History
    num_evaluations: int  # also of graphs that are outside of today's space
    policy: Mapping[str, Tensor] | None = None  # its trained weights, with which today's sampler begins

    def shared(self, history: History) -> list[tuple[int, int]]:
        """Return the positions of architectures that both searches evaluated, the earlier search's first."""
        codes = self.history.env.identify(self.history.states).tolist()
        places = [history.position(code) for code in codes]
        return [(earlier, place) for earlier, place in enumerate(places) if place is not None]


class Prior:
    """Evaluations of earlier searches; read once, part of the checkpoint of the search."""

    def __init__(self, env: Environment, read: Callable[[], Sequence[EarlierSearch]] = lambda: ()) -> None:
        self._env, self._read = env, read

    @cached_property
    def searches(self) -> Sequence[EarlierSearch]:
        """The earlier searches that have evaluations in today's space."""
        return self._read()

    @property
    def policy(self) -> Mapping[str, Tensor] | None:
        """The weights with which the sampler begins, None where those of no earlier search fit."""
        return next((each.policy for each in self.searches if each.policy is not None), None)

    def best(self, num: int, targets: Callable[[History], Tensor]) -> GraphStates:
        """Return up to `num` of the best architectures, of each earlier search in turn.

        With K objectives each one adds most to the hypervolume of those before. `targets` returns [n, K] of a history.
        """
        orders = [best_first(targets(each.history), num) for each in self.searches]
        chosen = [
            each.history.states[order[place : place + 1]]
            for place in range(num)
            for each, order in zip(self.searches, orders, strict=True)
            if place < len(order)
        ]
        return GraphStates.cat([self._env.initial_states(0), *chosen[:num]])

    def summary(self, history: History, num_first: int, *, has_sampler: bool) -> list[dict[str, Any]]:
        """Return the fields of `report.results.TakenOver` for each earlier search.

        With the number of the first `num_first` architectures that are its own, and the rank correlation of the scores
        of architectures that both searches evaluated (NaN for fewer than _MIN_COMPARED).
        """
        rows = []
        for each in self.searches:
            pairs = each.shared(history)
            scores = [(each.history.measured[earlier], history.measured[place]) for earlier, place in pairs]
            columns = [torch.tensor(column) for column in zip(*scores, strict=True)]
            rows.append(
                {
                    "run": each.name,
                    "num_evaluations": each.num_evaluations,
                    "num_in_space": len(each.history),
                    "num_first": sum(place < num_first for _, place in pairs),
                    "num_design": min(num_first, len(history)),
                    "num_shared": len(pairs),
                    "starts_sampler": each.policy is not None if has_sampler else None,
                    "correlation": rank_correlation(*columns) if len(pairs) >= _MIN_COMPARED else math.nan,
                }
            )
        return rows

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the contents, so that a resumed search has them without the folders."""
        return [
            {
                **{"name": each.name, "num": each.num_evaluations, "history": each.history.state_dict()},
                "policy": None if each.policy is None else {**each.policy},
            }
            for each in self.searches
        ]

    def load_state_dict(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Restore the result of `state_dict`."""
        searches = []
        for each in state:
            history = History(self._env)
            history.load_state_dict(each["history"])
            searches.append(EarlierSearch(each["name"], history, each["num"], each.get("policy")))
        self.searches = searches


def earlier_search(
    name: str, records: Iterable[EvaluationRecord], env: Environment, task: GFNTask
) -> EarlierSearch | None:
    """Return the evaluations of a run; None where no graph of it is in the space of `env`.

    Inputs and outputs of its networks get the shapes of today's data. Failed evaluations count with the floor score.
    """
    history, num, ends = History(env), 0, ends_of(env)
    for record in records:
        if record.seed or record.fidelity or record.status is EvaluationStatus.REFUSED:
            continue
        num += 1
        try:
            candidate = env.terminal_type.from_dict(with_ends(json.loads(record.graph), ends))
            states = env.states_of([candidate])
        except (ValueError, TypeError, KeyError, NotImplementedError):
            continue  # of another space
        history.add(states, [evaluation_of(record, task=task, cached=False)])
    return EarlierSearch(name, history, num) if len(history) else None


def read_prior(
    locations: Sequence[str],
    env: Environment,
    task: GFNTask,
    policy_of: Callable[[Path], Mapping[str, Tensor] | None] = lambda folder: None,
) -> list[EarlierSearch]:
    """Return the evaluations of earlier runs on graphs of today's space.

    Args:
        locations: run folders, or stores: SQLite files and database URLs, with all of their runs.
        env: of today.
        task: of today; it computes utilities from the metrics of earlier evaluations.
        policy_of: returns the trained weights of the policy in a run folder, None where they do not fit today's.

    Raises:
        UserError: no evaluations there, none in today's space, or a folder of another user that names classes.
    """
    searches, policy = list[EarlierSearch](), None
    for location in locations:
        folder, (store, run) = Path(location), _store_of(location)
        with StoreOverview(store) as overview, overview.damage_in_one_line():
            records, place = overview.records(run=run), overview.location
        is_folder, names = folder.is_dir(), [json.loads(record.graph) for record in records]
        shown = location if is_folder else place  # without a password
        with checked_names(Path(shown), names, folder=folder if is_folder else folder.parent):
            search = earlier_search(Path(shown.partition("?")[0]).name, records, env, task)
        if search is None:
            got = f"{counted(len(records), 'other')} in {shown}"
            raise UserError(f"search.prior: expected evaluations in this search space, got {got}")
        if policy is None and is_folder:
            search = replace(search, policy=(policy := policy_of(folder)))
        searches.append(search)
    return searches


def _store_of(location: str) -> tuple[str, str | None]:
    """Return the store of an entry of search.prior, and the id of its run where other runs share the store.

    Raises:
        UserError: no store, or a database that the folder of another user's run names.
    """
    path = Path(location)
    if "://" in location:
        return location, None
    marker = read_marker(path) if path.is_dir() else None
    url = "" if marker is None else dict(leaves(marker.config)).get("evaluation.store_url")
    if marker is not None and url:
        check_config(path, {"evaluation": {"store_url": url}})
        if "${" in str(url):
            expected = "expected a run whose evaluation.store_url is no reference"
            raise UserError(f"search.prior: {expected}, got {url} in {location}; name the database in its place")
        return str(url), marker.run
    path = path / STORE_NAME if path.is_dir() else path
    if not path.is_file():
        raise UserError(f"search.prior: expected a run folder or a store with evaluations, got {location}")
    return str(path), None


def best_first(values: Tensor, num: int) -> Tensor:
    """Return up to `num` positions: of the largest values [n, 1], or those that add most hypervolume of [n, K]."""
    if values.shape[1] == 1:
        return values[:, 0].argsort(descending=True, stable=True)[:num]
    points, chosen = values.double().numpy(), list[int]()
    for _ in range(min(num, len(points))):
        chosen.append(largest_addition(points, chosen, (row for row in range(len(points)) if row not in chosen)))
    return torch.tensor(chosen, dtype=torch.int64)


def ends_of(env: Environment) -> Mapping[str, list[Mapping[str, Any]]]:
    """Return the input and output nodes of a network of an environment, by kind; none of other graphs."""
    example = uniform_states(env, 1, generator=torch.Generator().manual_seed(0))
    ends: dict[str, list[Mapping[str, Any]]] = {}
    for node in env.terminal(example, 0).to_dict().get("nodes", ()):
        ends.setdefault(str(node.get("node_type")), []).append(node)
    return ends


def with_ends(graph: dict[str, Any], ends: Mapping[str, list[Mapping[str, Any]]]) -> dict[str, Any]:
    """Give the inputs and outputs of an earlier graph the shapes and the number of outputs of today's data."""
    for kind, names in _OF_DATA.items():
        nodes = [node for node in graph.get("nodes", ()) if node.get("node_type") == kind]
        for node, today in zip(nodes, ends.get(kind, ()), strict=False):
            for old, new in ((node, today), (node.get("operation"), today.get("operation"))):
                if isinstance(old, dict) and isinstance(new, Mapping):
                    old.update({name: new[name] for name in names if name in old and name in new})
    return graph
