"""Certificates of policies whose distribution is known: right, uncorrected, and neither."""

import math
from collections import Counter

import pytest
import torch

from gflownet.certificate.estimates import CheckedStates, certify_by_estimates, certify_exactly, log_ratio
from gflownet.certificate.exact import analytic_flows, enumerate_states
from gflownet.certificate.result import EstimatedCertificate
from gflownet.envs.graph_building import GraphBuildingEnv
from tests.certificate.test_estimates import Case, make_case

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
