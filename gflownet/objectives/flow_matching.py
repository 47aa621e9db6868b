"""Flow matching (Bengio et al. 2021, eq. 11): the flow into a state equals the flow out of it.

Letters: B trajectories, S steps, D distinct states reached by steps, K actions into them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gflownet.mdp.action import ActionBatch
from gflownet.mdp.answer import Answer, ask, distinct
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.base import Loss
from gflownet.objectives.state_flows import FlowObjective
from gflownet.objectives.steps import equivalent_actions, log_sum_by
from gflownet.objectives.trajectory_balance import total_loss


class FlowMatching(FlowObjective):
    """The policy's logits, plus one learned offset, are the logs of the flows along actions.

    Regression to zero of log inflow - log outflow of every visited state, and of the flow along Stop against the
    reward. It reads all parents of a visited state and has no backward policy.
    """

    backward_policies = ("uniform",)

    def loss(self, policy: PolicyFunction, trajectories: TrajectoryBatch) -> Loss:
        """Return the mean loss over the states reached by steps, terminal states included."""
        steps = self.reader.read(policy, trajectories)
        log_out = steps.outputs.categorical.logsumexp()
        _, successor = trajectories.successors()
        repeated_conditioning = trajectories.conditioning[trajectories.trajectory[successor]]
        inflow = self._log_inflow(policy, trajectories.states[successor], repeated_conditioning)
        interior = inflow - log_out[steps.successor]  # the offset is the same on both sides
        offset = self.offset(trajectories.conditioning)
        last = steps.is_stop.nonzero().squeeze(1)
        owner = steps.trajectory[last]
        into_terminal = steps.log_forward[last] + log_out[last] + offset[owner] - steps.log_reward[owner]
        balance = self.regression(torch.cat([interior, into_terminal])).mean()
        log_z = log_out[steps.first] + offset
        return total_loss(balance, steps, {"log_Z": float(log_z.detach().mean())})

    def read_flow(self, outputs: Answer) -> Tensor:
        """Return the log of the flow out of each state."""
        return outputs.categorical.logsumexp()

    def _log_inflow(self, policy: PolicyFunction, states: GraphStates, conditioning: Tensor) -> Tensor:
        """Return the log of the flow into each state, without the offset; equal states are computed once."""
        if not len(states):
            return torch.zeros(0)
        first, position = distinct(states, conditioning)
        child, parents, actions = self._actions_into(states[first])
        outputs = ask(self.context, policy, parents, conditioning[first][child])
        log_out = outputs.categorical.logsumexp()
        if self.reader.counts_classes:
            same = equivalent_actions(self.context.env, parents, actions)
            flows = outputs.log_prob(same.actions, states=same.owner) + log_out[same.owner.to(log_out.device)]
            child = child[same.owner]
        else:
            flows = outputs.log_prob(actions) + log_out
        return log_sum_by(child.to(flows.device), flows, len(first))[position.to(flows.device)]

    def _actions_into(self, states: GraphStates) -> tuple[Tensor, GraphStates, ActionBatch]:
        """Return K actions into D states: index of the state [K], parent and action; isomorphic parents once."""
        env = self.context.env
        child, undo = env.backward_masks(states).positions()
        after = states[child]
        parents, actions = env.apply(after, undo), env.reverse(after, undo)
        if not self.reader.counts_classes:
            return child, parents, actions
        pairs = torch.stack([child, env.identify(parents)], 1)
        _, group = torch.unique(pairs, dim=0, return_inverse=True)
        one = torch.empty(int(group.max()) + 1, dtype=torch.int64).scatter_(0, group, torch.arange(len(group)))
        return child[one], parents[one], actions[one]
