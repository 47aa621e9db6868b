"""Contract of policy networks on one environment.

Letters: B states, C conditioning features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gflownet.config import load_config, with_options
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment
from gflownet.mdp.policy import Policy, TwoWayPolicy
from gflownet.mdp.states import GraphStates
from gflownet.policy.config import POLICIES
from gflownet.testing.contract import Contract, expect
from gflownet.testing.environments import random_walk

NUM_COND = 3
_TOLERANCE = 1e-5
LogProbs = dict[tuple[int, int, int], float]


def check_policy(name: str, env: Environment, *options: str) -> None:
    """Check a policy network on a small environment.

    Args:
        name: entry point, module:Class or built-in name.
        env: that the network supports.
        options: `model.options.x=y` of the class.

    Raises:
        ContractError: the first rule that the network breaks, in one line.
    """
    PolicyContract(name, env, *options).run_all()


class PolicyContract(Contract):
    """Checks of a network on one environment.

    Args:
        name: entry point, module:Class or built-in name.
        env: a small one that the network supports.
        options: of the config, `model.num_emb=16`.
        idle: parts of names of parameters that rightly have no gradient in this environment.
        every: a separate evaluation of one state in this many.
    """

    def __init__(self, name: str, env: Environment, *options: str, idle: tuple[str, ...] = (), every: int = 5) -> None:
        self.name, self.env, self.options, self.idle, self.every = name, env, options, idle, every
        self.policy_class: Any = POLICIES.load(name)
        self.subject = f"{name} on {type(env).__name__}"

    def build(self, *, backward: bool = False, **model: Any) -> tuple[GraphBuildingEnvContext, Any]:
        """Return a context and a small network."""
        sizes = {"num_layers": 2, "num_emb": 16, "num_heads": 2, **model}
        overrides = [f"model.{key}={value}" for key, value in sizes.items()]
        config = load_config(None, [f"model.name={self.name}", *overrides, *self.options])
        config = with_options(config, {POLICIES.options_key: self.policy_class.Config})
        context = GraphBuildingEnvContext(self.env, num_cond_dim=NUM_COND).with_layout(self.policy_class.layout)
        context = context.with_backward() if backward else context
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return context, self.policy_class(context, config.model)

    def check_output_is_independent_of_the_batch(self) -> None:
        context, policy = self.build()
        states = visited(self.env, num=4, seed=3)
        conditioning = conditioning_for(len(states))
        batched = log_probs(context, policy, states, conditioning)
        with torch.no_grad():
            _, outputs = policy(context.to_batch(states), conditioning)
        for i in range(0, len(states), self.every):
            (separate,) = log_probs(context, policy, states[i : i + 1], conditioning[i : i + 1])
            expect(_near(separate, batched[i]), "expected log-probabilities of a state alone to equal those in a batch")
            total = float(torch.tensor(list(separate.values())).exp().sum())
            expect(abs(total - 1) < _TOLERANCE, f"expected probabilities of the actions to sum to 1, got {total:.6f}")
            with torch.no_grad():
                _, output = policy(context.to_batch(states[i : i + 1]), conditioning[i : i + 1])
            is_equal = abs(float(output) - float(outputs[i])) < _TOLERANCE
            expect(is_equal, "expected the scalar of a state alone to equal that in a batch")

    def check_every_conditioning_feature_is_used(self) -> None:
        context, policy = self.build()
        states = visited(self.env, num=3, seed=4)
        states = states[context.env.forward_masks(states).num_actions() > 1]
        plain = conditioning_for(len(states))
        before = log_probs(context, policy, states, plain)
        for feature in range(NUM_COND):
            changed = plain.clone()
            changed[:, feature] += 1.0
            after = log_probs(context, policy, states, changed)
            for values, others in zip(before, after, strict=True):
                difference = max(abs(values[a] - others[a]) for a in values)
                expect(difference > _TOLERANCE, f"expected the conditioning feature {feature} to change the output")

    def check_conditioning_affects_its_own_state_only(self) -> None:
        context, policy = self.build()
        states = visited(self.env, num=3, seed=5)
        plain = conditioning_for(len(states))
        changed = plain.clone()
        changed[0] += 1.0
        before, after = (log_probs(context, policy, states, c) for c in (plain, changed))
        expect(not _near(before[0], after[0]), "expected the conditioning of a state to change its output")
        same = all(_near(b, a, tolerance=1e-6) for a, b in zip(after[1:], before[1:], strict=True))
        expect(same, "expected the conditioning of a state to leave the output of other states as it is")

    def check_gradient_reaches_every_parameter(self) -> None:
        """The key bias of attention shifts all scores of a node equally and has no gradient."""
        context, policy = self.build()
        states = visited(self.env, num=12, seed=6)
        categorical, outputs = policy(context.to_batch(states), conditioning_for(len(states)))
        _, values = categorical.log_probs()
        weights = torch.rand(len(values), generator=torch.Generator().manual_seed(7))
        ((values * weights).sum() + outputs.sum()).backward()
        for name, parameter in policy.named_parameters():
            expect(parameter.grad is not None, f"expected a gradient of {name}, got none")
            expect(bool(parameter.grad.isfinite().all()), f"expected a finite gradient of {name}")
            if not any(part in name for part in ("lin_key.bias", *self.idle)):
                expect(float(parameter.grad.abs().max()) > 1e-6, f"expected a gradient of {name}, got 0")

    def check_both_equals_forward_and_covers_backward_actions(self) -> None:
        """`both` has the forward distribution of `forward` and one over exactly the legal backward actions."""
        if not issubclass(self.policy_class, TwoWayPolicy):
            return
        context, policy = self.build(backward=True)
        states = visited(self.env, num=6, seed=8)
        batch, conditioning = context.to_batch(states), conditioning_for(len(states))
        with torch.no_grad():
            forward, backward, outputs = policy.both(batch, conditioning)
            only_forward, same_outputs = policy(batch, conditioning)
        same = all(map(torch.equal, forward.log_probs(), only_forward.log_probs()))
        expect(same and torch.equal(outputs, same_outputs), "expected both and forward to give the same output")
        owner, actions = self.env.backward_masks(states).positions()
        graphs, values = backward.log_probs()
        expect(torch.equal(graphs, owner), "expected a log-probability of each legal backward action")
        totals = torch.zeros(len(states)).index_add(0, graphs, values.exp())
        num_actions = self.env.backward_masks(states).num_actions()
        is_equal = torch.allclose(totals, (num_actions > 0).float(), atol=_TOLERANCE)
        expect(is_equal, "expected probabilities of the backward actions of a state to sum to 1")
        has_choice = num_actions[owner] > 1  # a sequence has one backward action
        varies = not bool(has_choice.any()) or values[has_choice].unique().numel() > 1
        expect(varies, "expected different probabilities of backward actions")
        first = torch.searchsorted(owner.sort().values, owner.unique())
        order = owner.argsort(stable=True)[first]
        indices = context.to_indices(batch, actions[order], graphs=owner[order], backward=True)
        is_equal = torch.allclose(backward.repeated(owner[order]).log_prob(indices), values[order])
        expect(is_equal, "expected log_prob of indices to equal log_probs")


def visited(env: Environment, *, num: int, seed: int) -> GraphStates:
    """Return all states of random walks, in one batch."""
    return GraphStates.cat([states for states, _ in random_walk(env, num=num, seed=seed)])


def conditioning_for(num: int) -> Tensor:
    """Return random conditioning [num, C]."""
    return torch.rand(num, NUM_COND, generator=torch.Generator().manual_seed(9))


def log_probs(
    context: GraphBuildingEnvContext, policy: Policy, states: GraphStates, conditioning: Tensor
) -> list[LogProbs]:
    """Return the log-probability of every legal action (kind, row, column) of each state."""
    with torch.no_grad():
        categorical, _ = policy(context.to_batch(states), conditioning)
    graphs, values = categorical.log_probs()
    owner, actions = context.env.forward_masks(states).positions()
    expect(torch.equal(graphs, owner), "expected a log-probability of each legal action, in the order of the masks")
    values_of: list[LogProbs] = [{} for _ in range(len(states))]
    for i, graph in enumerate(owner.tolist()):
        values_of[graph][int(actions.kind[i]), int(actions.row[i]), int(actions.column[i])] = float(values[i])
    return values_of


def _near(first: LogProbs, second: LogProbs, *, tolerance: float = _TOLERANCE) -> bool:
    return first.keys() == second.keys() and all(abs(first[key] - second[key]) <= tolerance for key in first)
