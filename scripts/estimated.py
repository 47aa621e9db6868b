"""Rung 5 of the test ladder of spec/gflownet.md: what stands in for enumeration on large spaces, beside the truth.

    PYTHONPATH=. python scripts/estimated.py [--quick] [--json FILE]

`scripts/exactness.py` calls `estimate_rows`. Policies that are trained for a moment, so that p is neither uniform nor
right, are certified by estimates as `certify=true` does it on a large space, and every estimate is compared with the
same figure of the exact push-forward. Letters: S states, M their actions (`gflownet.metrics.exact`), X terminal states.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import torch
from bench import Row, finish, parse_arguments
from enumerated import EnumeratedSpace, Trained, train
from scipy.stats import binom
from torch import Tensor

from gflownet.certification import NUM_ROLLOUTS, checked_states, draw_back, with_own_backward
from gflownet.data.sampler import sample_forward
from gflownet.evaluation.conditioning import Conditioning
from gflownet.mdp.policy import TwoWayPolicy
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.metrics.certificate import SUBSET_SIZE, CheckedStates, EstimatedCertificate, certify_by_estimates
from gflownet.metrics.consistency import disjoint_subsets, flow_consistency, restricted_distances
from gflownet.metrics.correlation import pearson, spearman
from gflownet.metrics.estimates import (
    effective_sample_size,
    evidence_upper_bound,
    log_ratio,
    log_weights,
    symmetry_slope,
    terminating_log_prob,
)
from gflownet.metrics.exact import (
    StateGraph,
    analytic_flows,
    backward_scores,
    forward_scores,
    policy_log_backward,
    policy_log_prob,
    target_distribution,
    terminating_distribution,
    total_variation,
)
from gflownet.metrics.intervals import LEVEL, Interval, bootstrap
from gflownet.objectives.config import BackwardName
from gflownet.policy.on_device import PolicyOnDevice

SEEDS = (0, 1, 2)
# Of a hundred 95 % intervals five miss by chance. Of twice their width, about four standard errors, none.
ALLOWED = 2.0
CHANCE = 1e-3  # of fewer intervals that hold the exact figure than is asked for, if each does in 95 % of all cases
NEAR, MOST = math.log(1.5), 0.75  # an error of log p(x), and the share of states that is to be nearer
CONTROLS = ("ELBO", "EUBO, from the target", "mean of p(x), estimated / exact")  # that leaving |Aut| out shows in
BACKWARD_POLICIES: tuple[BackwardName, ...] = ("uniform", "learned")
NUM_SUBSETS = 20_000  # that the exact flow consistency is a mean over


@dataclass(frozen=True)
class Space:
    """An enumerable space of the config `exact`, how long policies are trained on it, and what certifies them."""

    name: str
    max_nodes: int
    num_steps: int
    num_samples: int = 1_024  # trajectories of the policy, and as many states beside those that they end in

    def overrides(self, backward_policy: BackwardName, seed: int) -> list[str]:
        """Return the options of one run."""
        return [
            f"env.coloured_graph.max_nodes={self.max_nodes}",
            f"num_training_steps={self.num_steps}",
            f"algo.backward_policy={backward_policy}",
            f"seed={seed}",
            f"task_options.reward_seed={seed}",
            "cond.temperature.num_thermometer_dim=1",  # the policy reads one zero
        ]


SPACES = (
    Space("two-coloured graphs, up to 5 nodes (419)", max_nodes=5, num_steps=80, num_samples=256),
    Space("two-coloured graphs, up to 6 nodes (4,302)", max_nodes=6, num_steps=40),
    Space("two-coloured graphs, up to 7 nodes (72,296)", max_nodes=7, num_steps=20),
)
QUICK = (replace(SPACES[0], num_steps=20),)


@dataclass(frozen=True)
class Exact:
    """What enumeration knows of a policy and its target."""

    log_prob: Tensor  # [S] log p(x), -inf of what is not terminal
    log_z: float
    elbo: float
    eubo: float
    total_variation: float


@dataclass(frozen=True)
class Drawn:
    """What estimates are made from."""

    samples: TrajectoryBatch  # of the policy
    log_ratio: Tensor  # [B] log P_F(tau) - log P_B(tau | x) of those
    checked: CheckedStates
    state: Tensor  # [X] which of the enumerated states those are
    even: Tensor  # which of the X were drawn evenly from all terminal states
    target: CheckedStates  # states drawn from R / Z


def mean_log_weight(
    graph: StateGraph, log_drawn_by: Tensor, log_forward: Tensor, log_backward: Tensor, log_reward: Tensor
) -> float:
    """Return the exact mean of log w = log R |Aut| P_B / P_F over the trajectories of a policy: for P_F, the ELBO.

    For the policy with flows that balance R and P_B, whose trajectories are those of R P_B / Z, it is the EUBO.

    Args:
        graph: the enumerated states.
        log_drawn_by: [M] log-probabilities of the policy whose trajectories they are.
        log_forward: [M] log P_F.
        log_backward: [M] log P_B of undoing each action, 0 for Stop.
        log_reward: [S].
    """
    visits = torch.zeros(len(graph), dtype=torch.float64)
    visits[0] = 1.0
    moved = log_drawn_by.exp().masked_fill(graph.stops, 0.0)
    for here in graph.level_actions():
        visits.index_add_(0, graph.child[here], visits[graph.parent[here]] * moved[here])
    log_symmetry = (graph.num_automorphisms / graph.num_automorphisms[0]).log()
    ends = torch.where(graph.stops, (log_reward.double() + log_symmetry)[graph.parent], 0.0)
    return float((visits[graph.parent] * log_drawn_by.exp() * (ends + log_backward - log_forward)).sum())


def exact_figures(space: EnumeratedSpace, trained: Trained) -> Exact:
    """Return what enumeration knows of a trained policy."""
    graph, log_reward, nothing = space.graph, space.log_reward, torch.zeros(1)
    context, policy = trained.trainer.context, trained.trainer.policy
    log_forward = policy_log_prob(graph, forward_scores(context, policy, nothing))
    if isinstance(policy, TwoWayPolicy) and context.backward_types:
        score = backward_scores(context, policy, nothing)
        log_backward = space.backward.per_forward(policy_log_backward(graph, space.backward, score))
    else:
        log_backward = torch.where(graph.stops, 0.0, -graph.num_backward[graph.child].double().log())
    balanced = analytic_flows(graph, log_reward.double() + graph.num_automorphisms.log(), log_backward).log_forward
    found = terminating_distribution(graph, log_forward)
    elbo, eubo = (
        mean_log_weight(graph, drawn_by, log_forward, log_backward, log_reward) for drawn_by in (log_forward, balanced)
    )
    return Exact(
        log_prob=found.log(),
        log_z=float(log_reward[graph.terminal].double().logsumexp(0)),
        elbo=elbo,
        eubo=eubo,
        total_variation=total_variation(found, target_distribution(graph, log_reward)),
    )


@torch.no_grad()
def draw(space: EnumeratedSpace, trained: Trained, num: int, *, generator: torch.Generator) -> Drawn:
    """Return `num` trajectories of the policy, and ways back from their ends, from `num` even states and from R / Z."""
    graph, env, context = space.graph, space.env, trained.trainer.context
    policy = PolicyOnDevice(trained.trainer.policy, device=torch.device("cpu"), precision="float32")
    nothing = Conditioning(torch.zeros(1, 1), torch.ones(1))
    given = Conditioning(torch.zeros(num, 1), torch.ones(num))
    samples = sample_forward(context, policy, conditioning=given, generator=generator)
    samples = with_own_backward(context, policy, samples)
    ends = graph.locate(env.identify(samples.terminal))
    others = graph.terminal[torch.randperm(len(graph.terminal), generator=generator)[:num]]
    state, position = torch.cat([ends, others]).unique(return_inverse=True)
    reward = target_distribution(graph, space.log_reward)
    wanted = torch.multinomial(reward, num, replacement=True, generator=generator)

    def into(states: Tensor, sampled: Tensor) -> CheckedStates:
        back = draw_back(context, policy, graph.states[states], conditioning=nothing, generator=generator)
        log_reward = space.log_reward[states].double()
        return checked_states(context, policy, back, log_reward=log_reward, sampled=sampled)

    return Drawn(
        samples=samples,
        log_ratio=log_ratio(context, policy, samples),
        checked=into(state, position[:num]),
        state=state,
        even=position[num:],
        target=into(wanted, torch.arange(num)),
    )


@dataclass(frozen=True)
class Comparison:
    """An estimate with its interval, and the exact figure."""

    name: str
    found: Interval
    exact: float
    unit: str = ""

    @property
    def is_near(self) -> bool:
        """Return whether the exact figure is in the interval, made ALLOWED times as wide."""
        value, low, high = self.found.value, self.found.low, self.found.high
        return value - ALLOWED * (value - low) <= self.exact <= value + ALLOWED * (high - value)

    def row(self, label: str, *, wrong: bool = False) -> Row:
        """Return the row of an estimate that is to be right, or of a control that is to be wrong."""
        goal = f"{'not ' if wrong else ''}{self.exact:.4f}, with 95 % in [{self.found.low:.4f}, {self.found.high:.4f}]"
        return Row(f"{label}: {self.name}", self.found.value, self.unit, goal, self.is_near != wrong)


def certificate_of(drawn: Drawn, *, seed: int) -> EstimatedCertificate:
    """Return the certificate of what was drawn."""
    return certify_by_estimates(drawn.samples, drawn.log_ratio, drawn.checked, learned_log_z=None, seed=seed)


def of_trajectories(drawn: Drawn, certificate: EstimatedCertificate, exact: Exact, *, seed: int) -> list[Comparison]:
    """Return log Z and its bounds, beside those of all trajectories there are."""
    into = drawn.target
    upper = log_weights(into.log_ratio, into.log_reward[:, None], into.log_symmetry[:, None]).mean(1)
    return [
        Comparison("log Z", certificate.log_z, exact.log_z, "nats"),
        Comparison("ELBO", certificate.elbo, exact.elbo, "nats"),
        Comparison("EUBO, from the target", evidence_upper_bound(upper, seed=seed), exact.eubo, "nats"),
    ]


def of_checked_states(drawn: Drawn, certificate: EstimatedCertificate, exact: Exact, *, seed: int) -> list[Comparison]:
    """Return what the certificate says from its checked states, beside what exact p says of the same states."""
    checked, log_prob = drawn.checked, exact.log_prob[drawn.state]
    slope = symmetry_slope(log_prob, checked.log_reward, checked.log_symmetry, seed=seed)
    assert slope is not None, "there are states with symmetries"
    assert certificate.symmetry_slope is not None, "there are states with symmetries"
    order = float(spearman(log_prob.numpy(), checked.log_reward.numpy()))
    apart = mean_consistency(log_prob, checked.log_reward, seed=seed)
    return [
        Comparison("EUBO, reweighted", certificate.eubo, exact.eubo, "nats"),
        Comparison("mean log p(x), same states", certificate.log_prob, float(log_prob.mean()), "nats"),
        Comparison("FCS, same states", certificate.flow_consistency, apart),
        Comparison("Spearman(log p, log R), same states", certificate.spearman, order),
        Comparison("slope in log |Aut|, same states", certificate.symmetry_slope, slope.value),
    ]


def of_even_states(space: EnumeratedSpace, drawn: Drawn, exact: Exact, *, seed: int) -> list[Comparison]:
    """Return estimates from states drawn evenly from all terminal ones, beside the exact figures of all of those."""
    ends, checked, even = space.graph.terminal, drawn.checked, drawn.even
    log_prob = terminating_log_prob(checked.log_ratio, checked.log_symmetry)[even]
    log_reward, ratio = checked.log_reward[even], (log_prob - exact.log_prob[drawn.state[even]]).exp()
    subsets = disjoint_subsets(len(even), size=SUBSET_SIZE, generator=torch.Generator().manual_seed(seed))
    order = bootstrap(spearman, [log_prob.numpy(), log_reward.numpy()], seed=seed)
    all_log_prob, all_log_reward = exact.log_prob[ends], space.log_reward[ends].double()
    apart = mean_consistency(all_log_prob, all_log_reward, seed=seed)
    exact_order = float(spearman(all_log_prob.numpy(), all_log_reward.numpy()))
    return [
        Comparison("mean of p(x), estimated / exact", bootstrap(np.mean, [ratio.numpy()], seed=seed), 1.0),
        Comparison("FCS", flow_consistency(log_prob, log_reward, subsets, seed=seed), apart),
        Comparison("Spearman(log p, log R)", order, exact_order),
    ]


def mean_consistency(log_prob: Tensor, log_reward: Tensor, *, seed: int) -> float:
    """Return the flow consistency over many subsets of all states given, [X] both."""
    generator = torch.Generator().manual_seed(seed)
    size = min(SUBSET_SIZE, len(log_prob))
    subsets = torch.randint(len(log_prob), (NUM_SUBSETS, size), generator=generator)
    alone = (subsets.sort(1).values.diff(dim=1) > 0).all(1)  # those without a state twice
    return float(restricted_distances(log_prob[subsets[alone]], log_reward[subsets[alone]]).mean())


def ignoring_symmetries(drawn: Drawn) -> Drawn:
    """Return the same trajectories with |Aut| left out of every estimate: the control."""
    samples, checked, target = (
        replace(part, log_symmetry=torch.zeros_like(part.log_symmetry))
        for part in (drawn.samples, drawn.checked, drawn.target)
    )
    return replace(drawn, samples=samples, checked=checked, target=target)


def state_rows(label: str, drawn: Drawn, exact: Exact) -> list[Row]:
    """Return how near the estimates of log p(x) are, state by state, of the states drawn evenly."""
    checked, even = drawn.checked, drawn.even
    found = terminating_log_prob(checked.log_ratio, checked.log_symmetry)[even]
    known = exact.log_prob[drawn.state[even]]
    log_symmetry, error = checked.log_symmetry[even].double(), (found - known).abs()
    near = float((error < NEAR).double().mean())
    wrong = float(((found + log_symmetry - known).abs() < NEAR)[log_symmetry > 0].double().mean())
    agreement = float(pearson(found.numpy(), known.numpy()))
    effective = float(effective_sample_size(checked.log_ratio[even]).mean())
    within = f"states with p(x) within a factor of {math.exp(NEAR):.2g}"
    rows = [
        Row(within, near, "", f">= {MOST}", near >= MOST),
        Row(f"without |Aut|: {within}, |Aut| > 1", wrong, "", f"<= {1 - MOST:.2g}", wrong <= 1 - MOST),
        Row("median error of log p(x)", float(error.median()), "nats", "", True),
        Row("largest error of log p(x)", float(error.max()), "nats", "", True),
        Row("correlation of log p(x), estimated and exact", agreement, "", f">= {MOST}", agreement >= MOST),
        Row(f"ways back of {NUM_ROLLOUTS} that carry p(x), on average", effective, "", "", True),
        Row("exact total variation of p and R / Z", exact.total_variation, "", "", True),
    ]
    return [replace(row, name=f"{label}: {row.name}") for row in rows]


def policy_rows(
    label: str, space: EnumeratedSpace, trained: Trained, num_samples: int, *, seed: int
) -> tuple[list[Row], list[bool]]:
    """Return the rows of one policy, and which intervals hold what is exact of the whole space."""
    exact = exact_figures(space, trained)
    drawn = draw(space, trained, num_samples, generator=torch.Generator().manual_seed(seed + 2_000))
    certificate, wrong = certificate_of(drawn, seed=seed), ignoring_symmetries(drawn)
    of_space = of_trajectories(drawn, certificate, exact, seed=seed) + of_even_states(space, drawn, exact, seed=seed)
    of_states = of_checked_states(drawn, certificate, exact, seed=seed)
    control = of_trajectories(wrong, certificate_of(wrong, seed=seed), exact, seed=seed)
    control += of_even_states(space, wrong, exact, seed=seed)
    rows = [comparison.row(label) for comparison in of_space + of_states] + state_rows(label, drawn, exact)
    rows += [found.row(f"{label}, without |Aut|", wrong=True) for found in control if found.name in CONTROLS]
    return rows, [comparison.exact in comparison.found for comparison in of_space]


def estimate_rows(*, quick: bool) -> Iterator[Row]:
    """Yield every estimate beside the exact figure, and those that leave |Aut| out; quick: of one short training."""
    held: list[bool] = []
    for space in QUICK if quick else SPACES:
        graph, runs = None, list(product(BACKWARD_POLICIES, SEEDS))
        for backward_policy, seed in runs[-1:] if quick else runs:
            label = f"{space.name}, P_B {backward_policy}, seed {seed}"
            trained = train(space.overrides(backward_policy, seed))
            known = EnumeratedSpace.of(trained.trainer, graph=graph)
            graph = known.graph
            rows, holds = policy_rows(label, known, trained, space.num_samples, seed=seed)
            held += holds
            print(f"{label}: {sum(not row.holds for row in rows)} goals missed, {trained.seconds:.0f} s", flush=True)
            yield from rows
    least = int(binom.ppf(CHANCE, len(held), LEVEL))
    name = f"estimates: 95 % intervals, of {len(held)}, that hold the exact figure of the space"
    yield Row(name, sum(held), "", f">= {least}", sum(held) >= least)


if __name__ == "__main__":
    arguments = parse_arguments(__doc__)
    torch.set_num_threads(1)
    sys.exit(finish(list(estimate_rows(quick=arguments.quick)), json_path=arguments.json))
