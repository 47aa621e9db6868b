"""Legal backward actions of an enumerated state space, and backward policies on them.

Letters: S states, M legal forward and K legal backward actions of all states.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gflownet.certificate.exact import Scores, StateGraph
from gflownet.mdp.action import ActionBatch, ActionMasks
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment
from gflownet.mdp.policy import TwoWayPolicy

_CHUNK = 2_000  # states expanded at once, to bound memory


@dataclass(frozen=True)
class BackwardActions:
    """Every labelled backward action, and the inverse of every forward action."""

    child: Tensor  # [K] state before each backward action, ascending
    action: ActionBatch  # K actions
    parent: Tensor  # [K] state after each backward action
    undoing: Tensor  # [M] a backward action that undoes each forward action, up to equivalence; -1 for Stop

    def per_forward(self, log_backward: Tensor) -> Tensor:
        """Return log P_B of undoing each forward action, [M] float64, from the values of the K actions; 0 for Stop."""
        return torch.where(self.undoing < 0, 0.0, log_backward.double()[self.undoing])


def enumerate_backward(env: Environment, graph: StateGraph) -> BackwardActions:
    """Return every legal backward action of every state.

    Raises:
        ValueError: a backward action leads to a state that no forward action reaches.
    """
    children, actions, parents, codes, inverse_codes = [], [], [], [], []
    for first in range(0, len(graph), _CHUNK):
        states = graph.states[first : first + _CHUNK]
        owner, action = positions(env.backward_masks(states))
        children.append(owner + first)
        actions.append(action)
        parents.append(graph.locate(env.identify(env.apply(states[owner], action))))
        codes.append(env.identify_actions(states[owner], action))
    moves = (~graph.stops).nonzero().squeeze(1)
    for part in moves.split(_CHUNK * 10):
        before, action = graph.states[graph.parent[part]], graph.action[part]
        inverse_codes.append(env.identify_actions(env.apply(before, action), env.reverse(before, action)))
    undoing = torch.full_like(graph.parent, -1)
    undoing[moves] = locate(torch.cat(codes), torch.cat(inverse_codes))
    return BackwardActions(torch.cat(children), ActionBatch.cat(actions), torch.cat(parents), undoing)


def positions(masks: ActionMasks) -> tuple[Tensor, ActionBatch]:
    """Return the graph [L] of every legal action, ascending, and the actions."""
    graph, action = masks.positions()
    order = graph.argsort(stable=True)
    return graph[order], action[order]


def locate(table: Tensor, codes: Tensor) -> Tensor:
    """Return a position of each code in the table, [B] int64; every code must be there."""
    position = {code: index for index, code in enumerate(table.tolist())}
    return torch.tensor([position[code] for code in codes.tolist()], dtype=torch.int64)


def class_log_backward(graph: StateGraph) -> Tensor:
    """Return log P_B [M] of each forward action if classes of graphs are counted; 0 for Stop.

    The parent classes of a state are equally likely, and so are the actions from one class to it.
    """
    pairs = graph.parent * len(graph) + graph.child
    distinct, position, num_equivalent = torch.unique(pairs, return_inverse=True, return_counts=True)
    child = distinct % len(graph)
    moves = distinct.div(len(graph), rounding_mode="floor") != child
    num_parents = child[moves].bincount(minlength=len(graph))
    log_backward = -(num_parents[graph.child].double().log() + num_equivalent[position].double().log())
    return torch.where(graph.stops, 0.0, log_backward)


def backward_scores(context: GraphBuildingEnvContext, policy: TwoWayPolicy, encoding: Tensor) -> Scores:
    """Return the `Scores` of backward actions under conditioning `encoding` [C], without gradients.

    The context shows backward actions (`with_backward`).
    """
    return torch.no_grad()(
        lambda states: policy.both(context.to_batch(states), encoding.expand(len(states), -1))[1].log_probs()
    )
