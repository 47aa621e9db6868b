"""Detailed balance (Bengio et al. 2023, definition 7) and its variants with rewards of intermediate states."""

from __future__ import annotations

from torch import Tensor

from gflownet.errors import UserError
from gflownet.mdp.action import GraphActionType
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.base import Loss, Objective
from gflownet.objectives.state_flows import StateFlowObjective
from gflownet.objectives.steps import Steps, stops
from gflownet.objectives.trajectory_balance import total_loss


class DetailedBalance(StateFlowObjective):
    """Regression to zero of log F(s) P_F(s' | s) - log F(s') P_B(s | s') over steps; after Stop, log F is log R(x)."""

    def loss(self, policy: PolicyFunction, trajectories: TrajectoryBatch) -> Loss:
        """Return the mean loss of a step."""
        steps = self.reader.read(policy, trajectories)
        log_flow = self.log_flow(steps, trajectories)
        after = _after(log_flow, steps.log_reward, steps)
        balance = self.regression(log_flow + steps.log_forward - after - steps.log_backward).mean()
        return total_loss(balance, steps, {"log_Z": float(log_flow[steps.first].detach().mean())})


class ForwardLookingDetailedBalance(DetailedBalance):
    """Detailed balance with log F(s) = network output + log R(s) where Stop is legal (Pan et al. 2023, eq. 9)."""

    needs_state_rewards = True
    supports_teacher = False
    looks_forward = True


class ModifiedDetailedBalance(Objective):
    """Detailed balance without learned flows, for environments in which Stop is always legal.

    Then log F(s) = log R(s) - log P_F(stop | s).

    Regression to zero of log R(s') P_B(s | s') P_F(stop | s) - log R(s) P_F(s' | s) P_F(stop | s') (Deleu et al. 2022,
    eq. 8), with |Aut(s)| R(s) for R(s) if `symmetry=reward`.
    """

    needs_state_rewards = True
    uses_regression = True

    def loss(self, policy: PolicyFunction, trajectories: TrajectoryBatch) -> Loss:
        """Return the mean loss of a step other than Stop; 0 for trajectories without such a step.

        Raises:
            UserError: Stop is illegal in a state.
        """
        steps = self.reader.read(policy, trajectories)
        may_stop = self.reader.context.env.forward_masks(trajectories.states).masks[GraphActionType.Stop]
        if not bool(may_stop.flatten(1).any(1).all()):
            raise UserError(
                "algo.method=modified_db: expected an environment in which Stop is legal in every state, got another"
            )
        log_reward = trajectories.state_log_reward
        if self.reader.scales_rewards:
            log_reward = log_reward + self.reader.log_symmetries(steps.outputs, trajectories)
        log_stop = steps.outputs.log_prob(stops(len(steps.trajectory)))
        log_flow = log_reward.to(log_stop) - log_stop
        step, successor = steps.step, steps.successor
        forward = log_flow[step] + steps.log_forward[step]
        balance = self.regression(forward - log_flow[successor] - steps.log_backward[step])
        return total_loss(balance.sum() / max(len(balance), 1), steps, {})


def _after(log_flow: Tensor, log_reward: Tensor, steps: Steps) -> Tensor:
    """Return the log-flow after each step, [S]: through the next state, or log R(x) after Stop."""
    return log_reward[steps.trajectory].index_put((steps.step,), log_flow[steps.successor])
