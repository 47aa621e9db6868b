"""Sample trajectories forward from the policy, or backward from terminal states with the backward policy.

Letters: B trajectories, C conditioning features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor

from gflownet.errors import UserError
from gflownet.evaluation.conditioning import Conditioning
from gflownet.mdp.action import ActionBatch, ActionMasks, GraphActionType
from gflownet.mdp.answer import AnswersBothWays, ask, ask_both, max_ahead, state_table
from gflownet.mdp.categorical import GraphActionCategorical, sent
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import Origin, TrajectoryBatch
from gflownet.policy.wrappers import PolicyOnDevice

if TYPE_CHECKING:
    from gflownet.graphs.canonical import Candidate

_CPU = torch.device("cpu")
_CROWDED = 0.9  # share of distinct states up to which the next step removes duplicate states


@dataclass(frozen=True)
class Exploration:
    """Exploration: temperature of the policy, then a mixture with uniform actions."""

    random_action_prob: float = 0.0  # epsilon
    temperature: float = 1.0

    def of(self, categorical: GraphActionCategorical) -> GraphActionCategorical:
        """Return (1 - epsilon) softmax(logits / temperature) + epsilon / number of legal actions."""
        tempered = categorical if self.temperature == 1 else categorical.tempered(self.temperature)
        return tempered.mixed(self.random_action_prob)


class SampledStep(NamedTuple):
    """One step of the unfinished trajectories."""

    states: GraphStates
    trajectory: Tensor
    actions: ActionBatch  # forward
    backward: ActionBatch | None  # inverse actions; None: derived from states and actions
    log_backward: Tensor  # of the uniform P_B


# States and indices of the unfinished trajectories -> one action each.
Choose = Callable[[GraphStates, Tensor], ActionBatch]


def sample_forward(
    context: GraphBuildingEnvContext,
    policy: PolicyFunction,
    *,
    conditioning: Conditioning,
    generator: torch.Generator,
    random_action_prob: float = 0.0,
    temperature: float = 1.0,
) -> TrajectoryBatch:
    """Sample one trajectory per conditioning from the policy with exploration, without rewards.

    Finished trajectories leave the batch, so that the policy reads unfinished graphs only.
    """
    exploration = Exploration(random_action_prob, temperature)
    device = _device_of_states(context, policy)
    table = state_table(context) if device == _CPU else None
    encoding = conditioning.encoding
    if table is not None and table.suits(encoding, conditioning.limit, num=max_ahead(len(encoding))):
        walks = table.walk(policy, encoding, exploration.of, generator)
        actions, backward = table.actions(walks)
        states, log_backward = table.states[walks.state], table.log_backward[walks.after]
        step = SampledStep(states, walks.trajectory, actions, backward, log_backward)
        return _joined(context.env, step, conditioning, Origin.SAMPLED)
    steps = sampled_steps(context, policy, conditioning, generator, exploration, device)
    steps = steps if device == _CPU else [_in_main_memory(steps, device)]
    return assembled(context.env, steps, conditioning, Origin.SAMPLED)


def sampled_steps(
    context: GraphBuildingEnvContext,
    policy: PolicyFunction,
    conditioning: Conditioning,
    generator: torch.Generator,
    exploration: Exploration,
    device: torch.device,
) -> list[SampledStep]:
    """Return the steps of one trajectory per conditioning from the initial state, computed on a device.

    Waits for the device once per step (`Environment.read_ahead`). The tensors are those of inference mode, which is a
    tenth faster than no_grad.
    """
    start, there = limited_states(context.env, len(conditioning.beta), conditioning.limit), context.on(device)
    with torch.inference_mode(), torch.device(device) if device != _CPU else nullcontext():
        states = start if device == _CPU else start.mapped(partial(sent, device=device))
        vars(states)["largest"] = start.largest
        choose = chosen_by(there, policy, sent(conditioning.encoding, device), generator, exploration)
        return roll_out(there.env, states, choose)


def conditions_of(batch: TrajectoryBatch) -> Conditioning:
    """Return the conditions of trajectories."""
    return Conditioning(batch.conditioning, batch.beta, batch.terminal.limit)


def limited_states(env: Environment, num: int, limit: Tensor | None) -> GraphStates:
    """Return `num` initial states with caps [num, K]; None: the environment's own.

    Raises:
        UserError: a cap below the smallest network, or several that none keeps: there is no legal trajectory.
    """
    states = env.initial_states(num)
    if limit is None:
        return states
    for name, smallest, caps in zip(env.vocabulary.limits, env.smallest_sizes, limit.unbind(1), strict=True):
        if num and int(caps.min()) < smallest:
            raise UserError(
                f"max_{name}: expected at least {smallest:,}, the smallest network's, got {int(caps.min()):,}"
            )
    states = states.with_limit(limit)
    if limit.shape[1] > 1 and not bool((can_move := env.forward_masks(states).num_actions() > 0).all()):
        caps = zip(limit[~can_move][0].tolist(), env.vocabulary.limits, strict=True)
        expected = " and ".join(f"{cap:,} {name}" for cap, name in caps)
        raise UserError(f"limit: expected a network with at most {expected}, got none")
    return states


def sample_backward(
    context: GraphBuildingEnvContext,
    terminal: GraphStates,
    *,
    conditioning: Conditioning,
    generator: torch.Generator,
    policy: PolicyFunction | None = None,
) -> TrajectoryBatch:
    """Sample one trajectory into each terminal state from the backward policy, without rewards.

    Args:
        context: of the environment; with backward actions where `policy` is given.
        terminal: B states.
        conditioning: of B trajectories; its limits, where it has some, replace those of the states.
        generator: of the actions.
        policy: a two-way policy with a P_B; None: uniform.
    """
    terminal = terminal if conditioning.limit is None else terminal.with_limit(conditioning.limit)
    with torch.inference_mode():
        stop = torch.zeros(len(terminal), dtype=torch.int64)
        stops = ActionBatch(stop + int(GraphActionType.Stop), stop, stop)
        steps = [SampledStep(terminal, torch.arange(len(terminal)), stops, stops, torch.zeros(len(stop)))]
        steps += _roll_back(context, terminal, conditioning.encoding, generator, policy)
    return assembled(context.env, steps[::-1], conditioning, Origin.RESAMPLED)


def chosen_by(
    context: GraphBuildingEnvContext,
    policy: PolicyFunction,
    encoding: Tensor,
    generator: torch.Generator,
    exploration: Exploration,
) -> Choose:
    """Return a function that samples actions from the policy for B trajectories with conditioning [B, C]."""
    is_crowded = encoding.device == _CPU  # finding duplicates waits for a device

    def choose(states: GraphStates, alive: Tensor) -> ActionBatch:
        nonlocal is_crowded
        batch_encoding = encoding if len(alive) == len(encoding) else encoding[alive]
        output = ask(context, policy, states, batch_encoding, look_for_twins=is_crowded)
        is_crowded = is_crowded and output.num_distinct < _CROWDED * len(alive)
        categorical = exploration.of(output.categorical)
        indices = categorical.sample(generator) if alive.device == _CPU else categorical.sample_on_device(generator)
        return context.from_indices(output.batch, indices, graphs=output.owner)

    return choose


def roll_out(env: Environment, states: GraphStates, choose: Choose) -> list[SampledStep]:
    """Return the steps from any B states until each trajectory has stopped."""
    alive, steps = torch.arange(len(states), device=states.num_nodes.device), []
    while len(alive):
        actions = choose(states, alive)
        log_backward = torch.zeros(len(alive), device=alive.device)
        steps.append(SampledStep(states, alive, actions, None, log_backward))
        largest = None
        if alive.device != _CPU:
            actions, largest = env.read_ahead(states, actions)
        unfinished, actions = actions.unfinished()
        if len(unfinished) < len(alive):
            states, alive = states[unfinished], alive[unfinished]
        states = env.apply(states, actions)
        if largest is not None:
            vars(states)["largest"] = largest
        log_backward[unfinished] = -env.backward_masks(states).num_actions().log()
    return steps


def _device_of_states(context: GraphBuildingEnvContext, policy: PolicyFunction) -> torch.device:
    """Return the device of the policy if environment and layout run there, else the CPU."""
    is_there = context.env.runs_on_device and context.layout.runs_on_device and isinstance(policy, PolicyOnDevice)
    return policy.device if is_there else _CPU


def _in_main_memory(steps: Sequence[SampledStep], device: torch.device) -> SampledStep:
    """Return all steps as one in main memory; waits for the device once."""
    states = GraphStates.cat([s.states for s in steps])
    actions = ActionBatch.cat([s.actions for s in steps])
    trajectory, log_backward = torch.cat([s.trajectory for s in steps]), torch.cat([s.log_backward for s in steps])
    here = partial(Tensor.to, device=_CPU, non_blocking=True)  # into pinned memory
    copied_actions = ActionBatch(*map(here, actions.parts))
    step = SampledStep(states.mapped(here), here(trajectory), copied_actions, None, here(log_backward))
    torch.accelerator.synchronize(device)
    return step


def terminal_states(steps: Sequence[SampledStep]) -> GraphStates:
    """Return the terminal states of trajectories from their steps, by trajectory."""
    stops = [(step.actions.kind == int(GraphActionType.Stop)).nonzero().squeeze(1) for step in steps]
    owner = torch.cat([step.trajectory[index] for step, index in zip(steps, stops, strict=True)])
    states = GraphStates.cat([step.states[index] for step, index in zip(steps, stops, strict=True)])
    return states[owner.argsort()]


def _roll_back(
    context: GraphBuildingEnvContext,
    states: GraphStates,
    encoding: Tensor,
    generator: torch.Generator,
    policy: PolicyFunction | None,
) -> list[SampledStep]:
    """Return the steps from B states back to the initial one, the last first; each step renumbers the nodes."""
    env, alive, steps = context.env, torch.arange(len(states)), []
    while True:
        masks = env.backward_masks(states)
        num_actions = masks.num_actions()
        unfinished = num_actions > 0  # only the initial state has no backward action
        states, alive = states[unfinished], alive[unfinished]
        if not len(alive):
            return steps
        if policy is None:
            backward = ActionMasks({kind: mask[unfinished] for kind, mask in masks.masks.items()}).sample_uniform(
                generator
            )
        else:
            output = ask_both(context, cast(AnswersBothWays, policy), states, encoding[alive])
            backward = output.sample_backward(generator)
        before, forward = env.apply(states, backward), env.reverse(states, backward)
        steps.append(SampledStep(before, alive, forward, backward, -num_actions[unfinished].log()))
        states = before


def assembled(
    env: Environment, steps: Sequence[SampledStep], conditioning: Conditioning, origin: Origin
) -> TrajectoryBatch:
    """Assemble trajectories from their steps, earlier ones first, without rewards."""
    backward = [s.backward for s in steps if s.backward is not None]
    step = SampledStep(
        states=GraphStates.cat([s.states for s in steps]),
        trajectory=torch.cat([s.trajectory for s in steps]),
        actions=ActionBatch.cat([s.actions for s in steps]),
        backward=ActionBatch.cat(backward) if len(backward) == len(steps) else None,
        log_backward=torch.cat([s.log_backward for s in steps]),
    )
    return _joined(env, step, conditioning, origin)


def _joined(env: Environment, step: SampledStep, conditioning: Conditioning, origin: Origin) -> TrajectoryBatch:
    """Return the trajectories of all their steps, earlier ones first."""
    stops = (step.actions.kind == int(GraphActionType.Stop)).nonzero().squeeze(1)
    terminal = step.states[stops[step.trajectory[stops].argsort()]]
    counts = torch.tensor(env.num_automorphisms(terminal), dtype=torch.float64)
    return TrajectoryBatch(
        states=step.states,
        trajectory=step.trajectory,
        actions=step.actions,
        backward=env.reverse(step.states, step.actions) if step.backward is None else step.backward,
        log_backward=step.log_backward,
        terminal=terminal,
        origin=torch.full((len(terminal),), int(origin), dtype=torch.int8),
        conditioning=conditioning.encoding,
        beta=conditioning.beta,
        log_symmetry=(counts.log() - math.log(env.num_initial_automorphisms)).float(),
    )


_BATCH_SIZE = 64
# In a small space most samples are known: the number of samples per wanted architecture is bounded.
_MAX_SAMPLES = 10


def uniform_states(
    env: Environment, num: int, *, generator: torch.Generator, limit: Tensor | None = None
) -> GraphStates:
    """Return `num` terminal states, sampled with a uniformly random legal action in each step, within caps [B, K]."""

    def choose(states: GraphStates, _: torch.Tensor) -> ActionBatch:
        return env.forward_masks(states).sample_uniform(generator)

    return terminal_states(roll_out(env, limited_states(env, num, limit), choose))


def distinct_candidates(env: Environment, num: int, sample: Callable[[int], GraphStates]) -> list[Candidate]:
    """Return up to `num` different terminal objects of sampled terminal states."""
    candidates: dict[str, Candidate] = {}
    for _ in range(0, _MAX_SAMPLES * num, _BATCH_SIZE):
        states = sample(_BATCH_SIZE)
        for index in range(_BATCH_SIZE):
            candidate = env.terminal(states, index)
            candidates.setdefault(candidate.canonical_key(), candidate)
        if len(candidates) >= num:
            break
    return list(candidates.values())[:num]
