"""The spaces and learners of race_torchgfn.py: this project's learner, and torchgfn's in its own process.

Letters: S states, N places.
"""

from __future__ import annotations

import gc
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gflownet.certificate.exact import (
    StateGraph,
    enumerate_states,
    forward_scores,
    policy_log_prob,
    target_distribution,
    terminating_distribution,
    total_variation,
)
from gflownet.data.replay import draw
from gflownet.data.sampler import Exploration, sample_backward
from gflownet.data.source import Rollout
from gflownet.envs.slots import BitSequenceEnv, HypergridEnv
from gflownet.evaluation.conditioning import Conditioning
from gflownet.learning import learner as learning
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.config import OBJECTIVES, AlgoConfig, OptimizerConfig
from gflownet.policy.config import ModelConfig
from gflownet.policy.mlp import MLPPolicy
from scripts.peers.process import PeerError, PeerProcess
from tests.sampled_rollouts import sampled_rollouts

WIDTH, NUM_LAYERS = 256, 2  # torchgfn's default MLP
LEARNING_RATE_LOG_Z = 0.1  # of torchgfn's scripts; our default too
BUFFER = 2_048  # trajectories; torchgfn's train_hypergrid.py
CLIP = 1.0  # norm of the gradient; torchgfn's train_hypergrid_simple.py
_EDGE = 1e-6  # torchgfn's tolerance for coordinates on the border of a ring
_MODES_SEED = 0


@dataclass(frozen=True)
class EnumeratedSpace:
    """An environment with all its states and their log-rewards [S]."""

    env: Environment
    graph: StateGraph
    log_reward: Tensor

    def rewards_of(self, states: GraphStates) -> Tensor:
        """Return the log-rewards of states, looked up by identity, [B]."""
        return self.log_reward[self.graph.locate(self.env.identify(states))]

    def lexicographic_target(self) -> Tensor:
        """Return the target over the terminal states in lexicographic order of their values, float64."""
        terminal = self.graph.terminal
        rows = self.graph.states.node_attr[terminal][..., 0].double().tolist()
        order = torch.tensor(sorted(range(len(rows)), key=rows.__getitem__))
        return self.log_reward[terminal].double().softmax(0)[order]


@dataclass(frozen=True)
class RaceSpace:
    """A space, as a message to torchgfn's process and as our environment."""

    name: str
    message: Mapping[str, Any]
    build: Callable[[], EnumeratedSpace]


def hypergrid(num_dims: int, side: int) -> RaceSpace:
    """Return the hypergrid with the original reward (Bengio et al. 2021, section 4.1): R0 0.1, R1 0.5, R2 2."""

    def build() -> EnumeratedSpace:
        env = HypergridEnv(num_dims, side)
        graph = enumerate_states(env)
        coordinates = graph.states.node_attr[..., 0].double() + 1
        off_centre = (coordinates / (side - 1) - 0.5).abs()  # [S, N]
        outer = (off_centre > 0.25 + _EDGE).all(1)
        ring = ((off_centre > 0.3 + _EDGE) & (off_centre < 0.4 - _EDGE)).all(1)
        return EnumeratedSpace(env, graph, (0.1 + 0.5 * outer + 2.0 * ring).log())

    name = f"hypergrid {' x '.join([str(side)] * num_dims)}"
    return RaceSpace(name, {"kind": "hypergrid", "num_dims": num_dims, "side": side}, build)


def bit_sequences(num_bits: int, word_bits: int, num_modes: int) -> RaceSpace:
    """Return bit sequences with log-reward -(bits that differ from the nearest mode) (Malkin et al. 2022, 5.3)."""
    generator = torch.Generator().manual_seed(_MODES_SEED)
    modes = torch.randint(0, 2, (num_modes, num_bits), generator=generator)

    def build() -> EnumeratedSpace:
        env = BitSequenceEnv(num_bits, word_bits)
        graph = enumerate_states(env)
        words = graph.states.node_attr[..., 0].long()
        bits = (words[..., None] >> torch.arange(word_bits - 1, -1, -1) & 1).flatten(1)  # [S, num_bits]
        distance = (bits[:, None] != modes).sum(2).amin(1)
        return EnumeratedSpace(env, graph, -distance.float())

    message = {"kind": "bits", "num_bits": num_bits, "word_bits": word_bits, "modes": modes.tolist()}
    return RaceSpace(f"{num_bits} bits in words of {word_bits}, {num_modes} modes", message, build)


@dataclass(frozen=True)
class Setting:
    """Training options of a learner."""

    objective: str
    batch: int  # trajectories sampled per step
    replay: int  # replayed trajectories per sampled one, drawn from the last BUFFER
    updates: int  # optimiser steps per step, each on the new trajectories and on newly drawn replayed ones
    learning_rate: float
    is_backward: bool  # replay trajectories drawn backward from remembered terminal states, once per step
    temperature: float = 1.0  # of the sampling policy; above 1 it explores

    def __str__(self) -> str:
        """Return e.g. `64 + 192 x 4, 0.001`."""
        kind = " backward" if self.is_backward else ""
        replay = f" + {self.batch * self.replay}{kind}" if self.replay else ""
        updates = f" x {self.updates}" if self.updates > 1 else ""
        temperature = f", temperature {self.temperature:g}" if self.temperature != 1 else ""
        return f"{self.batch}{replay}{updates}, {self.learning_rate:g}{temperature}"


