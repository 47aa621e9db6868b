"""A tabular policy over the classes of an enumerated space, and exact flows computed with dictionaries."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from gflownet.certificate.exact import StateGraph
from gflownet.mdp.action import GraphActionType
from gflownet.mdp.categorical import GraphActionCategorical
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.dense_layout import DenseLayout
from gflownet.mdp.environment import Environment
from gflownet.mdp.layout import Batch
from gflownet.mdp.policy import TwoWayPolicy
from gflownet.mdp.states import GraphStates

Pair = tuple[int, int]


class RememberingContext(GraphBuildingEnvContext):
    """A context that adds the states to the batch, for the tabular policy."""

    def to_batch(self, states: GraphStates) -> Batch:
        batch: Any = super().to_batch(states)
        batch["states"] = states
        return batch


@dataclass(frozen=True)
class Classes:
    """Transition counts between the isomorphism classes of an enumerated space; position 0 is the initial state."""

    env: Environment
    graph: StateGraph
    num_forward: dict[Pair, int]  # (s, s') -> labelled actions of a representative of s that lead to s'
    num_backward: dict[Pair, int]  # (s', s) -> labelled backward actions of a representative of s' that lead to s
    symmetries: list[float]  # |Aut(s)|
    may_stop: set[int]
    positions: dict[int, int]  # env.identify -> position

    @property
    def by_level(self) -> list[int]:
        """Positions in order of decreasing level."""
        return sorted(range(len(self.graph)), key=lambda s: -int(self.graph.level[s]))

    def children(self, s: int) -> list[int]:
        return self._children[s]

    def parents(self, s: int) -> list[int]:
        return self._parents[s]

    @cached_property
    def _children(self) -> dict[int, list[int]]:
        return _second_by_first(self.num_forward)

    @cached_property
    def _parents(self) -> dict[int, list[int]]:
        return _second_by_first(self.num_backward)

    def position_of(self, states: GraphStates) -> list[int]:
        """Return the position of each state; one that was seen before is looked up by its arrays."""
        nodes, edges = (states.node_type, states.node_attr), (states.edge_type, states.edge_attr, states.edge_order)
        keys = [row.tobytes() for row in torch.cat([array.flatten(1) for array in (*nodes, *edges)], 1).numpy()]
        missing = [i for i, key in enumerate(keys) if key not in self._seen]
        if missing:
            codes = self.env.identify(states[torch.tensor(missing)]).tolist()
            self._seen.update((keys[i], self.positions[code]) for i, code in zip(missing, codes, strict=True))
        return [self._seen[key] for key in keys]

    @cached_property
    def _seen(self) -> dict[bytes, int]:
        return {}


def _second_by_first(pairs: Iterable[Pair]) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = defaultdict(list)
    for first, second in pairs:
        groups[first].append(second)
    return groups


def classes_of(env: Environment, graph: StateGraph) -> Classes:
    states = graph.states
    positions = {code: i for i, code in enumerate(env.identify(states).tolist())}
    forward: dict[Pair, int] = {}
    owner, actions = env.forward_masks(states).positions()
    moves = actions.kind != int(GraphActionType.Stop)
    owner, actions = owner[moves], actions[moves]
    for s, code in zip(owner.tolist(), env.identify(env.apply(states[owner], actions)).tolist(), strict=True):
        pair = s, positions[code]
        forward[pair] = forward.get(pair, 0) + 1
    backward: dict[Pair, int] = {}
    owner, actions = env.backward_masks(states).positions()
    for s, code in zip(owner.tolist(), env.identify(env.apply(states[owner], actions)).tolist(), strict=True):
        pair = s, positions[code]
        backward[pair] = backward.get(pair, 0) + 1
    return Classes(
        env, graph, forward, backward, graph.num_automorphisms.tolist(), set(graph.terminal.tolist()), positions
    )


@dataclass(frozen=True)
class Flows:
    """Log-flows through states, log P_F and log P_B of one labelled action of every pair of classes."""

    log_flow: dict[int, float]
    log_forward: dict[tuple[int, int, bool], float]  # (s, s', is Stop); behind Stop, s' = s
    log_backward: dict[Pair, float]  # (s', s)


def uniform_backward(space: Classes) -> dict[Pair, float]:
    """Return log of one over the number of labelled backward actions."""
    total: dict[int, int] = {}
    for (after, _), count in space.num_backward.items():
        total[after] = total.get(after, 0) + count
    return {pair: -math.log(total[pair[0]]) for pair in space.num_backward}


def random_backward(space: Classes, *, seed: int) -> dict[Pair, float]:
    """Return a random log P_B that is equal for equivalent actions and normalised over labelled actions."""
    generator = torch.Generator().manual_seed(seed)
    raw = {pair: math.exp(float(torch.randn((), generator=generator))) for pair in space.num_backward}
    total: dict[int, float] = {}
    for pair, value in raw.items():
        total[pair[0]] = total.get(pair[0], 0.0) + value * space.num_backward[pair]
    return {pair: math.log(value / total[pair[0]]) for pair, value in raw.items()}


def maximum_entropy_backward(space: Classes, *, by_class: bool = False) -> tuple[dict[Pair, float], dict[int, float]]:
    """Return log P_B of one labelled action, n(s) / n(s'), and log n(s), the number of paths from the initial state.

    `by_class`: equivalent actions count as one path and share its probability.
    """
    num = dict.fromkeys(space.num_backward, 1) if by_class else space.num_backward
    num_paths = {0: 1.0}
    for s in reversed(space.by_level):
        if s:
            num_paths[s] = sum(num_paths[p] * num[s, p] for p in space.parents(s))
    log_num_paths = {s: math.log(n) for s, n in num_paths.items()}
    log_backward = {
        (after, before): log_num_paths[before] - log_num_paths[after] + math.log(num[after, before] / count)
        for (after, before), count in space.num_backward.items()
    }
    return log_backward, log_num_paths


def labelled_flows(space: Classes, log_reward: Tensor, log_backward: dict[Pair, float]) -> Flows:
    """F(s) = R(s) + sum over labelled actions of F(s') P_B: detailed balance in labelled counting.

    `log_reward` [S]: with or without log |Aut|.
    """
    flow: dict[int, float] = {}
    log_forward: dict[tuple[int, int, bool], float] = {}
    for s in space.by_level:
        outflow = {(s, s, True): math.exp(float(log_reward[s]))} if s in space.may_stop else {}
        for after in space.children(s):
            outflow[s, after, False] = flow[after] * math.exp(log_backward[after, s])
        flow[s] = sum(value * (1 if stop else space.num_forward[s, t]) for (_, t, stop), value in outflow.items())
        log_forward |= {key: math.log(value) - math.log(flow[s]) for key, value in outflow.items()}
    return Flows({s: math.log(f) for s, f in flow.items()}, log_forward, log_backward)


def class_flows(space: Classes, log_reward: Tensor, log_backward: dict[Pair, float]) -> Flows:
    """Return the flows with equivalent actions counted as one; `log_backward` is per labelled action."""
    flow: dict[int, float] = {}
    log_forward: dict[tuple[int, int, bool], float] = {}
    for s in space.by_level:
        outflow = {(s, s, True): math.exp(float(log_reward[s]))} if s in space.may_stop else {}
        for after in space.children(s):
            outflow[s, after, False] = flow[after] * math.exp(log_backward[after, s]) * space.num_backward[after, s]
        flow[s] = sum(outflow.values())
        for (_, after, stop), value in outflow.items():
            count = 1 if stop else space.num_forward[s, after]
            log_forward[s, after, stop] = math.log(value / count) - math.log(flow[s])
    return Flows({s: math.log(f) for s, f in flow.items()}, log_forward, log_backward)


class TabularPolicy(TwoWayPolicy):
    """Forward logits, backward logits and one scalar per state, as float64 parameters."""

    layout = DenseLayout

    def __init__(
        self,
        context: RememberingContext,
        space: Classes,
        flows: Flows,
        *,
        state_output: Callable[[int], float] = lambda s: 0.0,
        logit_shift: Callable[[int], float] = lambda s: 0.0,
        backward_shift: Callable[[int], float] = lambda s: 0.0,
    ) -> None:
        super().__init__()
        self.context, self.space = context, space
        self.forward_keys = {key: i for i, key in enumerate(flows.log_forward)}
        self.backward_keys = {key: i for i, key in enumerate(flows.log_backward)}
        forward = [value + logit_shift(s) for (s, _, _), value in flows.log_forward.items()]
        backward = [value + backward_shift(after) for (after, _), value in flows.log_backward.items()]
        outputs = [state_output(s) for s in range(len(space.graph))]
        self.forward_logits, self.backward_logits, self.state_outputs = (
            nn.Parameter(torch.tensor(values, dtype=torch.float64)) for values in (forward, backward, outputs)
        )

    def forward(self, batch: Batch, conditioning: Tensor) -> tuple[GraphActionCategorical, Tensor]:
        positions = self.space.position_of(batch["states"])
        return self._forward(batch, positions), self.state_outputs[positions]

    def both(self, batch: Batch, conditioning: Tensor) -> tuple[GraphActionCategorical, GraphActionCategorical, Tensor]:
        states, env = batch["states"], self.space.env
        positions = self.space.position_of(states)
        owner, actions = env.backward_masks(states).positions()
        parents = self.space.position_of(env.apply(states[owner], actions))
        keys = [self.backward_keys[positions[g], p] for g, p in zip(owner.tolist(), parents, strict=True)]
        logits = self._spread(batch, self.context.backward_types, self.backward_logits[keys])
        backward = self.context.backward_categorical(batch, logits)
        return self._forward(batch, positions), backward, self.state_outputs[positions]

    def _forward(self, batch: Batch, positions: list[int]) -> GraphActionCategorical:
        states, env = batch["states"], self.space.env
        owner, actions = env.forward_masks(states).positions()
        children = self.space.position_of(env.apply(states[owner], actions))
        stop = (actions.kind == int(GraphActionType.Stop)).tolist()
        keys = [
            self.forward_keys[positions[g], child, is_stop]
            for g, child, is_stop in zip(owner.tolist(), children, stop, strict=True)
        ]
        logits = self._spread(batch, self.context.action_types, self.forward_logits[keys])
        return self.context.categorical(batch, logits)

    def _spread(self, batch: Batch, kinds, values: Tensor) -> list[Tensor]:
        """Split values in the order of `ActionMasks.positions` into one tensor per action type."""
        logits, start = [], 0
        for kind in kinds:
            mask = batch[f"{kind.field_name}_mask"]
            num = int(mask.sum())
            filled = torch.zeros(mask.shape, dtype=torch.float64)
            logits.append(filled.index_put(mask.nonzero(as_tuple=True), values[start : start + num]))
            start += num
        return logits


def tabular(space: Classes, flows: Flows, *, backward: bool, **options) -> tuple[RememberingContext, TabularPolicy]:
    """Return a context and a policy with these flows, with a backward distribution if `backward` is set."""
    context = RememberingContext(space.env).with_layout(DenseLayout)
    context = context.with_backward() if backward else context
    assert isinstance(context, RememberingContext)
    return context, TabularPolicy(context, space, flows, **options)
