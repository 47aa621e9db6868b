"""The tree-structured Parzen estimator of Optuna (Bergstra et al. 2011) over the decisions of a construction.

A terminal state is constructed by categorical decisions: one name always has the same number of choices. In an
environment of places a decision is the value of a place, in the order of the places. In others it is the kind, the row
or the column of an action, and its name contains the number of the step.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch

from gflownet.data.replay import action_sequences
from gflownet.data.sampler import Step, assembled
from gflownet.envs.slots import SlotEnv
from gflownet.errors import UserError
from gflownet.evaluation.conditioning import Conditioning
from gflownet.mdp.action import PAIR_TYPES, ActionBatch, GraphActionType
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import Origin
from gflownet.options import AT_LEAST_ONE, option
from gflownet.search.baselines import is_allowed
from gflownet.search.history import first_mask
from gflownet.search.method import SearchMethod, SearchSetup
from gflownet.workers.process import stream_seed

Action = tuple[int, int, int]  # kind, row, column
_STOP: Action = (int(GraphActionType.Stop), 0, 0)
_STOP_BEFORE = "stop before "  # a place


@dataclass(frozen=True)
class Decision:
    """A choice among `num_choices`."""

    name: str
    num_choices: int
    choice: int


# Name, number of choices -> any choice; an illegal one is replaced by the next legal one.
Choose = Callable[[str, int], int]


def construct(env: Environment, choose: Choose) -> GraphStates:
    """Return the terminal state of a sequence of decisions, one state."""
    state, decide = env.initial_states(1), _set_place if _has_places(env) else _act
    for step in count():
        _, legal = env.forward_masks(state).positions()
        actions = list(zip(*(column.tolist() for column in legal.parts), strict=True))
        action = _STOP if actions == [_STOP] else decide(env, actions, step, choose)
        if action == _STOP:
            break
        state = env.apply(state, _batch(action))
    return state


def decisions_of(env: Environment, state: GraphStates) -> list[Decision]:
    """Return the decisions that construct one terminal state, up to isomorphism.

    Of the many orders in which a graph can be built, it is the one whose inverse removes later nodes first.
    """
    if _has_places(env):
        return _decisions_of_places(env, state)
    decisions = []
    for step, (kind, row, column) in enumerate(_actions_of(env, state)):
        names, sizes = _names(step, kind), _sizes(env, kind)
        decisions += [
            Decision(name, size, choice)
            for name, size, choice in zip(names, sizes, (env.forward_types.index(kind), row, column), strict=True)
            if size > 1
        ]
    return decisions


def _has_places(env: Environment) -> bool:
    return isinstance(env, SlotEnv) and not any(attribute.counted for attribute in env.vocabulary.node_attributes)


def _decisions_of_places(env: Environment, state: GraphStates) -> list[Decision]:
    """Return the decisions of the places in the order in which they can be set."""
    decisions, places = [], {name: place for place, name in enumerate(env.vocabulary.node_types)}

    def choose(name: str, size: int) -> int:
        value = int(state.node_attr[0, places[name.removeprefix(_STOP_BEFORE)], 0])
        decisions.append(Decision(name, size, int(value < 0) if name.startswith(_STOP_BEFORE) else value))
        return decisions[-1].choice

    construct(env, choose)
    return decisions


def _set_place(env: Environment, actions: Sequence[Action], step: int, choose: Choose) -> Action:
    """Choose the value of the first place that can be set, or Stop where it is legal."""
    place = min(row for kind, row, _ in actions if kind != _STOP[0])
    name = env.vocabulary.node_types[place]
    if _STOP in actions and choose(_STOP_BEFORE + name, 2):
        return _STOP
    columns = {column for kind, row, column in actions if row == place and kind != _STOP[0]}
    size = env.vocabulary.num_columns(GraphActionType.SetNodeAttr)
    return int(GraphActionType.SetNodeAttr), place, _next_legal(columns, choose(name, size))


def _act(env: Environment, actions: Sequence[Action], step: int, choose: Choose) -> Action:
    """Choose the kind, the row and the column of an action."""
    prefix: Action | tuple = ()
    for part in range(3):
        legal = {action[part] for action in actions if action[:part] == prefix}
        legal = legal if part else set(map(env.forward_types.index, legal))
        kind = prefix[0] if prefix else _STOP[0]
        name, size = _names(step, kind)[part], _sizes(env, kind)[part]
        choice = _next_legal(legal, choose(name, size)) if size > 1 else min(legal)
        prefix = (*prefix, choice if part else int(env.forward_types[choice]))
    return prefix


def _next_legal(legal: set[int], choice: int) -> int:
    """Return a choice where it is legal, otherwise the next legal one, cyclically."""
    return min(legal, key=lambda each: (each < choice, each))


def _names(step: int, kind: int) -> tuple[str, str, str]:
    action = f"step {step}: {GraphActionType(kind).name}"
    return f"step {step}: kind", f"{action} row", f"{action} column"


def _sizes(env: Environment, kind: int) -> tuple[int, int, int]:
    """Return the number of kinds, and of rows and columns of a kind."""
    n = env.vocabulary.max_nodes
    num_rows = 1 if kind == _STOP[0] else n * n if kind in PAIR_TYPES else n
    return len(env.forward_types), num_rows, env.vocabulary.num_columns(GraphActionType(kind))


def _actions_of(env: Environment, state: GraphStates) -> list[Action]:
    """Return the forward actions, Stop included, that build a state when the last node is removed first."""
    stop = _batch(_STOP)
    steps = [Step(state, torch.zeros(1, dtype=torch.int64), stop, stop, torch.zeros(1))]
    while True:
        masks = env.backward_masks(state)
        _, legal = masks.positions()
        if not len(legal):
            break
        action = max(zip(*(column.tolist() for column in legal.parts), strict=True), key=lambda a: _rank(env, a))
        backward = _batch(action)
        before, forward = env.apply(state, backward), env.reverse(state, backward)
        log_backward = -masks.num_actions().log()
        steps.append(Step(before, torch.zeros(1, dtype=torch.int64), forward, backward, log_backward))
        state = before
    trajectory = assembled(env, steps[::-1], Conditioning(torch.zeros(1, 0), torch.ones(1)), Origin.RESAMPLED)
    actions = action_sequences(env, trajectory).actions
    return list(zip(*(column.tolist() for column in actions.parts), strict=True))


def _rank(env: Environment, action: Action) -> tuple[int, ...]:
    """Order backward actions by the last node that they change."""
    kind, row, column = action
    nodes = divmod(row, env.vocabulary.max_nodes) if kind in PAIR_TYPES else (row, row)
    return max(nodes), kind, row, column


def _batch(action: Action) -> ActionBatch:
    return ActionBatch(*(torch.tensor([value]) for value in action))


# Trials per wanted candidate: more are refused by the hard caps, or known.
_MAX_TRIALS = 50
_NUM_SEEDS = 2**32  # numpy's


@dataclass
class TreeParzenConfig:
    """Options of Optuna's sampler."""

    num_startup: int = option(10, "random candidates before the estimator is used", AT_LEAST_ONE)
    num_candidates: int = option(24, "samples of the estimator of which the best is proposed", AT_LEAST_ONE)
    without_repeats: bool = option(False, "propose no architecture twice")


