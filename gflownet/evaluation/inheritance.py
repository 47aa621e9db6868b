"""Inherited weights: a candidate begins with weights of the nearest evaluated network, and trains a part of the epochs.

The first design trains from first values. Then each candidate gets the parent of which it can use most weights, out of
the networks learned before its proposal; its epochs follow from the share of these weights. Some are trained both ways:
the pairs measure what inherited scores lack, and end the inheritance where the ranks differ. Rows keep the measured
scores.

Letters: n evaluations, K objectives, 1 for one score.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from heapq import nlargest
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as load_tensors
from torch import Tensor

from gflownet.errors import UserError, counted
from gflownet.evaluation.candidates.sets import ParentWeights
from gflownet.evaluation.candidates.tensor_task import EPOCHS, INHERITED, PARENT, WEIGHTS, TensorTask
from gflownet.evaluation.config import TaskConfig
from gflownet.evaluation.dispatcher import Dispatcher
from gflownet.evaluation.evaluator import AsynchronousEvaluator, Evaluation, utilities_of
from gflownet.evaluation.execution import saved, saved_weights
from gflownet.evaluation.job import EvaluationFuture, EvaluationStatus, Request
from gflownet.evaluation.racing import rank_correlation
from gflownet.evaluation.store.evaluations import EvaluationRecord, Identity
from gflownet.evaluation.task import GFNTask
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.training.random_states import seeded
from gflownet.translation import GraphOutline, inherited_share

_NUM_PARENTS = 64  # networks used last, whose weights are kept
_NUM_COMPARED = 16  # parents with most nodes of equal settings, whose graphs are matched
_LEAST_SHARE = 0.5  # of weights that are inherited
_LEAST_OF_START = 0.25  # where the parent is the network of env.start, which may be far larger
_NUM_PAIRS = 5  # of the first design, and before ranks are compared
_PAIR_EVERY = 20  # of the later inherited candidates, one is trained both ways
_LEAST_CORRELATION = 0.8  # of the ranks of pairs, below which the inheritance ends
_PAIR_FIDELITY = 1  # of the row of the inherited training of a pair
_LEAST_EPOCHS = 2
_COUNTS = ("_num_learned", "_num_chosen", "_num_inherited", "_num_epochs", "_num_failed", "_is_over")
_PENALTY = 0.25  # of a pair with half of the weights
_CHECK_EVERY_S = 0.2


@dataclass(frozen=True)
class _Choice:
    """How a candidate is trained, decided when it is proposed."""

    key: str  # of the parent
    graph: str  # of the parent, node-link JSON
    is_pair: bool = True


@dataclass(frozen=True)
class _Pair:
    """Both trainings of a network."""

    share: float  # of its weights that were inherited
    inherited: tuple[float, ...]  # score, and the utilities of K objectives
    others: tuple[float, ...]  # from first values


@dataclass(frozen=True, eq=False)
class Parent:
    """A network whose weights may be inherited."""

    candidate: Any
    outline: GraphOutline
    shapes: Mapping[str, torch.Size]  # of the weights
    values: tuple[float, ...]  # score, and the utilities of K objectives; none of the network of env.start

    @property
    def text(self) -> str:
        """Return its node-link JSON."""
        return json.dumps(self.candidate.to_dict())


class Inheritance:
    """Parents, pairs and choices of a run: a function of what the search has learned."""

    def __init__(self, task: TensorTask, *, from_dict: Callable[[dict[str, Any]], Any]) -> None:
        """Begin with no parents.

        Args:
            task: of the run.
            from_dict: reads a candidate.
        """
        self.task, self._from_dict = task, from_dict
        self.num_first = 0  # candidates that are trained from first values
        self.weights: ParentWeights | None = None
        self.choices: dict[Identity, _Choice] = {}  # of candidates in flight
        self._num_learned = self._num_chosen = self._num_inherited = self._num_epochs = 0
        self._num_failed = 0  # pairs of which one training failed, or has begun again
        self._is_over = False
        self._pairs: list[_Pair] = []
        self._parents: dict[str, Parent] = {}  # by key, in the order of their last use

    def begin(
        self, weights: ParentWeights, *, num_first: int, start: tuple[Any, Mapping[str, Tensor]] | None = None
    ) -> None:
        """Keep the weights of parents from now on.

        Args:
            weights: of the run.
            num_first: candidates that are trained from first values; without a start.
            start: a network and its weights, the first parent.
        """
        self.weights, self.num_first = weights, num_first
        if start is None:
            return
        candidate, tensors = start
        self.num_first, key, parent = 0, candidate.canonical_key(), self.parent(candidate)
        weights.begin_with(key, saved_weights(tensors))
        if parent is not None and not self._num_learned:
            self._parents[key] = parent

    def choose(self, candidate: Any) -> _Choice | None:
        """Return how a new candidate is trained, None: from first values."""
        if self._num_learned < self.num_first or self._is_over:
            return None
        key = self._nearest(candidate, self._parents)
        if key is None:
            return None
        self._parents[key] = self._parents.pop(key)
        self._num_chosen += 1
        num_pairs = len(self._pairs) + self._num_failed + sum(choice.is_pair for choice in self.choices.values())
        is_pair = num_pairs < _NUM_PAIRS or self._num_chosen % _PAIR_EVERY == 0
        return _Choice(key, self._parents[key].text, is_pair)

    def parent(self, candidate: Any, record: EvaluationRecord | None = None) -> Parent | None:
        """Return a network as a parent; None for a candidate without one."""
        network = self.task.network(candidate)
        if network is None:
            return None
        with suppress(Exception), seeded(0):  # an error of the user's class is that of its evaluation
            shapes = {name: value.shape for name, value in self.task.build_model(candidate).state_dict().items()}
            return Parent(candidate, GraphOutline(network), shapes, () if record is None else self._values(record))
        return None

    def first_pairs(self, new: Mapping[str, Parent], num: int) -> list[tuple[Parent, _Choice]]:
        """Return networks of the first design to train again, where `num` results complete it."""
        if self._pairs or not self._num_learned < self.num_first <= self._num_learned + num:
            return []
        parents = {**self._parents, **new}
        ranked = sorted(parents.values(), key=lambda each: (each.values, each.text))
        places = sorted({round(place) for place in np.linspace(0, len(ranked) - 1, _NUM_PAIRS)})
        pairs = [(ranked[place], self._nearest(ranked[place].candidate, parents)) for place in places if ranked]
        return [(each, _Choice(key, parents[key].text)) for each, key in pairs if key is not None]

    def add_parents(self, parents: Mapping[str, Parent]) -> list[str]:
        """Add parents by key, and return the keys of parents beyond the limit."""
        self._parents |= {key: each for key, each in parents.items() if self._parents.get(key, each).values}
        keys = list(self._parents)[: max(0, len(self._parents) - _NUM_PARENTS)]
        for key in keys:
            del self._parents[key]
        return keys

    def add_pair(self, inherited: EvaluationRecord, values: tuple[float, ...]) -> str:
        """Add the training with inherited weights of a network with these values; return a line where it is the end."""
        self._num_epochs += self._epochs(inherited)
        share = inherited.metrics.get(INHERITED)
        if not share or not values or inherited.status is not EvaluationStatus.OK:
            self._num_failed += 1
            was_over, self._is_over = self._is_over, self._is_over or self._num_failed > len(self._pairs) + _NUM_PAIRS
            failed = counted(self._num_failed, "network")
            words = f"inherited weights are of no use to {failed}: further ones are trained from first values"
            return words if self._is_over > was_over else ""
        self._pairs.append(_Pair(share, self._values(inherited), values))
        if self._is_over or len(self._pairs) < _NUM_PAIRS or not self._correlation < _LEAST_CORRELATION:
            return ""
        self._is_over = True
        return (
            f"the scores of {counted(len(self._pairs), 'network')} with inherited weights and from first values have a "
            f"rank correlation of {self._correlation:.2f}: further ones are trained from first values"
        )

    def end(self) -> None:
        """Remove the weights of all networks but the last parents."""
        if self.weights is not None:
            self.weights.end(self._parents)

    def learn(self, futures: Sequence[EvaluationFuture]) -> None:
        """Count results of the search."""
        self._num_learned += len(futures)
        records = [each.record for each in futures if each.record is not None]
        self._num_inherited += sum(INHERITED in record.metrics for record in records)
        self._num_epochs += sum(map(self._epochs, records))
        for future in futures:
            self.choices.pop(future.request.identity, None)

    def estimates(self, values: Tensor, metrics: Sequence[Mapping[str, float]]) -> Tensor:
        """Return values [n, K] of evaluations as if all were from first values: inherited ones lack something.

        By least squares over the pairs, that is proportional to the share of weights that are not inherited; a penalty
        is that of one more pair, with half of the weights and nothing lacking. None is above the best measured value.
        """
        if not self._pairs or not len(values):
            return values
        rows = [(1 - pair.share, torch.tensor(pair.others) - torch.tensor(pair.inherited)) for pair in self._pairs]
        lacking = torch.stack([missing * difference for missing, difference in rows]).sum(0)
        slope = lacking[-values.shape[1] :] / (math.fsum(missing**2 for missing, _ in rows) + _PENALTY)
        missing = torch.tensor([1 - row.get(INHERITED, 1.0) for row in metrics], dtype=values.dtype)
        return torch.minimum(values + missing[:, None] * slope, values.amax(0))

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        if self.weights is not None:
            self.weights.checkpoint()
        return {
            "counts": {name: getattr(self, name) for name in _COUNTS},
            "pairs": [asdict(pair) for pair in self._pairs],
            "choices": [(tuple(identity), asdict(choice)) for identity, choice in self.choices.items()],
            "parents": [(key, each.text, each.values) for key, each in self._parents.items()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        vars(self).update(state["counts"])
        self._pairs = [_Pair(**pair) for pair in state["pairs"]]
        self.choices = {Identity(*identity): _Choice(**choice) for identity, choice in state["choices"]}
        self._parents = {}
        for key, graph, values in state["parents"]:
            parent = self.parent(self._from_dict(json.loads(graph)))
            if parent is not None:
                self._parents[key] = replace(parent, values=values)

    def __str__(self) -> str:
        share = self._num_epochs / max(1, self._num_learned * self.task.max_fidelity)
        correlation = "" if math.isnan(self._correlation) else f", rank correlation {self._correlation:.2f}"
        return (
            f"inherited weights: {self._num_inherited} of {counted(self._num_learned, 'candidate')}, with {share:.0%} "
            f"of the epochs of as many trainings from first values; {counted(len(self._pairs), 'network')} "
            f"trained both ways{correlation}"
        )

    def _values(self, record: EvaluationRecord) -> tuple[float, ...]:
        return record.score, *utilities_of(record, task=self.task)

    @property
    def _correlation(self) -> float:
        return rank_correlation([(pair.inherited[0], pair.others[0]) for pair in self._pairs])

    def _nearest(self, candidate: Any, parents: Mapping[str, Parent]) -> str | None:
        """Return the key of the parent of which a candidate can use most weights, of equal ones the most alike."""
        own = candidate.canonical_key()
        child = self.parent(candidate) if parents.keys() - {own} else None
        if child is None:
            return None
        counts = [(child.outline.num_equal(each.outline), each.values, key) for key, each in parents.items()]
        ranked = []
        for *_, values, key in nlargest(_NUM_COMPARED, (each for each in counts if each[-1] != own)):
            nodes, likeness = child.outline.matches(parents[key].outline)
            ranked.append((inherited_share(child.shapes, parents[key].shapes, nodes), likeness, values, key))
        share, _, values, key = max(ranked, default=(0.0, 0.0, (), ""))
        return key if share >= (_LEAST_SHARE if values else _LEAST_OF_START) else None

    def _epochs(self, record: EvaluationRecord) -> int:
        return int(record.metrics.get(EPOCHS, self.task.max_fidelity))


class InheritingEvaluator(AsynchronousEvaluator):
    """Gives the candidates of a search the weights of a parent; other requests are passed on."""

    def __init__(
        self, dispatcher: Dispatcher, inheritance: Inheritance, weights: ParentWeights, *, report: Callable[[str], None]
    ) -> None:
        """Take the weights of a dispatcher; `report` is called with a line where the inheritance ends."""
        self.task, self.executor, self.run = dispatcher.task, dispatcher.executor, dispatcher.run
        self._dispatcher, self._inheritance, self._weights, self._report = dispatcher, inheritance, weights, report
        self._others: dict[Identity, EvaluationFuture] = {}  # of pairs in flight, the inherited training
        dispatcher.parents = weights

    def submit(self, requests: Sequence[Request], *, step: int) -> list[EvaluationFuture]:
        choices, submitted = self._inheritance.choices, list[Request]()
        self.flush()
        known = self._dispatcher.store.find_many([request.identity for request in requests])
        for request, row in zip(requests, known, strict=True):
            # Rows of this step are new: a resumed run may find them.
            is_known = row is not None and (row.run != self.run or row.step < step)
            is_new = request == Request(request.candidate) and request.identity not in choices and not is_known
            if is_new and (choice := self._inheritance.choose(request.candidate)) is not None:
                choices[request.identity] = choice
            choice = choices.get(request.identity)
            if choice is not None and choice.is_pair:
                self._others[request.identity] = self._submit_other(request.candidate, choice, step=step)
                choice = None
            submitted.append(request if choice is None else replace(request, training=self._training(choice)))
        return self._dispatcher.submit(submitted, step=step)

    def advance(self, *, timeout: float | None) -> int:
        return self._dispatcher.advance(timeout=timeout)

    def flush(self) -> None:
        self._dispatcher.flush()

    @property
    def num_in_flight(self) -> int:
        return self._dispatcher.num_in_flight

    def evaluations(self, futures: Sequence[EvaluationFuture], *, step: int) -> list[Evaluation]:
        """Return the evaluations of finished futures, and learn from them once their pairs are finished too."""
        inheritance, new = self._inheritance, dict[str, Parent]()
        pairs = list[tuple[EvaluationFuture, tuple[float, ...]]]()
        for future in futures:
            record, other = future.record, self._others.get(future.request.identity)
            assert record is not None
            is_ok = record.status is EvaluationStatus.OK
            parent = inheritance.parent(future.request.candidate, record) if is_ok else None
            if parent is not None and self._weights.path(record.key).exists():
                new[record.key] = parent
            if other is not None:
                is_whole = INHERITED not in record.metrics
                pairs.append((other, parent.values if parent is not None and is_whole else ()))
        for parent, choice in inheritance.first_pairs(new, len(futures)):
            pairs.append((self._submit_other(parent.candidate, choice, step=step), parent.values))
        while any(other.record is None for other, _ in pairs):
            self.advance(timeout=_CHECK_EVERY_S)
        results = super().evaluations(futures, step=step)  # from here on nothing waits, or ends in the middle
        lines = [inheritance.add_pair(other.record, values) for other, values in pairs if other.record is not None]
        for line in filter(None, lines):
            self._report(line)
        unused = inheritance.add_parents(new)
        self._weights.change(new, unused)
        inheritance.learn(futures)
        for future in futures:
            self._others.pop(future.request.identity, None)
        return results

    def _submit_other(self, candidate: Any, choice: _Choice, *, step: int) -> EvaluationFuture:
        """Train a network with inherited weights too; the budget does not count it."""
        request = Request(candidate, fidelity=_PAIR_FIDELITY, schedule=_PAIR_FIDELITY, training=self._training(choice))
        (future,) = self._dispatcher.submit([request], step=step)
        if future.record is None:
            self._dispatcher.uncount(EvaluationStatus.OK)
        return future

    def _training(self, choice: _Choice) -> bytes | None:
        """Return the state from which a child begins; None where the weights of its parent are lost."""
        path = self._weights.path(choice.key)
        if not path.exists():
            return None
        return saved({PARENT: json.loads(choice.graph), WEIGHTS: load_tensors(path.read_bytes())})


def is_other_training(record: EvaluationRecord) -> bool:
    """Return whether a row is the inherited training of a pair."""
    return not record.seed and record.fidelity == _PAIR_FIDELITY


def build_inheritance(
    task: GFNTask, config: TaskConfig, *, candidate_type: type, uses_surrogate: bool
) -> Inheritance | None:
    """Return the inheritance of a run, None where it is off.

    Raises:
        UserError: candidates that are no networks or train in one epoch, evaluations of the user's own, successive
            halving, or a method without a surrogate.
    """
    if not config.evaluation.inherit:
        return None
    has_networks = issubclass(candidate_type, ComputationGraph) or type(task).network is not GFNTask.network
    if not isinstance(task, TensorTask) or not has_networks:
        reason = f"with task={config.task}, whose candidates are no networks that train on examples"
    elif task.max_fidelity < _LEAST_EPOCHS:
        reason = f"with evaluation.num_epochs={task.max_fidelity}, of which no part is left out"
    elif any(getattr(type(task), name) is not getattr(TensorTask, name) for name in ("evaluate", "train_many")):
        reason = f"with task={config.task}, which has an evaluation of its own"
    elif not uses_surrogate:
        reason = "with a search method that has no surrogate to learn what inherited scores lack"
    elif config.evaluation.halving.min_fidelity:
        reason = "with evaluation.halving.min_fidelity, which shortens trainings too"
    else:
        return Inheritance(task, from_dict=candidate_type.from_dict)  # type: ignore[attr-defined]
    raise UserError(f"evaluation.inherit: expected false {reason}")
