"""The spaces of the race, as either side builds them: torchgfn's rewards, written down a second time.

Letters: S states, N places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gflownet.envs.bit_sequence import BitSequenceEnv
from gflownet.envs.hypergrid import HypergridEnv
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates
from gflownet.metrics.exact import StateGraph, enumerate_states

_EDGE = 1e-6  # torchgfn's tolerance where a coordinate lies on the border of a ring
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


@dataclass(frozen=True)
class RaceSpace:
    """A space to be learned."""

    name: str
    message: Mapping[str, Any]  # what torchgfn's side builds it from
    build: Callable[[], EnumeratedSpace]  # as ours does


def hypergrid(num_dims: int, side: int) -> RaceSpace:
    """Return the hypergrid with the original reward (Bengio et al. 2021, section 4.1): R0 0.1, R1 0.5, R2 2."""

    def build() -> EnumeratedSpace:
        env = HypergridEnv(num_dims, side)
        graph = enumerate_states(env)
        off_centre = (_digits(graph.states.node_attr) / (side - 1) - 0.5).abs()  # [S, N]
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


def lexicographic_target(space: EnumeratedSpace) -> Tensor:
    """Return the target over the terminal states in lexicographic order of their values, float64."""
    terminal = space.graph.terminal
    rows = _digits(space.graph.states.node_attr[terminal]).tolist()
    order = torch.tensor(sorted(range(len(rows)), key=rows.__getitem__))
    return space.log_reward[terminal].double().softmax(0)[order]


def _digits(node_attr: Tensor) -> Tensor:
    """Return coordinates (of words, their number plus 1), [S, N] float64."""
    return node_attr[..., 0].double() + 1
