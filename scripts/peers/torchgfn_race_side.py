"""torchgfn's side of race_torchgfn.py, run in torchgfn's environment by `PeerProcess`.

Each JSON line is answered with one: `{"do": "start", "name": ..., "space": ..., "setting": ...}` builds a learner and
returns the target distribution in lexicographic order of the terminal states; `{"do": "train", "name": ..., "steps":
n}` takes n training steps and returns their CPU time and the exact total variation after them, measured outside that
time; `{"do": "drop", "name": ...}` deletes the learner. Environments, networks, samplers, losses and replay buffer are
torchgfn's own.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import gc
from dataclasses import dataclass
from time import process_time
from typing import Any

import torch
from gfn.containers import ReplayBuffer, TerminatingStateBuffer
from gfn.estimators import DiscretePolicyEstimator, ScalarEstimator
from gfn.gflownet import DBGFlowNet, SubTBGFlowNet, TBGFlowNet
from gfn.gym import BitSequence, HyperGrid
from gfn.preprocessors import KHotPreprocessor, Preprocessor
from gfn.samplers import Sampler
from gfn.utils.modules import MLP, DiscreteUniform
from process import serve
from torch import Tensor


@dataclass(frozen=True)
class Setting:
    """Training options of a learner."""

    objective: str  # tb, db or subtb
    batch: int
    learning_rate: float
    learning_rate_log_z: float
    width: int
    num_layers: int
    replay: int  # replayed trajectories per sampled one; 0: no replay buffer
    is_backward: bool  # the buffer holds terminal states; trajectories are drawn backward from them, once per step
    updates: int  # optimiser steps per step
    buffer: int  # capacity in trajectories
    clip: float  # norm of the gradient; 0: no clipping
    temperature: float  # of the sampling policy
    seed: int


class WordPreprocessor(Preprocessor):
    """One-hot words with an additional slot for an unwritten word, like KHotPreprocessor for hypergrids."""

    def __init__(self, num_words: int, num_places: int) -> None:
        super().__init__(output_dim=(num_words + 1) * num_places)
        self.num_words = num_words

    def preprocess(self, states: Any) -> Tensor:
        """Return [B, places * (words + 1)]."""
        return torch.nn.functional.one_hot(states.tensor + 1, self.num_words + 1).flatten(-2)


class Learner:
    """An environment, a GFlowNet in training on it, and its exact distribution."""

    def __init__(self, space: dict[str, Any], setting: Setting) -> None:
        torch.manual_seed(setting.seed)
        self.setting = setting
        self.env, preprocessor, self.is_tree = _environment(space)
        self.gflownet = _gflownet(self.env, preprocessor, setting, is_tree=self.is_tree)
        log_z = [parameter for name, parameter in self.gflownet.named_parameters() if name == "logZ"]
        networks = [parameter for name, parameter in self.gflownet.named_parameters() if name != "logZ"]
        groups = [{"params": networks}, *([{"params": log_z, "lr": setting.learning_rate_log_z}] if log_z else [])]
        self.optimiser = torch.optim.Adam(groups, lr=setting.learning_rate)
        kind = TerminatingStateBuffer if setting.is_backward else ReplayBuffer
        self.buffer = kind(self.env, capacity=setting.buffer) if setting.replay else None
        self.levels = _levels(self.env)
        self.terminal = torch.cat([level.states[level.stops] for level in self.levels])
        self.order = self.terminal.unique(dim=0, return_inverse=True)[1].argsort()  # lexicographic
        reward = self.env.log_reward(self.env.States(self.terminal)).double().exp()
        self.target = (reward / reward.sum())[self.order]
        gc.collect()
        gc.freeze()  # exclude long-lived objects from later collections

    def train(self, steps: int) -> float:
        """Take training steps and return their CPU seconds."""
        start = process_time()
        for _ in range(steps):
            self._step()
        return process_time() - start

    def _step(self) -> None:
        is_tempered = self.setting.temperature != 1
        keeps = self.buffer is None and self.setting.updates == 1 and not is_tempered  # log-probabilities of sampling
        options = {"temperature": self.setting.temperature} if is_tempered else {}
        trajectories = self.gflownet.sample_trajectories(self.env, n=self.setting.batch, save_logprobs=keeps, **options)
        samples = self.gflownet.to_training_samples(trajectories)
        if self.buffer is not None:
            with torch.no_grad():
                self.buffer.add(trajectories if self.setting.is_backward else samples)
        if self.setting.is_backward:
            samples.extend(self.gflownet.to_training_samples(self._sample_backward()))
        for _ in range(self.setting.updates):
            self._update(samples, keeps=keeps)

    def _update(self, samples: Any, *, keeps: bool) -> None:
        if self.buffer is not None and not self.setting.is_backward:
            with torch.no_grad():
                samples = self.buffer.sample(n_samples=self.setting.batch * (1 + self.setting.replay))
        self.optimiser.zero_grad()
        loss = self.gflownet.loss(self.env, samples, recalculate_all_logprobs=not keeps)
        loss.backward()
        if self.setting.clip:
            torch.nn.utils.clip_grad_norm_(self.gflownet.parameters(), self.setting.clip)
        self.optimiser.step()

    @torch.no_grad()
    def _sample_backward(self) -> Any:
        """Return trajectories drawn backward from remembered terminal states, as train_hypergrid_buffer.py does."""
        assert self.buffer is not None, "a setting with backward replay has a buffer"
        remembered = self.buffer.sample(n_samples=self.setting.batch * self.setting.replay)
        sampler = Sampler(estimator=self.gflownet.pb)
        backward = sampler.sample_trajectories(self.env, states=remembered.states, save_logprobs=False)
        reversed_batch = backward.reverse_backward_trajectories()
        reversed_batch._log_rewards = remembered.log_rewards
        return reversed_batch

    @torch.no_grad()
    def distribution(self) -> Tensor:
        """Return the probability of each terminal state, in lexicographic order."""
        flow, probabilities = torch.ones(1, dtype=torch.float64), []
        for level in self.levels:
            states = self.env.States(level.states)
            policy = self.gflownet.pf
            log_prob = policy.to_probability_distribution(states, policy(states)).logits.double().log_softmax(-1)
            moved = flow[:, None] * log_prob.exp()
            probabilities.append(moved[level.stops, -1])
            flow = torch.zeros(level.num_next, dtype=torch.float64)
            flow.index_add_(0, level.child, moved[level.parent, level.action])
        return torch.cat(probabilities)[self.order]


@dataclass(frozen=True)
class Level:
    """The n states at one distance from the initial state, and the results of their m non-exit actions."""

    states: Tensor  # [n, places]
    stops: Tensor  # [n] bool, whether the exit action is legal
    parent: Tensor  # [m] index of the state
    action: Tensor  # [m]
    child: Tensor  # [m] index in the next level
    num_next: int


def _levels(env: Any) -> list[Level]:
    levels, states = [], env.s0[None]
    while len(states):
        masks = env.States(states).forward_masks
        parent, action = masks[:, :-1].nonzero(as_tuple=True)
        before = env.States(states[parent].clone())
        after = env._step(before, env.actions_from_tensor(action[:, None])).tensor if len(parent) else states[:0]
        following, child = torch.unique(after, dim=0, return_inverse=True)
        levels.append(Level(states, masks[:, -1], parent, action, child, len(following)))
        states = following
    return levels


def _environment(space: dict[str, Any]) -> tuple[Any, Preprocessor, bool]:
    """Return the environment of a space, the preprocessor of its states, and whether its state graph is a tree."""
    if space["kind"] == "hypergrid":
        env = HyperGrid(space["num_dims"], space["side"], reward_fn_str="original", validate_modes=False)
        return env, KHotPreprocessor(space["side"], space["num_dims"]), False
    modes = torch.tensor(space["modes"])
    env = BitSequence(space["word_bits"], space["num_bits"], len(modes), H=modes)
    return env, WordPreprocessor(2 ** space["word_bits"], space["num_bits"] // space["word_bits"]), True


def _gflownet(env: Any, preprocessor: Preprocessor, setting: Setting, *, is_tree: bool) -> Any:
    """Return the GFlowNet with networks as in torchgfn's scripts: the flow shares the policy's trunk, P_B is fixed."""
    sizes = {"hidden_dim": setting.width, "n_hidden_layers": setting.num_layers}
    network = MLP(preprocessor.output_dim, env.n_actions, **sizes)
    pf = DiscretePolicyEstimator(network, env.n_actions, preprocessor=preprocessor)
    pb = None  # a state of a tree has one parent
    if not is_tree:
        uniform = DiscreteUniform(env.n_actions - 1)
        pb = DiscretePolicyEstimator(uniform, env.n_actions, preprocessor=preprocessor, is_backward=True)
    if setting.objective == "tb":
        return TBGFlowNet(pf, pb, init_logZ=0.0, constant_pb=is_tree)
    flow = ScalarEstimator(MLP(preprocessor.output_dim, 1, trunk=network.trunk), preprocessor=preprocessor)
    kind = {"db": DBGFlowNet, "subtb": SubTBGFlowNet}[setting.objective]
    return kind(pf, pb, logF=flow, constant_pb=is_tree)


class Server:
    """Learners by name."""

    def __init__(self) -> None:
        self._learners: dict[str, Learner] = {}

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to one message."""
        name = message["name"]
        if message["do"] == "start":
            self._learners[name] = Learner(message["space"], Setting(**message["setting"]))
            return {"target": self._learners[name].target.tolist()}
        if message["do"] == "drop":
            del self._learners[name]
            return {}
        if message["do"] != "train":
            raise ValueError(f"do: expected start, train or drop, got {message['do']!r}")
        learner = self._learners[name]
        cpu_seconds = learner.train(message["steps"])
        distance = float((learner.distribution() - learner.target).abs().sum() / 2)
        return {"cpu_seconds": cpu_seconds, "total_variation": distance}


if __name__ == "__main__":
    serve(Server().answer)
