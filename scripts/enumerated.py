"""Spaces whose states and log-rewards are all known, and policies trained on them by the product."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from gflownet.config import load_config
from gflownet.data.workers import rollouts_here
from gflownet.evaluation.config import scoring_context
from gflownet.evaluation.store import EvaluationStore
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates
from gflownet.metrics.exact import BackwardActions, StateGraph, enumerate_backward, enumerate_states
from gflownet.trainer import GFNTrainer


class EnumeratedSpace:
    """A space whose states and log-rewards are all known."""

    def __init__(self, env: Environment, graph: StateGraph, log_reward: Tensor) -> None:
        self.env, self.graph, self.log_reward = env, graph, log_reward

    @classmethod
    def of(cls, trainer: GFNTrainer, *, graph: StateGraph | None = None) -> EnumeratedSpace:
        """Return the space of a run with one conditioning; `graph` saves the enumeration of its states."""
        env, task = trainer.env, trainer.task
        graph = enumerate_states(env) if graph is None else graph
        seed = trainer.config.seed
        scores = [task.evaluate(env.terminal(graph.states, i), seed=seed).value for i in graph.terminal.tolist()]
        conditioning = task.sample_conditioning(len(scores), generator=torch.Generator().manual_seed(seed))
        log_reward = torch.zeros(len(graph))
        log_reward[graph.terminal] = task.log_reward(torch.tensor(scores), conditioning)
        return cls(env, graph, log_reward)

    def rewards_of(self, states: GraphStates) -> Tensor:
        """Return the log-rewards of states, looked up by identity, [B]."""
        return self.log_reward[self.graph.locate(self.env.identify(states))]

    @cached_property
    def backward(self) -> BackwardActions:
        """Every backward action of every state."""
        return enumerate_backward(self.env, self.graph)


@dataclass(frozen=True)
class Trained:
    """A run after its last step, and the CPU seconds of its training."""

    trainer: GFNTrainer
    seconds: float


def train(overrides: Sequence[str], *, config: str = "exact") -> Trained:
    """Return a run of a config after its last training step; it leaves no folder behind."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = GFNTrainer(load_config(config, [*overrides, f"log_dir={folder}", "wandb.mode=disabled"]))
        start = time.process_time()
        context = scoring_context(trainer.config)
        with EvaluationStore(Path(folder) / "evaluations.sqlite", context=context) as store:
            rollouts = rollouts_here(
                trainer.source,
                policy=trainer.learner.sampling,
                evaluator=trainer.build_evaluator(store),
                replay=trainer.replay,
                first_step=1,
            )
            for _ in trainer.fit(rollouts):
                pass
    return Trained(trainer, time.process_time() - start)
