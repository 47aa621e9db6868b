"""Estimates against the exact push-forward on spaces that can be enumerated."""

import math
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from gflownet.certificate.estimates import (
    CheckedStates,
    certify_by_estimates,
    certify_exactly,
    disjoint_subsets,
    effective_sample_size,
    evidence_bound,
    flow_consistency,
    log_partition,
    log_ratio,
    log_weights,
    restricted_distances,
    reweighted_upper_bound,
    terminating_log_prob,
    with_learned_backward,
)
from gflownet.certificate.exact import (
    analytic_flows,
    enumerate_states,
    forward_scores,
    policy_log_prob,
    terminating_distribution,
    total_variation,
)
from gflownet.certificate.result import EstimatedCertificate
from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.evaluation.conditioning import Conditioning
from gflownet.evaluation.statistics import Interval, bootstrap, pearson, spearman
from gflownet.learning.sampler import sample_backward, sample_forward
from gflownet.mdp.trajectory import TrajectoryBatch
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


@pytest.mark.parametrize(
    ("name", "learned"), [pytest.param("connected_5", False, marks=pytest.mark.slow), ("dag_4", True)]
)
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
    for bound in (evidence_bound, log_partition):
        estimate = bound(weight, seed=0)
        assert [estimate.low, estimate.value, estimate.high] == pytest.approx([case.log_z] * 3, abs=1e-5)
    back = case.weights(rollouts).reshape(-1, 3)
    upper = (evidence_bound(back[:, 0], seed=0), reweighted_upper_bound(torch.zeros(len(back)), log_prob, back, seed=0))
    assert [bound.value for bound in upper] == pytest.approx([case.log_z] * 2, abs=1e-5)
    if learned:  # under another P_B the same policy has a looser bound
        assert evidence_bound(case.weights(samples), seed=0).value < case.log_z - 0.01
    subsets = random_subsets(len(log_prob), size=4, num=20, generator=torch.Generator().manual_seed(0))
    assert flow_consistency(log_prob, case.log_reward[case.ends], subsets, seed=0).value < 1e-5


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


CONNECTED_5 = GraphBuildingEnv(["a"], max_nodes=5, min_nodes=5)  # 21 graphs; uncorrected L1 = 0.6264


def test_exact_certificate_separates_corrected_and_uncorrected():
    graph = enumerate_states(CONNECTED_5)
    log_reward, log_symmetry = torch.zeros(len(graph)), graph.num_automorphisms.log()
    flows = analytic_flows(graph, log_reward + log_symmetry)
    right = certify_exactly(graph, flows.log_forward, log_reward, learned_log_z=flows.log_z)
    assert (right.num_states, right.num_terminal) == (len(graph), 21)
    assert max(right.total_variation, right.l1, right.jensen_shannon) < 1e-9
    assert right.figures()["log_z_error"] < 1e-9
    assert right.log_z == pytest.approx(math.log(21))
    assert math.isnan(right.spearman), "a uniform reward has no order"
    assert right.symmetries_hold is True
    counts = graph.num_automorphisms[graph.terminal]
    assert [(c.automorphisms, c.num_states) for c in right.classes] == sorted(Counter(counts.tolist()).items())
    assert right.figures()["max_class_deviation"] < 1e-9
    wrong = certify_exactly(graph, analytic_flows(graph, log_reward).log_forward, log_reward, learned_log_z=None)
    assert wrong.l1 == pytest.approx(0.6264, abs=5e-5)
    assert wrong.tv_uncorrected < 1e-9
    assert wrong.tv_of_symmetries == pytest.approx(wrong.l1 / 2)
    assert wrong.symmetries_hold is False
    # log p - log R / Z is log(Z / Z') - log |Aut|, with Z' the total of R / |Aut|.
    excess = [c.deviation + math.log(c.automorphisms) for c in wrong.classes]
    assert excess == pytest.approx([excess[0]] * len(excess))
    assert math.isnan(wrong.figures()["log_z_error"])
    at_random = -graph.parent.bincount()[graph.parent].double().log()
    neither = certify_exactly(graph, at_random, log_reward, learned_log_z=None)
    assert min(neither.total_variation, neither.tv_uncorrected) > neither.tv_of_symmetries / 2
    assert neither.symmetries_hold is None


