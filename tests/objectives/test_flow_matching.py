"""Flow matching: loss and gradient against the inflow and outflow of one visited state at a time."""

from dataclasses import dataclass

import pytest
import torch

from gflownet.mdp.action import ActionBatch
from gflownet.mdp.states import GraphStates
from gflownet.objectives.config import AlgoConfig
from tests.objectives.differences import Case, assert_loss_and_gradient, set_up, with_random_offset
from tests.oracles.equivalent_actions import class_keys, moves_to
from tests.oracles.losses import PENALTIES, mean


@dataclass(frozen=True)
class IncomingActions:
    """Parents of every visited state and the actions that lead from them, concatenated over states."""

    parents: GraphStates
    actions: ActionBatch  # one per parent
    num: list[int]  # number of parents per visited state; 0 for the initial state


def labelled_parents(env, states: GraphStates, index: int) -> list[tuple[GraphStates, ActionBatch]]:
    """Return every parent of a state with its one action, labelled actions counted one by one."""
    parents = []
    for action, parent in env.parents(states, index):
        kind, row, column = env.encode(action)
        parents.append((parent, ActionBatch(*(torch.tensor([int(value)]) for value in (kind, row, column)))))
    return parents


def class_parents(env, states: GraphStates, index: int) -> list[tuple[GraphStates, ActionBatch]]:
    """Return one parent per class, with all of its actions that lead to the class of the state."""
    one_of_each = {class_keys(env, parent)[0]: parent for _, parent in env.parents(states, index)}
    key = class_keys(env, states[index : index + 1])[0]
    return [(parent, moves_to(env, parent, key)) for parent in one_of_each.values()]


def incoming_actions(case: Case, find_parents) -> IncomingActions:
    starts = [(case.batch.trajectory == i).nonzero()[0].item() for i in range(len(case.batch))]
    parents, actions, num = [], [], []
    for step in range(len(case.batch.actions)):
        parents_of_step = [] if step in starts else find_parents(case.context.env, case.batch.states, step)
        parents += [parent[torch.zeros(len(moves), dtype=torch.int64)] for parent, moves in parents_of_step]
        actions += [moves for _, moves in parents_of_step]
        num.append(sum(len(moves) for _, moves in parents_of_step))
    return IncomingActions(GraphStates.cat(parents), ActionBatch.cat(actions), num)


@torch.no_grad()
def mean_penalty(case: Case, incoming: IncomingActions, log_reward: list[float]) -> float:
    """Return the mean linex penalty of the log-ratio of inflow to outflow, and of the Stop flow to the reward."""
    parents, visited = case.context.to_batch(incoming.parents), case.context.to_batch(case.batch.states)
    edges, _ = case.policy(parents, torch.zeros(len(incoming.parents), 1))
    edge_flows = (edges.log_prob(case.context.to_indices(parents, incoming.actions)) + edges.logsumexp()).exp()
    forward, _ = case.policy(visited, torch.zeros(len(case.batch.states), 1))
    outflows = forward.logsumexp()
    stopping = forward.log_prob(case.context.to_indices(visited, case.batch.actions)) + outflows
    inflows = [flows.sum().log() for flows in edge_flows.split(incoming.num)]
    terms, penalty = [], PENALTIES["linex"]
    for i, policy_steps in enumerate(case.read_steps()):
        steps = (case.batch.trajectory == i).nonzero().squeeze(1).tolist()
        terms += [penalty(float(inflows[step] - outflows[step])) for step in steps[1:]]
        terms.append(penalty(float(stopping[steps[-1]]) + policy_steps[0].offset - log_reward[i]))
    return mean(terms)


@pytest.mark.parametrize(("symmetry", "find_parents"), [("reward", labelled_parents), ("actions", class_parents)])
def test_flow_matching_loss_and_gradient_match_oracle(symmetry, find_parents):
    case = with_random_offset(set_up(AlgoConfig(method="fm", symmetry=symmetry, regression="linex")))
    incoming = incoming_actions(case, find_parents)
    log_symmetry = case.batch.log_symmetry.double() if symmetry == "reward" else 0.0
    log_reward = (case.batch.log_reward.double() + log_symmetry).tolist()
    assert_loss_and_gradient(case, lambda: mean_penalty(case, incoming, log_reward))
