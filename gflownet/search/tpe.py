"""Optuna's tree-structured Parzen estimator (Bergstra et al. 2011), which chooses each action of a construction."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import torch

from gflownet.envs.slots import SlotEnv
from gflownet.errors import UserError
from gflownet.mdp.action import PAIR_TYPES, ActionBatch, GraphActionType
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates
from gflownet.options import AT_LEAST_ONE, option
from gflownet.search.baselines import allowed_states
from gflownet.search.method import SearchMethod, SearchSetup
from gflownet.workers.process import stream_seed

_NUM_SEEDS = 2**32  # numpy's


def construct(env: Environment, choose: Callable[[str, int], int]) -> GraphStates:
    """Return one terminal state: kind, row and column of each action are chosen where several are legal.

    Args:
        env: of the state; named places are set in their order.
        choose: name, number of choices -> a choice; an illegal one is replaced by the next legal one, cyclically.
    """
    state, kinds = env.initial_states(1), env.forward_types
    has_places = isinstance(env, SlotEnv) and not env.vocabulary.node_attributes[0].counted
    for step in count():
        legal = env.forward_masks(state).positions()[1].parts
        actions, label = list(zip(*(part.tolist() for part in legal), strict=True)), f"step {step}"
        if has_places and (places := [row for kind, row, _ in actions if kind != GraphActionType.Stop]):
            actions = [each for each in actions if each[1] == min(places) or each[0] == GraphActionType.Stop]
            label = env.vocabulary.node_types[min(places)]
        kind = kinds[_legal(choose, f"{label}: kind", len(kinds), {kinds.index(each) for each, _, _ in actions})]
        num_rows = env.vocabulary.max_nodes ** (2 if kind in PAIR_TYPES else 1)
        row = _legal(choose, f"{label}: {kind.name} row", num_rows, {each[1] for each in actions if each[0] == kind})
        columns = {each[2] for each in actions if each[:2] == (kind, row)}
        column = _legal(choose, f"{label}: {kind.name} column", env.vocabulary.num_columns(kind), columns)
        if kind == GraphActionType.Stop:
            break
        state = env.apply(state, ActionBatch(*(torch.tensor([value]) for value in (int(kind), row, column))))
    return state


def _legal(choose: Callable[[str, int], int], name: str, num: int, legal: set[int]) -> int:
    choice = choose(name, num) if len(legal) > 1 else 0
    return min(legal, key=lambda each: (each < choice, each))


@dataclass
class TreeParzenConfig:
    """Options of Optuna's sampler."""

    num_startup: int = option(10, "random candidates before the estimator is used", AT_LEAST_ONE)


class TreeParzen(SearchMethod):
    """Asks Optuna for candidates and tells it their scores; candidates of one call are running trials.

    Scores of architectures that it has not proposed are not told.
    """

    Config = TreeParzenConfig

    def __init__(self, setup: SearchSetup) -> None:
        super().__init__(setup)
        try:
            import optuna
        except ImportError:
            raise UserError("search.method=tpe: missing package optuna: pip install 'gflownet[search]'") from None
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna = optuna
        self._choices: dict[int, dict[str, tuple[int, int]]] = {}  # code -> name -> choice, number of choices

    def propose(self, call: int, num: int) -> GraphStates:
        """Return up to `num` candidates, fewer where the caps refuse nearly all."""
        options, seed = self.setup.config.options, stream_seed(self.setup.seed, call) % _NUM_SEEDS

        def ask(num: int) -> GraphStates:
            trials = [study.ask() for _ in range(num)]
            states = GraphStates.cat([construct(self.env, partial(_choose, trial)) for trial in trials])
            for code, trial in zip(self.env.identify(states).tolist(), trials, strict=True):
                sizes = {name: len(each.choices) for name, each in trial.distributions.items()}
                self._choices[code] = {name: (choice, sizes[name]) for name, choice in trial.params.items()}
            return states

        with warnings.catch_warnings(action="ignore"):  # that constant_liar is experimental
            sampler = self._optuna.samplers.TPESampler(
                n_startup_trials=options.num_startup, constant_liar=True, seed=seed
            )
            study: Any = self._optuna.create_study(direction="maximize", sampler=sampler)
            study.add_trials(self._finished())
            return allowed_states(self.setup, num, ask)

    def _finished(self) -> Iterator[Any]:
        """Yield the finished proposals as trials."""
        history, categorical = self.history, self._optuna.distributions.CategoricalDistribution
        codes = self.env.identify(history.states).tolist() if len(history) else []
        for proposal in history.proposals:
            if choices := self._choices.get(codes[proposal.position]):
                params = {name: choice for name, (choice, _) in choices.items()}
                spaces: Any = {name: categorical(range(size)) for name, (_, size) in choices.items()}
                yield self._optuna.trial.create_trial(params=params, distributions=spaces, value=proposal.score)

    def state_dict(self) -> dict[str, Any]:
        return {"choices": dict(self._choices)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._choices = dict(state["choices"])


def _choose(trial: Any, name: str, size: int) -> int:
    return trial.suggest_categorical(name, range(size))