@dataclass(frozen=True)
class Progress:
    """CPU seconds of some training steps and the exact total variation after them."""

    cpu_seconds: float
    total_variation: float


class Learner(ABC):
    """A policy in training."""

    @abstractmethod
    def train(self, steps: int) -> Progress:
        """Take training steps; the CPU time excludes the measurement."""

    @abstractmethod
    def close(self) -> None:
        """Release the learner."""


class OurLearner(Learner):
    """The product's learner with its MLP policy; remembered terminal states are distinct and drawn evenly."""

    def __init__(self, space: EnumeratedSpace, setting: Setting, *, seed: int) -> None:
        torch.manual_seed(seed)
        self.generator = torch.Generator().manual_seed(seed + 1_000)
        self.space, self.setting = space, setting
        self.context = GraphBuildingEnvContext(space.env).with_layout(MLPPolicy.layout)
        algo = AlgoConfig(method=setting.objective)
        # State flows have the policy's learning rate, as in torchgfn.
        algo.tb.Z_learning_rate = LEARNING_RATE_LOG_Z if setting.objective == "tb" else setting.learning_rate
        policy = MLPPolicy(self.context, ModelConfig(name="mlp", num_layers=NUM_LAYERS, num_emb=WIDTH))
        self.learner = learning.Learner(
            policy,
            OBJECTIVES.load(setting.objective)(self.context, algo),
            self.context,
            config=OptimizerConfig(learning_rate=setting.learning_rate, schedule="constant", clip_grad_param=CLIP),
            options=learning.LearnerOptions(
                num_steps=1,  # constant rates, and all earlier batches from the second step on
                num_updates=setting.updates,
                num_remembered=0 if setting.is_backward else setting.replay,
                memory_capacity=BUFFER // setting.batch,
                seed=seed,
            ),
        )
        self.terminal = space.env.initial_states(0)
        self.target = target_distribution(space.graph, space.log_reward)
        self._rollouts = self.rollouts()
        gc.collect()
        gc.freeze()  # exclude long-lived objects from later collections

    def train(self, steps: int) -> Progress:
        """Take training steps as the trainer does."""
        start = time.process_time()
        for _ in range(steps):
            self.learner.learn(next(self._rollouts))
        seconds, graph = time.process_time() - start, self.space.graph
        scores = forward_scores(self.context, self.learner.policy, torch.zeros(1, 1))
        distribution = terminating_distribution(graph, policy_log_prob(graph, scores, chunk=4096))
        return Progress(seconds, total_variation(distribution, self.target))

    def close(self) -> None:
        """Release nothing: it is collected."""

    def rollouts(self) -> Iterator[Rollout]:
        """Yield sampled batches, with backward trajectories where the setting has them."""
        conditioning = Conditioning(torch.zeros(self.setting.batch, 1), torch.ones(self.setting.batch))
        sampled = sampled_rollouts(
            self.context,
            self.learner.policy,
            log_reward=lambda states, _: self.space.rewards_of(states),
            conditioning=lambda _: conditioning,
            generator=self.generator,
            exploration=Exploration(temperature=self.setting.temperature),
        )
        return map(self.with_backward, sampled) if self.setting.is_backward else sampled

    def with_backward(self, rollout: Rollout) -> Rollout:
        """Add trajectories into remembered terminal states, each state equally often."""
        terminals = GraphStates.cat([self.terminal, rollout.trajectories.terminal])
        codes, owner = self.space.env.identify(terminals).unique(return_inverse=True)
        first = torch.empty_like(codes).scatter_(0, owner, torch.arange(len(owner)))
        self.terminal = terminals[first]
        num = self.setting.batch * self.setting.replay
        states = self.terminal[draw(torch.ones(len(first)), num, self.generator)]
        conditioning = Conditioning(torch.zeros(num, 1), torch.ones(num))
        backward = sample_backward(self.context, states, conditioning=conditioning, generator=self.generator)
        backward = backward.with_rewards(self.space.rewards_of(states))
        return replace(rollout, trajectories=TrajectoryBatch.cat([rollout.trajectories, backward]))


class PeerLearner(Learner):
    """torchgfn's learner in its own process.

    Raises:
        PeerError: the process failed, or its target distribution differs from ours.
    """

    def __init__(
        self, peer: PeerProcess, space: RaceSpace, enumerated: EnumeratedSpace, setting: Setting, *, seed: int
    ) -> None:
        self.peer, self.name = peer, f"{space.name}, {setting}, seed {seed}"
        shared = {"learning_rate_log_z": LEARNING_RATE_LOG_Z, "width": WIDTH, "num_layers": NUM_LAYERS}
        options = {**asdict(setting), **shared, "buffer": BUFFER, "clip": CLIP, "seed": seed}
        reply = self._request("start", space=space.message, setting=options)
        ours, theirs = enumerated.lexicographic_target(), torch.tensor(reply["target"], dtype=torch.float64)
        if len(ours) != len(theirs) or not torch.allclose(ours, theirs, rtol=1e-5, atol=0):
            raise PeerError(f"{space.name}: expected the same target on both sides, got two")

    def train(self, steps: int) -> Progress:
        """Take training steps as torchgfn's scripts do."""
        return Progress(**self._request("train", steps=steps))

    def close(self) -> None:
        """Delete the learner in the peer's process."""
        self._request("drop")

    def _request(self, do: str, **fields: Any) -> dict[str, Any]:
        return self.peer.request({"do": do, "name": self.name, **fields})