class TreeParzen(SearchMethod):
    """Asks Optuna for each decision of a construction and tells it the score.

    The study is a function of the history: every finished proposal is a trial with the decisions that construct its
    architecture in canonical order. Candidates that are proposed together are running trials (constant liar).
    """

    Config = TreeParzenConfig

    def __init__(self, setup: SearchSetup) -> None:
        super().__init__(setup)
        self._optuna = _import_optuna()
        self._num_read = 0  # proposals of the history
        self._study = self._optuna.create_study(direction="maximize")

    def propose(self, call: int, num: int) -> GraphStates:
        """Return up to `num` candidates, fewer where the caps refuse nearly all, or nearly all are known."""
        options, trials, parts, codes = self.setup.config.options, [], [], set[int]()
        seed = stream_seed(self.setup.seed, call) % _NUM_SEEDS
        with warnings.catch_warnings(action="ignore"):  # that some arguments are experimental
            self._study.sampler = self._optuna.samplers.TPESampler(
                n_startup_trials=options.num_startup,
                n_ei_candidates=options.num_candidates,
                constant_liar=True,
                seed=seed,
            )
            while len(parts) < num and len(trials) < _MAX_TRIALS * num:
                trial = self._study.ask()
                trials.append(trial)
                state = construct(
                    self.env, lambda name, size, trial=trial: trial.suggest_categorical(name, range(size))
                )
                if bool(is_allowed(self.setup, state)) and (not options.without_repeats or self._is_new(state, codes)):
                    parts.append(state)
        for trial in trials:  # a failed trial is ignored: the result is added by `observe`
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        return GraphStates.cat(parts) if parts else self.env.initial_states(1)[:0]

    def observe(self, round: int) -> Mapping[str, float]:
        """Add the finished proposals to the study."""
        proposals = self.history.proposals[self._num_read :]
        self._num_read = len(self.history.proposals)
        for proposal in proposals:
            state = self.history.states[torch.tensor([proposal.position])]
            self._study.add_trial(self._trial(state, proposal.score))
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._num_read = 0
        self._study = self._optuna.create_study(direction="maximize")
        self.observe(0)

    def _is_new(self, state: GraphStates, codes: set[int]) -> bool:
        """Return whether one terminal state is unknown and its code not in `codes`, and add the code."""
        code = self.env.identify(state)
        return bool(first_mask(code, codes) & self.history.is_unknown(code))

    def _trial(self, state: GraphStates, score: float) -> Any:
        categorical, decisions = self._optuna.distributions.CategoricalDistribution, decisions_of(self.env, state)
        return self._optuna.trial.create_trial(
            params={decision.name: decision.choice for decision in decisions},
            distributions={decision.name: categorical(range(decision.num_choices)) for decision in decisions},
            value=score,
        )


def _import_optuna() -> Any:
    """Return the module, without its messages. Raises UserError where it is not installed."""
    try:
        import optuna
    except ImportError:
        raise UserError("search.method=tpe: missing package optuna: pip install 'gflownet[search]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