def test_exact_certificate_with_unequal_rewards_or_without_symmetries():
    graph = enumerate_states(GraphBuildingEnv(["a", "b"], max_nodes=2, min_nodes=2, directed=True))
    assert bool((graph.num_automorphisms == 1).all())
    log_reward = torch.randn(len(graph), generator=torch.Generator().manual_seed(0))
    flows = analytic_flows(graph, log_reward)
    certificate = certify_exactly(graph, flows.log_forward, log_reward, learned_log_z=flows.log_z + 0.5)
    assert certificate.spearman == pytest.approx(1)
    assert certificate.symmetries_hold is None
    assert certificate.figures()["log_z_error"] == pytest.approx(0.5)


def estimated(case: Case, *, learned_log_z: float | None = None) -> EstimatedCertificate:
    samples, num_rollouts = case.samples(64, seed=1), 4
    ends = torch.tensor(case.space.position_of(samples.terminal))
    checked = torch.cat([ends, case.ends]).unique()
    back = case.into(checked.repeat_interleave(num_rollouts), seed=2)
    states = CheckedStates(
        log_reward=case.log_reward[checked],
        log_symmetry=back.log_symmetry[::num_rollouts],
        log_ratio=log_ratio(case.context, case.policy, back).reshape(-1, num_rollouts),
        sampled=torch.searchsorted(checked, ends),
    )
    ratio = log_ratio(case.context, case.policy, samples)
    return certify_by_estimates(samples, ratio, states, learned_log_z=learned_log_z, seed=3)


def test_estimated_certificate_of_balanced_flows_has_no_error():
    case = make_case("connected_5")
    certificate = estimated(case, learned_log_z=case.log_z)
    for bound in (certificate.elbo, certificate.log_z, certificate.eubo):
        assert [bound.low, bound.value, bound.high] == pytest.approx([case.log_z] * 3, abs=1e-4)
    assert certificate.flow_consistency.value < 1e-5
    assert [certificate.spearman.value, certificate.pearson.value] == pytest.approx([1, 1])
    assert certificate.effective_rollouts == pytest.approx(4, abs=1e-3)
    assert certificate.log_prob.value == pytest.approx(
        float((case.log_reward[case.ends] - case.log_z).mean()), abs=1e-4
    )
    assert certificate.symmetries_hold is True
    figures = certificate.figures()
    assert figures["learned_log_z"] == case.log_z
    assert figures["elbo_low"] <= figures["elbo"] <= figures["elbo_high"]


def test_estimated_certificate_detects_uncorrected_policy():
    certificate = estimated(make_case("connected_5", corrected=False))
    slope = certificate.symmetry_slope
    assert slope is not None
    assert slope.value == pytest.approx(-1, abs=1e-3)
    assert certificate.symmetries_hold is False
    assert certificate.flow_consistency.low > 0.1
    assert certificate.spearman.high < 1
    assert math.isnan(certificate.figures()["learned_log_z"])


def test_estimated_certificate_without_symmetries():
    case = make_case("two_coloured_3", noise=0.5)
    only = (case.log_symmetry == 0).nonzero().squeeze(1)
    states = CheckedStates(
        log_reward=case.log_reward[case.ends[only]],
        log_symmetry=case.log_symmetry[only],
        log_ratio=log_ratio(case.context, case.policy, case.into(case.ends[only], seed=0))[:, None],
        sampled=torch.zeros(8, dtype=torch.int64),
    )
    samples = case.into(case.ends[only][:1].expand(8), seed=1)
    ratio = log_ratio(case.context, case.policy, samples)
    certificate = certify_by_estimates(samples, ratio, states, learned_log_z=None, seed=0)
    assert certificate.symmetry_slope is None
    assert certificate.symmetries_hold is None
    assert math.isnan(certificate.figures()["symmetry_slope"])
