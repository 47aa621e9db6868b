"""The evaluator as one rollout uses it: what was scored earlier in the step is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gflownet.evaluation.evaluator import Evaluation, Evaluator
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates


class StepScorer:
    """Scores terminal states; a graph that came up before in the same step is neither asked for nor counted again."""

    def __init__(self, env: Environment, evaluator: Evaluator, *, step: int) -> None:
        self.evaluations: list[Evaluation] = []  # of all states scored so far, in order
        self.keys: list[str] = []  # canonical keys of those states
        self._env, self._evaluator, self._step = env, evaluator, step
        self._known: dict[str, Evaluation] = {}

    def scores(self, terminal: GraphStates) -> Tensor:
        """Return what rewards are made of, of terminal states [B]: scores [B], or utilities [B, K] of objectives."""
        graphs = [self._env.terminal(terminal, i) for i in range(len(terminal))]
        keys = [graph.canonical_key() for graph in graphs]
        new = [i for i, key in enumerate(keys) if key not in self._known]
        asked = self._evaluator.evaluate([graphs[i] for i in new], step=self._step) if new else []
        found = dict(zip(new, asked, strict=True))
        evaluations = [found.get(i) or replace(self._known[key], cached=True) for i, key in enumerate(keys)]
        for i, evaluation in found.items():
            self._known.setdefault(keys[i], evaluation)
        self.evaluations += evaluations
        self.keys += keys
        return scores_of(evaluations)


def scores_of(evaluations: Sequence[Evaluation]) -> Tensor:
    """Return scores [B], or the utilities [B, K] of several objectives."""
    return torch.tensor([evaluation.utilities or evaluation.score for evaluation in evaluations])
