"""Reference losses of the objectives: Python loops over single steps, on floats read from a policy.

Every loss takes the steps of the current parameters, `frozen` (steps of the unperturbed parameters, for the terms that
carry no gradient) and the batch.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from gflownet.mdp.action import GraphActionType
from gflownet.mdp.trajectory import Origin, TrajectoryBatch


@dataclass(frozen=True)
class PolicyStep:
    """Policy outputs for one step of a trajectory, in float64."""

    log_forward: float
    log_backward: float  # of the step; 0 of Stop
    state_output: float  # the scalar output of the policy: a log-flow, a value or an offset
    log_sum: float  # logsumexp of the forward logits before the step
    log_stop: float  # log P_F(stop), -inf where illegal
    entropy: float
    log_num_paths: float  # logsumexp of the backward logits; 0 in the initial state
    state_log_reward: float
    offset: float  # learned by the objective: log Z or the offset of the flows; 0 where it learns none


Trajectories = Sequence[Sequence[PolicyStep]]
Penalty = Callable[[float], float]


def tangent_exp(t: float) -> float:
    """Return e^t, continued beyond t = 5 by its tangent."""
    return math.exp(t) if t <= 5 else math.exp(5) * (t - 4)


PENALTIES: dict[str, Penalty] = {
    "squared": lambda t: t * t,
    "half": lambda t: t * t / 2,
    "huber": lambda t: t * t / 2 if abs(t) <= 1 else abs(t) - 0.5,
    "shifted_cosh": lambda t: tangent_exp(t) + tangent_exp(-t) - 2,
    "linex": lambda t: tangent_exp(-t) + t - 1,
}
SQUARED = PENALTIES["squared"]


@torch.no_grad()
def read_steps(context, policy, batch: TrajectoryBatch, offset: nn.Module | None = None) -> Trajectories:
    """Evaluate the policy on every state of the batch, labelled actions counted one by one; `offset` is in float64."""
    offsets = [0.0] * len(batch) if offset is None else offset(batch.conditioning.double()).tolist()
    encoded = context.to_batch(batch.states)
    forward, backward, state_outputs = policy.both(encoded, batch.conditioning[batch.trajectory])
    log_forward = forward.log_prob(context.to_indices(encoded, batch.actions))
    stop = torch.tensor([[context.action_types.index(GraphActionType.Stop), 0, 0]]).expand(len(batch.actions), 3)
    log_stop, entropy, log_sum, log_num_paths = (
        forward.log_prob(stop),
        forward.entropy(),
        forward.logsumexp(),
        backward.logsumexp(),
    )
    state_rewards = batch.optional_state_log_reward
    trajectories = []
    for i in range(len(batch)):
        steps = (batch.trajectory == i).nonzero().squeeze(1).tolist()
        policy_steps = []
        for t, step in enumerate(steps):
            log_backward = 0.0
            if t + 1 < len(steps):
                undo = context.to_indices(
                    encoded, batch.backward[step : step + 1], graphs=torch.tensor([step]), backward=True
                )
                log_backward = float(backward.log_prob(undo, graphs=torch.tensor([steps[t + 1]])))
            policy_steps.append(
                PolicyStep(
                    log_forward=float(log_forward[step]),
                    log_backward=log_backward,
                    state_output=float(state_outputs[step]),
                    log_sum=float(log_sum[step]),
                    log_stop=float(log_stop[step]),
                    entropy=float(entropy[step]),
                    log_num_paths=float(log_num_paths[step]) if t else 0.0,
                    state_log_reward=0.0 if state_rewards is None else float(state_rewards[step]),
                    offset=offsets[i],
                )
            )
        trajectories.append(policy_steps)
    return trajectories


def log_rewards(batch: TrajectoryBatch) -> list[float]:
    """Return log R(x) |Aut(x)| / |Aut(s0)| of every trajectory."""
    return (batch.log_reward.double() + batch.log_symmetry.double()).tolist()


def log_ratios(trajectories: Trajectories, batch: TrajectoryBatch) -> list[float]:
    return [
        sum(s.log_forward - s.log_backward for s in steps) - reward
        for steps, reward in zip(trajectories, log_rewards(batch), strict=True)
    ]


def trajectory_balance(trajectories, frozen, batch, *, penalty: Penalty = SQUARED):
    ratios = log_ratios(trajectories, batch)
    return mean([penalty(ratio + steps[0].offset) for ratio, steps in zip(ratios, trajectories, strict=True)])


def vargrad(trajectories, frozen, batch, *, penalty: Penalty = SQUARED):
    by_conditioning = defaultdict(list)
    for encoding, ratio in zip(batch.conditioning.tolist(), log_ratios(frozen, batch), strict=True):
        by_conditioning[tuple(encoding)].append(ratio)
    log_z = [-mean(by_conditioning[tuple(encoding)]) for encoding in batch.conditioning.tolist()]
    return mean([penalty(ratio + z) for ratio, z in zip(log_ratios(trajectories, batch), log_z, strict=True)])


def state_flows(steps: Sequence[PolicyStep], reward: float, *, forward_looking: bool) -> list[float]:
    return [s.state_output + s.offset + (s.state_log_reward if forward_looking else 0.0) for s in steps] + [reward]


def detailed_balance(trajectories, frozen, batch, *, forward_looking=False, penalty: Penalty = SQUARED):
    terms = []
    for steps, reward in zip(trajectories, log_rewards(batch), strict=True):
        flows = state_flows(steps, reward, forward_looking=forward_looking)
        for t, s in enumerate(steps):
            terms.append(penalty(flows[t] + s.log_forward - flows[t + 1] - s.log_backward))
    return mean(terms)


def sub_trajectory_balance(trajectories, frozen, batch, *, decay, forward_looking=False, penalty: Penalty = SQUARED):
    means = []
    for steps, reward in zip(trajectories, log_rewards(batch), strict=True):
        flows, weights, terms = state_flows(steps, reward, forward_looking=forward_looking), 0.0, 0.0
        for i in range(len(steps)):
            for j in range(i + 1, len(steps) + 1):
                inner = sum(s.log_forward - s.log_backward for s in steps[i:j])
                weight = decay ** (j - i - 1)
                weights += weight
                terms += weight * penalty(flows[i] + inner - flows[j])
        means.append(terms / weights)
    return mean(means)


def modified_detailed_balance(trajectories, frozen, batch, *, penalty: Penalty = SQUARED):
    """Modified detailed balance with state rewards multiplied by |Aut(s)| / |Aut(s0)|."""
    symmetry = batch_symmetries(batch)
    terms = []
    for steps, log_symmetry in zip(trajectories, symmetry, strict=True):
        flows = [s.state_log_reward + a - s.log_stop for s, a in zip(steps, log_symmetry, strict=True)]
        for t, s in enumerate(steps[:-1]):
            terms.append(penalty(flows[t] + s.log_forward - flows[t + 1] - s.log_backward))
    return mean(terms)


SYMMETRY_OF: Callable | None = None  # set by the test: number of automorphisms of the states of a batch


def batch_symmetries(batch: TrajectoryBatch) -> list[list[float]]:
    assert SYMMETRY_OF is not None
    log_counts = [math.log(count) for count in SYMMETRY_OF(batch.states)]
    initial = math.log(SYMMETRY_OF(batch.states[:1])[0])
    return [
        [log_counts[step] - initial for step in (batch.trajectory == i).nonzero().squeeze(1).tolist()]
        for i in range(len(batch))
    ]


def soft_q(trajectories, frozen, batch, *, alpha=0.0, lowest=0.0, penalty: Penalty = SQUARED):
    weight, terms = 1 / (1 - alpha), []
    for steps, before, reward in zip(trajectories, frozen, log_rewards(batch), strict=True):
        for t, s in enumerate(steps):
            is_last = t + 1 == len(steps)
            target = reward if is_last else s.log_backward + weight * before[t + 1].log_sum + before[t + 1].offset
            bonus = alpha * weight * max(before[t].log_forward, lowest)
            terms.append(penalty(weight * (s.log_forward + s.log_sum) + s.offset - target - bonus))
    return mean(terms)


def relative(trajectories, frozen, batch, *, log_prior: Sequence[Sequence[float]], penalty: Penalty = SQUARED):
    """Relative trajectory balance; `log_prior` holds the prior log-probability of every step of every trajectory."""
    terms = []
    for steps, prior, reward in zip(trajectories, log_prior, batch.log_reward.double().tolist(), strict=True):
        ratio = sum(s.log_forward for s in steps) - sum(prior)
        terms.append(penalty(ratio + steps[0].offset - reward))
    return mean(terms)


def order_preserving(trajectories, frozen, batch):
    learned = [sum(s.log_forward - s.log_backward for s in steps) for steps in trajectories]
    learned = [value - float(a) for value, a in zip(learned, batch.log_symmetry, strict=True)]
    terms = []
    for i in range(len(learned)):
        for j in range(i + 1, len(learned)):
            if batch.conditioning[i].tolist() != batch.conditioning[j].tolist():
                continue
            log_ratio = float(batch.log_reward[i]) - float(batch.log_reward[j])
            label = 1.0 if log_ratio > 0 else 0.5 if log_ratio == 0 else 0.0
            wins = 1 / (1 + math.exp(learned[j] - learned[i]))
            terms.append(-label * math.log(wins) - (1 - label) * math.log(1 - wins))
    return mean(terms)


def actor_critic(trajectories, frozen, batch, *, clipped):
    sampled = [
        (s, before, reward)
        for steps, frozen_steps, reward, origin in zip(
            trajectories, frozen, batch.log_reward.double().tolist(), batch.origin.tolist(), strict=True
        )
        if origin == Origin.SAMPLED
        for s, before in zip(steps, frozen_steps, strict=True)
    ]
    advantages = [reward - before.state_output for _, before, reward in sampled]
    if clipped:
        center = mean(advantages)
        deviation = math.sqrt(sum((a - center) ** 2 for a in advantages) / (len(advantages) - 1))
        advantages = [(a - center) / deviation for a in advantages]
    terms = []
    for (s, before, reward), advantage in zip(sampled, advantages, strict=True):
        actor = -s.log_forward * advantage
        if clipped:
            ratio = math.exp(s.log_forward - before.log_forward)
            bounded = min(max(ratio, 0.8), 1.2)
            actor = -min(ratio * advantage, bounded * advantage)
        terms.append(actor + 0.5 * (s.state_output - reward) ** 2 - 0.01 * s.entropy)
    return mean(terms)


def max_likelihood(trajectories, frozen, batch):
    counted = [
        -sum(s.log_forward for s in steps)
        for steps, origin in zip(trajectories, batch.origin.tolist(), strict=True)
        if origin != Origin.SAMPLED
    ]
    return mean(counted)


def maximum_entropy_backward(trajectories, frozen, batch):
    terms = []
    for steps in trajectories:
        for t in range(len(steps) - 1):
            terms.append((sum(s.log_backward for s in steps[: t + 1]) + steps[t + 1].log_num_paths) ** 2)
    return mean(terms)


def backward_likelihood(trajectories, frozen, batch, *, origins):
    counted = [
        -sum(s.log_backward for s in steps)
        for steps, origin in zip(trajectories, batch.origin.tolist(), strict=True)
        if origin in origins
    ]
    return mean(counted)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
