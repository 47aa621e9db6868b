"""All terminal states of a small space, up to isomorphism.

Letters: B states, N places, V values.
"""

from __future__ import annotations

from typing import Any

import torch

from gflownet.data.sampler import uniform_states
from gflownet.errors import UserError
from gflownet.mdp.action import ActionMasks, GraphActionType
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates
from gflownet.search.candidate_model import CandidateModel
from gflownet.search.history import first_mask
from gflownet.search.surrogate import Prediction

_CHUNK = 2_000  # states expanded at once, to bound memory
# States and transitions that are visited per terminal state of the limit: a space with more takes too long to visit.
_STATES_PER_TERMINAL, _TRANSITIONS_PER_TERMINAL = 2, 5
_MIN_STATES = 5_000  # visited in any case
_NUM_DRAWN = 16  # objects of a space at random; two different ones are enough


def enumerated(env: Environment, *, max_num: int) -> GraphStates | None:
    """Return every terminal state once, None for more than `max_num` or for a space that takes too long to visit."""
    if not max_num:
        return None
    try:
        if _has_places(env):
            states = _assignments(env, max_num)
            if states is not None:
                return states
        return _reachable(env, max_num)
    except _TooLargeError:
        return None


def check_space(env: Environment) -> None:
    """Raise UserError for a space of fewer than two objects, which leaves a search no choice."""
    drawn = uniform_states(env, _NUM_DRAWN, generator=torch.Generator().manual_seed(0))
    if len(env.identify(drawn).unique()) > 1:
        return
    states = enumerated(env, max_num=1)
    if states is not None:
        reasons = "; ".join(env.remarks()) or "the task and the options under env leave no choice"
        raise UserError(f"env: expected a search space of two or more, got {len(states)}; {reasons}")


def _has_places(env: Environment) -> bool:
    """Return whether actions only set the values of different places."""
    has_values = set(env.forward_types) == {GraphActionType.Stop, GraphActionType.SetNodeAttr}
    return has_values and len(env.vocabulary.node_types) == env.vocabulary.max_nodes


class _TooLargeError(Exception):
    """A space with more states than the limit."""


def _assignments(env: Environment, max_num: int) -> GraphStates | None:
    """Set the first free place in every way until all are set; None where Stop is legal with a free place.

    Without such a state every free place is set sooner or later, in any order: one order reaches each terminal state
    once.
    """
    frontier, finished, num = env.initial_states(1), [], 0
    while len(frontier):
        following = []
        for part in _chunks(frontier):
            masks = env.forward_masks(part).masks
            stop, values = masks[GraphActionType.Stop].flatten(1).any(1), masks[GraphActionType.SetNodeAttr]
            is_free = values.any(2)
            if bool((stop & is_free.any(1)).any()):
                return None
            is_first = torch.nn.functional.one_hot(is_free.float().argmax(1), values.shape[1]).bool()
            graph, action = ActionMasks({GraphActionType.SetNodeAttr: values & is_first[:, :, None]}).positions()
            finished.append(part[stop])
            following.append(env.apply(part[graph], action))
            num += int(stop.sum())
        frontier = GraphStates.cat(following)
        if num + len(frontier) > max_num:
            raise _TooLargeError
    return GraphStates.cat(finished)


def _reachable(env: Environment, max_num: int) -> GraphStates:
    frontier, finished = env.initial_states(1), []
    codes, count = set(env.identify(frontier).tolist()), _Count(env, max_num)
    count.add(frontier)
    while len(frontier):
        following = []
        for part in _chunks(frontier):
            masks = env.forward_masks(part).masks
            finished.append(part[masks[GraphActionType.Stop].flatten(1).any(1)])
            graph, action = ActionMasks({k: m for k, m in masks.items() if k != GraphActionType.Stop}).positions()
            children = env.apply(part[graph], action)
            following.append(children[first_mask(env.identify(children), codes)])
            count.add(following[-1])
        frontier = GraphStates.cat(following)
    return GraphStates.cat(finished)


class _Count:
    """Numbers of states, terminal states and transitions that a visit has met; those of a new state count at once.

    The identification of states takes most of a visit: counted when they are expanded, a level more is identified.
    """

    def __init__(self, env: Environment, max_num: int) -> None:
        self._env, self._max_num, self._size = env, max_num, max(max_num, _MIN_STATES)
        self._num_states = self._num_finished = self._num_transitions = 0

    def add(self, states: GraphStates) -> None:
        """Count distinct states. Raises _TooLargeError above a limit."""
        for part in _chunks(states):
            masks = self._env.forward_masks(part)
            self._num_states += len(part)
            self._num_finished += int(masks.masks[GraphActionType.Stop].flatten(1).any(1).sum())
            self._num_transitions += int(masks.num_actions().sum())
            if (
                self._num_finished > self._max_num
                or self._num_transitions > _TRANSITIONS_PER_TERMINAL * self._size
                or self._num_states > _STATES_PER_TERMINAL * self._size
            ):
                raise _TooLargeError


def _chunks(states: GraphStates) -> list[GraphStates]:
    return [states[first : first + _CHUNK] for first in range(0, len(states), _CHUNK)]


class ScoredSpace:
    """All terminal states of a small space, with the latest predictions of a surrogate."""

    def __init__(self, env: Environment, states: GraphStates) -> None:
        self.env, self.states = env, states
        self.codes = env.identify(states)
        self._features: Any = None
        self._prediction: Prediction | None = None
        self._sorted_codes, self._positions = self.codes.sort()

    def forget(self) -> None:
        """Drop the predictions: the surrogate is fitted again."""
        self._prediction = None

    def features(self, model: CandidateModel) -> Any:
        """Return the features of all states, computed once."""
        if self._features is None:
            self._features = model.encode(self.states)
        return self._features

    def predict(self, model: CandidateModel) -> Prediction:
        """Return the predictions for all states, computed once after each fit."""
        if self._prediction is None:
            self._prediction = model.predict(self.features(model))
        return self._prediction

    def predict_at(self, states: GraphStates, model: CandidateModel) -> Prediction:
        """Return the predictions for some of the states."""
        index = self._positions[torch.searchsorted(self._sorted_codes, self.env.identify(states))]
        prediction = self.predict(model)
        return Prediction(prediction.mean[index], prediction.std[index], prediction.noise)
