"""The tree-structured Parzen estimator of Optuna (Bergstra et al. 2011) over the decisions of a construction."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gflownet.errors import UserError
from gflownet.mdp.states import GraphStates
from gflownet.options import AT_LEAST_ONE, option
from gflownet.search.allowed import is_allowed
from gflownet.search.decisions import construct, decisions_of
from gflownet.search.history import first_mask
from gflownet.search.method import SearchMethod, SearchSetup
from gflownet.workers.process import stream_seed

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
        """Rebuild the study from the history."""
        self._num_read = 0
        self._study = self._optuna.create_study(direction="maximize")
        self.observe(0)

    def _is_new(self, state: GraphStates, codes: set[int]) -> bool:
        """Return whether one terminal state is unknown and its code not in `codes`, and add the code."""
        code = self.env.identify(state)
        return bool(first_mask(code, codes) & self.history.is_unknown(code))

    def _trial(self, state: GraphStates, score: float) -> Any:
        """Return a finished trial with the decisions of one terminal state."""
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
