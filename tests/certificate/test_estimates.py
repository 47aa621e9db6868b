"""Estimates against the exact push-forward on spaces that can be enumerated."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from gflownet.certificate.estimates import (
    disjoint_subsets,
    effective_sample_size,
    evidence_lower_bound,
    evidence_upper_bound,
    flow_consistency,
    log_partition,
    log_ratio,
    log_weights,
    restricted_distances,
    reweighted_upper_bound,
    symmetry_slope,
    terminating_log_prob,
    with_learned_backward,
)
from gflownet.certificate.exact import (
    enumerate_states,
    forward_scores,
    policy_log_prob,
    terminating_distribution,
    total_variation,
)
from gflownet.data.sampler import sample_backward, sample_forward
from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.evaluation.conditioning import Conditioning
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.metrics.statistics import Interval, bootstrap, pearson, spearman
from tests.oracles.tabular import (
    Classes,
    Flows,
    RememberingContext,
    TabularPolicy,
    classes_of,
    labelled_flows,
    random_backward,
    tabular,
    uniform_backward,
)

SPACES = {
    "two_coloured_3": GraphBuildingEnv(["a", "b"], max_nodes=3),
    "connected_5": GraphBuildingEnv(["a"], max_nodes=5, min_nodes=5),
    "dag_4": GraphBuildingEnv(["a"], max_nodes=4, directed=True),
}


@dataclass(frozen=True)
class Case:
    """A space, rewards, and a policy with a known terminating distribution."""

    space: Classes
    log_reward: Tensor  # [S]
    context: RememberingContext
    policy: TabularPolicy

    @property
    def ends(self) -> Tensor:
        return self.space.graph.terminal

    @property
    def log_z(self) -> float:
        return float(self.log_reward[self.ends].logsumexp(0))

    @property
    def log_symmetry(self) -> Tensor:
        return self.space.graph.num_automorphisms[self.ends].log()

    def exact(self) -> Tensor:
        """Return p(x) of the terminal states."""
        scores = forward_scores(self.context, self.policy, torch.zeros(1))
        return terminating_distribution(self.space.graph, policy_log_prob(self.space.graph, scores))[self.ends]

    def into(self, ends: Tensor, *, seed: int, learned: bool = False) -> TrajectoryBatch:
        batch = sample_backward(
            self.context,
            self.space.graph.states[ends],
            conditioning=_nothing(len(ends)),
            generator=torch.Generator().manual_seed(seed),
            policy=self.policy if learned else None,
        )
        batch = batch.with_rewards(self.log_reward[ends].float())
        return with_learned_backward(self.context, self.policy, batch) if learned else batch

    def samples(self, num: int, *, seed: int) -> TrajectoryBatch:
        generator = torch.Generator().manual_seed(seed)
        batch = sample_forward(self.context, self.policy, conditioning=_nothing(num), generator=generator)
        return batch.with_rewards(self.log_reward[self.space.position_of(batch.terminal)].float())

    def weights(self, batch: TrajectoryBatch) -> Tensor:
        return log_weights(log_ratio(self.context, self.policy, batch), batch.log_reward, batch.log_symmetry)


def random_subsets(num_states: int, *, size: int, num: int, generator: torch.Generator) -> Tensor:
    return torch.stack([torch.randperm(num_states, generator=generator)[:size] for _ in range(num)])


def _nothing(num: int) -> Conditioning:
    return Conditioning(torch.zeros(num, 1), torch.ones(num))


def make_case(name: str, *, corrected: bool = True, learned: bool = False, noise: float = 0.0) -> Case:
    """A policy with balanced flows, with or without symmetry correction, and noise added to its logits."""
    env = SPACES[name]
    space = classes_of(env, enumerate_states(env))
    log_reward = torch.randn(len(space.graph), generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    backward = random_backward(space, seed=5) if learned else uniform_backward(space)
    flows = labelled_flows(space, log_reward + space.graph.num_automorphisms.log() * corrected, backward)
    context, policy = tabular(space, _with_noise(flows, noise), backward=learned)
    return Case(space, log_reward, context, policy)


def _with_noise(flows: Flows, noise: float) -> Flows:
    generator = torch.Generator().manual_seed(2)
    shifts = noise * torch.randn(len(flows.log_forward), generator=generator, dtype=torch.float64)
    pairs = zip(flows.log_forward.items(), shifts.tolist(), strict=True)
    return replace(flows, log_forward={key: value + shift for (key, value), shift in pairs})


@pytest.mark.parametrize(
    "name", ["two_coloured_3", *(pytest.param(name, marks=pytest.mark.slow) for name in ("connected_5", "dag_4"))]
)
def test_terminating_log_prob_matches_exact_distribution(name):
    """Within four standard errors for a policy without balance; the result without |Aut| is outside."""
    case, num = make_case(name, noise=0.7), 400
    ratios = log_ratio(case.context, case.policy, case.into(case.ends.repeat_interleave(num), seed=1)).reshape(-1, num)
    estimate, exact = terminating_log_prob(ratios, case.log_symmetry), case.exact()
    assert float(exact.sum()) == pytest.approx(1)
    error = ratios.exp().std(1) / num**0.5 / case.log_symmetry.exp()
    off = (estimate.exp() - exact).abs()
    assert bool((off < 4 * error + 1e-6).all())
    assert bool((off < 0.3 * exact).all())
    wrong = terminating_log_prob(ratios, torch.zeros(len(exact)))
    symmetric = case.log_symmetry != 0
    assert bool(symmetric.any())
    assert bool(((wrong.exp() - exact).abs() > 0.3 * exact)[symmetric].all())


@pytest.mark.parametrize(("name", "learned"), [("connected_5", False), ("dag_4", True)])
def test_estimates_of_balanced_flows_are_exact(name, learned):
    """With any P_B: p(x) = R(x) / Z from one backward trajectory, ELBO = log Z = EUBO, and subsets are consistent."""
    case = make_case(name, learned=learned)
    rollouts = case.into(case.ends.repeat_interleave(3), seed=4, learned=learned)
    ratios = log_ratio(case.context, case.policy, rollouts).reshape(-1, 3)
    log_prob = terminating_log_prob(ratios[:, :1], rollouts.log_symmetry[::3])
    assert torch.allclose(log_prob, case.log_reward[case.ends] - case.log_z, atol=1e-5)
    assert torch.allclose(effective_sample_size(ratios), torch.full((len(ratios),), 3.0).double(), atol=1e-4)
    samples = case.samples(50, seed=5)
    weight = case.weights(with_learned_backward(case.context, case.policy, samples) if learned else samples)
    for bound in (evidence_lower_bound, log_partition):
        estimate = bound(weight, seed=0)
        assert [estimate.low, estimate.value, estimate.high] == pytest.approx([case.log_z] * 3, abs=1e-5)
    back = case.weights(rollouts).reshape(-1, 3)
    upper = (
        evidence_upper_bound(back[:, 0], seed=0),
        reweighted_upper_bound(torch.zeros(len(back)), log_prob, back, seed=0),
    )
    assert [bound.value for bound in upper] == pytest.approx([case.log_z] * 2, abs=1e-5)
    if learned:  # under another P_B the same policy has a looser bound
        assert evidence_lower_bound(case.weights(samples), seed=0).value < case.log_z - 0.01
    subsets = random_subsets(len(log_prob), size=4, num=20, generator=torch.Generator().manual_seed(0))
    assert flow_consistency(log_prob, case.log_reward[case.ends], subsets, seed=0).value < 1e-5


def test_evidence_bounds_enclose_log_z():
    case = make_case("connected_5", noise=0.4)
    weight = case.weights(case.samples(600, seed=6))
    target = case.log_reward[case.ends].softmax(0)
    ends = case.ends[torch.multinomial(target, 600, replacement=True, generator=torch.Generator().manual_seed(7))]
    elbo, eubo = (
        evidence_lower_bound(weight, seed=0),
        evidence_upper_bound(case.weights(case.into(ends, seed=8)), seed=0),
    )
    assert elbo.high < case.log_z < eubo.low
    assert case.log_z in log_partition(weight, seed=0)
    assert eubo.value - elbo.value > 0.2
    sampled = case.samples(600, seed=9)
    ends = torch.tensor(case.space.position_of(sampled.terminal))
    back = case.weights(case.into(ends.repeat_interleave(5), seed=10)).reshape(-1, 5)
    exact = dict(zip(case.ends.tolist(), case.exact().log().tolist(), strict=True))
    log_prob = torch.tensor([exact[end] for end in ends.tolist()])
    assert reweighted_upper_bound(sampled.log_reward, log_prob, back, seed=0).value == pytest.approx(
        eubo.value, abs=0.1
    )


def test_symmetry_slope_of_uncorrected_policy():
    case = make_case("connected_5", corrected=False)
    rollouts = case.into(case.ends, seed=9)
    log_prob = terminating_log_prob(log_ratio(case.context, case.policy, rollouts)[:, None], rollouts.log_symmetry)
    off = log_prob - case.log_reward[case.ends] + case.log_symmetry
    assert float(off.max() - off.min()) < 1e-4
    slope = symmetry_slope(log_prob, case.log_reward[case.ends], rollouts.log_symmetry, seed=0)
    assert slope is not None
    assert slope.value == pytest.approx(-1, abs=1e-3)
    right = make_case("connected_5")
    log_prob = terminating_log_prob(log_ratio(right.context, right.policy, rollouts)[:, None], rollouts.log_symmetry)
    slope = symmetry_slope(log_prob, case.log_reward[case.ends], rollouts.log_symmetry, seed=0)
    assert slope is not None
    assert slope.value == pytest.approx(0, abs=1e-3)
    assert symmetry_slope(log_prob, log_prob, torch.zeros(len(log_prob)), seed=0) is None


def test_flow_consistency_is_mean_distance_within_subsets():
    generator = torch.Generator().manual_seed(0)
    log_p, log_r = torch.randn(2, 12, generator=generator).double()
    together = torch.arange(12)[None]
    assert restricted_distances(log_p[together], log_r[together] + 7).item() == pytest.approx(
        total_variation(log_p.softmax(0), log_r.softmax(0))
    )
    assert (
        flow_consistency(log_p, log_p - 3, random_subsets(12, size=4, num=9, generator=generator), seed=0).value < 1e-9
    )
    every = torch.combinations(torch.arange(12), 3)
    subsets = random_subsets(12, size=3, num=800, generator=generator)
    assert all(len(set(subset)) == 3 for subset in subsets.tolist())
    exact = restricted_distances(log_p[every], log_r[every]).mean().item()
    estimate = flow_consistency(log_p, log_r, subsets, seed=0)
    assert exact in estimate
    assert estimate.high - estimate.low < 0.05
    apart = disjoint_subsets(12, size=5, generator=generator)
    assert apart.shape == (2, 5)
    assert len(apart.unique()) == 10


def test_correlations_match_scipy_with_ties():
    from scipy import stats

    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 4, (2, 5, 30)).astype(float)
    for i in range(5):
        assert spearman(a, b)[i] == pytest.approx(stats.spearmanr(a[i], b[i])[0])
        assert pearson(a, b)[i] == pytest.approx(stats.pearsonr(a[i], b[i])[0])
    assert spearman(np.array([1.0, 2.0, 3.0]), np.array([1.0, 8.0, 9.0])) == pytest.approx(1)
    assert np.isnan(spearman(np.ones(3), np.arange(3.0)))


@pytest.mark.slow
def test_interval_coverage():
    """47.5 of 50 repeats are expected, with a deviation of 1.5; fewer for log Z, whose estimate is skewed."""
    case = make_case("connected_5", noise=0.4)
    weights = case.weights(case.samples(50 * 100, seed=11)).reshape(50, 100)
    log_prob, log_reward = case.exact().log(), case.log_reward[case.ends]
    generator = torch.Generator().manual_seed(1)
    subsets = random_subsets(len(log_prob), size=8, num=50 * 30, generator=generator)
    consistency = restricted_distances(log_prob[subsets], log_reward[subsets]).mean().item()
    rng = np.random.default_rng(1)
    hits = dict.fromkeys(("log_z", "elbo", "consistency", "spearman"), 0)
    for seed in range(50):
        hits["log_z"] += case.log_z in log_partition(weights[seed], seed=seed)
        hits["elbo"] += float(weights.mean()) in evidence_lower_bound(weights[seed], seed=seed)
        selected = subsets[30 * seed : 30 * seed + 30]
        hits["consistency"] += consistency in flow_consistency(log_prob, log_reward, selected, seed=seed)
        pair = rng.multivariate_normal([0, 0], [[1.0, 0.6], [0.6, 1.0]], 60).T
        hits["spearman"] += 6 / np.pi * np.arcsin(0.3) in bootstrap(spearman, list(pair), seed=seed)
    assert all(43 <= num <= 49 for num in hits.values()), hits


def test_bootstrap_of_constant_and_single_observation():
    same = bootstrap(np.mean, [np.full(5, 2.0)], seed=0)
    assert same == Interval(2.0, 2.0, 2.0)
    assert 2.0 in same
    one = bootstrap(np.mean, [np.array([2.0])], seed=0)
    assert one.value == 2.0
    assert 2.0 not in one
    rare = np.array([1.0] + [0.0] * 5)  # without its first entry it is constant, as in a third of all resamples
    estimate = bootstrap(spearman, [rare, np.arange(6.0)], seed=0)
    assert np.isfinite([estimate.low, estimate.high]).all()
