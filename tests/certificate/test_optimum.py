"""The exact optimum of every objective is the target; planted errors of objectives are reported by name."""

import importlib
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from gflownet.certificate.result import Check, EstimatedCertificate
from gflownet.certificate.words import CONVERGED, _content, errors, findings, has_converged, sentence
from gflownet.evaluation.statistics import Interval
from gflownet.learning import sampler
from gflownet.mdp.action import ActionBatch, GraphActionType
from gflownet.objectives.base import Loss
from gflownet.objectives.config import AlgoConfig
from gflownet.objectives.detailed_balance import DetailedBalance
from gflownet.objectives.steps import StepReader
from gflownet.objectives.trajectory_balance import TrajectoryBalance, total_loss
from tests.certificate.subjects import Case
from tests.fast_cases import slow_except
from tests.objectives.balanced import COMBINATIONS, FLOW_OBJECTIVES, set_up_relative
from tests.objectives.spaces import make_space, rewards_of
from tests.oracles.tabular import Classes

_METHODS = [(method, *scheme) for method in (*FLOW_OBJECTIVES, "fm") for scheme in COMBINATIONS]
_VALID = [(m, symmetry, backward) for m, symmetry, backward in _METHODS if m != "fm" or backward == "uniform"]
# Every scheme, and objectives with log Z, with flows of states and with flows of actions.
_QUICK = {("tb", "actions", "learned"), ("db", "flows", "uniform"), ("fm", "reward", "uniform")}


@pytest.fixture(scope="module")
def space() -> Classes:
    return make_space("two_coloured_3")


def verdict(case: Case, **options: Any) -> tuple[list[str], list[str]]:
    """Return the names of the errors and the lines of the only conditioning."""
    certificate = case.certified(**options)
    return errors(certificate), [f"{f.subject}: {f.text}" for f in findings(certificate, certificate.parts[0])]


@pytest.mark.parametrize(
    ("method", "symmetry", "backward"),
    [case if case in _QUICK else pytest.param(*case, marks=pytest.mark.slow) for case in _VALID],
)
def test_exact_optimum_of_objective_is_the_target(space, method, symmetry, backward):
    certificate = Case.of(space, AlgoConfig(method=method, symmetry=symmetry, backward_policy=backward)).certified()
    (part,) = certificate.parts
    assert errors(certificate) == []
    assert part.optimum is not None
    assert part.optimum.loss is not None
    assert part.optimum.loss.loss < 1e-9
    assert part.tv_to_optimum is not None
    assert part.tv_to_optimum < 1e-6
    if symmetry == "none":
        assert part.optimum.total_variation > 0.1
        assert findings(certificate, part)[0].text.startswith(f"of {certificate.objective_words} is R / |Aut|, not R")
    else:
        assert part.optimum.total_variation < 1e-6
        assert has_converged(part)


def test_exact_optimum_of_modified_detailed_balance_is_the_target():
    certificate = Case.of(make_space("from_one_node_4"), AlgoConfig(method="modified_db")).certified()
    assert errors(certificate) == []
    optimum = certificate.parts[0].optimum
    assert optimum is not None
    assert optimum.loss is not None
    assert optimum.loss.loss < 1e-9
    assert optimum.loss.reported_log_z is None


def test_exact_optimum_of_relative_trajectory_balance_is_prior_times_reward(space):
    objective, policy, _ = set_up_relative(space)
    certificate = Case(space, objective, policy, policy.context).certified()
    assert errors(certificate) == []
    (part,) = certificate.parts
    assert part.optimum is not None
    assert part.optimum.total_variation < 1e-6
    assert part.optimum.loss is not None
    assert part.optimum.loss.loss < 1e-9
    assert has_converged(part)


class SubtractsLogZ(TrajectoryBalance):
    """A sign error in the loss: log Z is learned as -log Z."""

    def loss(self, policy, trajectories) -> Loss:
        steps = self.reader.read(policy, trajectories)
        log_z = self.log_z(trajectories.conditioning)
        return total_loss(self.regression(self.log_ratio(steps, trajectories) - log_z).mean(), steps, {})


class ReportsNegativeLogZ(TrajectoryBalance):
    def log_partition(self, policy, conditioning, limit=None):
        return -self.log_z(conditioning)


class ReportsLargerLogZ(TrajectoryBalance):
    def log_partition(self, policy, conditioning, limit=None):
        return self.log_z(conditioning) + 1


class FlipsTheBackwardPolicy(DetailedBalance):
    """Detailed balance with log P_B on the wrong side."""

    def loss(self, policy, trajectories) -> Loss:
        steps = self.reader.read(policy, trajectories)
        log_flow = self.log_flow(steps, trajectories)
        after = steps.log_reward[steps.trajectory].index_put((steps.step,), log_flow[steps.successor])
        return total_loss(self.regression(log_flow + steps.log_forward - after + steps.log_backward).mean(), steps, {})


class HalvesTheSymmetry(StepReader):
    """A wrong symmetry term: R(x) is multiplied by the square root of |Aut(x)|."""

    def log_reward(self, trajectories):
        return trajectories.log_reward + trajectories.log_symmetry / 2


HALVED = ("+0.347 instead of +0.693", "+0.896 instead of +1.792")  # |Aut| = 2 and 6


def with_sign_error(space: Classes) -> Case:
    case = Case.of(space, objective=SubtractsLogZ)
    torch.nn.init.constant_(case.objective.log_z.base, -float(case.objective.log_z.base.detach()))
    return case


@pytest.mark.slow
def test_sign_error_of_log_z_in_loss_is_reported(space):
    names, lines = verdict(with_sign_error(space))
    assert names == ["sign of log Z"]
    assert lines[0].startswith("exact optimum: ERROR, sign of log Z: the loss of subtracts log z is ")
    assert lines[1].startswith("network: trained enough: total variation 0.0000")
    assert lines[2] == "log Z: ERROR, sign of log Z: learned -3.6943, true 3.6943"


@pytest.mark.slow
def test_sign_error_of_reported_log_z_is_reported(space):
    names, lines = verdict(Case.of(space, objective=ReportsNegativeLogZ))
    assert names == ["sign of log Z"]
    assert lines[-1] == "log Z: ERROR, sign of log Z: -3.6943 at the exact optimum, true 3.6943"


@pytest.mark.slow
def test_offset_of_reported_log_z_is_reported(space):
    names, lines = verdict(Case.of(space, objective=ReportsLargerLogZ))
    assert names == ["offset of log Z"]
    assert lines[-1].endswith("true 3.6943, +1.0000")


def test_log_z_that_is_still_learned_has_one_verdict(space):
    case = Case.of(space)
    torch.nn.init.constant_(case.objective.log_z.base, 3.0)
    names, lines = verdict(case)
    assert names == []
    loss = "total variation 0.0000 and a loss of 0.482: log Z is not learned yet"
    assert lines[1] == f"network: not converged: {loss}, limit {CONVERGED}; train for longer"
    assert lines[2] == "log Z: learned 3.0000, true 3.6943; not judged before the network has converged"


@pytest.mark.parametrize(
    ("road", "max_states"), [("sample_forward", 1_000), ("assembled", 1_000), ("sample_forward", 5)]
)
def test_removal_too_many_in_uniform_backward_is_named(space, road, max_states, monkeypatch):
    """log P_B is -log(removals + 1) in the trajectories of one sampler; those into terminal states are right."""
    usual = getattr(sampler, road)

    def planted(*args, **kwargs):
        batch = usual(*args, **kwargs)
        stops = batch.actions.kind == int(GraphActionType.Stop)
        return replace(batch, log_backward=torch.where(stops, 0.0, -((-batch.log_backward).exp() + 1).log()))

    for module in ("subject", "certify"):
        monkeypatch.setattr(importlib.import_module(f"gflownet.certificate.{module}"), road, planted, raising=False)
    names, lines = verdict(Case.of(space), max_states=max_states)
    assert names[0] == Check.UNIFORM.value
    if max_states > 5:
        assert names[1:] == ["loss at the exact optimum"]
        where = "at once" if road == "sample_forward" else "step by step"
        assert lines[0].endswith(f"at flows that balance R, expected 0, on trajectories sampled {where}")


@pytest.mark.parametrize("max_states", [1_000, 5])
def test_inverse_of_another_step_is_named(space, max_states, monkeypatch):
    """Each step has the inverse of the one before; uniform log P_B is right."""
    usual = sampler.sample_forward

    def planted(*args, **kwargs):
        batch = usual(*args, **kwargs)
        return replace(batch, backward=ActionBatch(*(part.roll(1) for part in batch.backward.parts)))

    for module in ("subject", "certify"):
        place = importlib.import_module(f"gflownet.certificate.{module}")
        monkeypatch.setattr(place, "sample_forward", planted, raising=False)
    names, _ = verdict(Case.of(space), max_states=max_states)
    assert names == [Check.DISAGREE.value]


def test_distance_that_the_loss_does_not_show_is_an_error(space, monkeypatch):
    """The loss is that of another network: it is 0 while the sampler's total variation is large."""
    case = Case.of(space)
    exact = Case.of(space)
    with torch.no_grad():
        case.policy.forward_logits[:5] += 3.0
    case.trained = exact.policy
    names, lines = verdict(case)
    assert names == ["loss of the network"]
    assert "at which more training changes nothing" in lines[1]


@pytest.mark.slow
def test_log_z_of_estimated_certificate_is_compared(space):
    certificate = with_sign_error(space).certified(max_states=5)
    assert errors(certificate) == ["sign of log Z"]
    assert certificate.parts[0].optimum is None
    assert errors(Case.of(space).certified(max_states=5)) == []


def test_collapsed_sampler_is_not_trained_enough(space, monkeypatch):
    """The flows are those of another reward, without 65 % of the mass: graphs with colour b are never sampled."""
    rewards, has_b = rewards_of(space), (space.graph.states.node_type == 1).any(1)
    monkeypatch.setattr("tests.objectives.balanced.rewards_of", lambda space: rewards.masked_fill(has_b, -60.0))
    certificate = Case.of(space).certified(max_states=10)
    (part,) = certificate.parts
    assert not has_converged(part)
    network, log_z = findings(certificate, part)
    assert network.text.startswith("not converged: flow consistency 0.")
    assert log_z.text.endswith("; equal on the states that the policy samples")


def test_estimates_of_exact_network_name_their_states(space):
    lines = verdict(Case.of(space), max_states=5)[1]
    assert lines[0].startswith("network: trained enough on the 15 states compared: flow consistency 0.0000 [0.0000, ")
    assert lines[1].startswith("log Z: right: learned 3.6943, estimated 3.6943")


@pytest.mark.slow
def test_single_terminal_state_is_not_judged():
    certificate = Case.of(make_space("two_coloured_3")).certified(max_states=5)
    (part,) = certificate.parts
    assert isinstance(part.certificate, EstimatedCertificate)
    unknown = replace(part.certificate, flow_consistency=Interval(0.0, math.nan, math.nan))
    part = replace(part, certificate=unknown)
    assert not has_converged(part)
    assert findings(certificate, part)[0].text.startswith("not judged: flow consistency 0.0000 [nan, nan], too few")


@pytest.mark.slow
def test_log_z_of_untrained_network_is_not_judged(space):
    case = with_sign_error(space)
    case.objective = Case.of(space).objective
    torch.nn.init.constant_(case.objective.log_z.base, -3.0)
    with torch.no_grad():
        case.policy.forward_logits.zero_()
    names, lines = verdict(case)
    assert names == []
    assert lines[-1] == "log Z: learned -3.0000, true 3.6943; not judged before the network has converged"
    assert lines[-2].startswith("network: not converged: total variation 0.")
    assert lines[-2].endswith(f", limit {CONVERGED}; train for longer")


@pytest.mark.slow
def test_no_longer_training_is_advised_where_the_optimum_is_far(space):
    case = Case.of(space, AlgoConfig(symmetry="none"))
    with torch.no_grad():
        case.policy.forward_logits.zero_()
    names, lines = verdict(case)
    assert names == []
    (line,) = [line for line in lines if line.startswith("network: ")]
    assert line.endswith(f", limit {CONVERGED}; no training reaches it: the exact optimum is further away")
    certificate = case.certified()
    words, tone = sentence(_content(certificate, certificate.parts[0]), [])
    assert words.endswith("No training reaches it: the optimum of the objective is not the target.")
    assert tone == "bad"


@pytest.mark.parametrize("max_states", [1_000, pytest.param(5, marks=pytest.mark.slow)])
def test_wrong_symmetry_term_is_reported(space, max_states):
    case = Case.of(space)
    case.objective.reader = HalvesTheSymmetry(case.context, AlgoConfig())
    names, lines = verdict(case, max_states=max_states)
    assert names[0] == "symmetry term"
    assert lines[0].startswith("exact optimum: ERROR, symmetry term: ")
    assert any(f"{term} on the log-reward of [" in lines[0] for term in HALVED)


def test_wrong_loss_is_reported(space):
    case = Case.of(space, AlgoConfig(method="db"))
    case.objective = FlipsTheBackwardPolicy(case.context, AlgoConfig(method="db"))
    assert errors(case.certified()) == ["loss at the exact optimum"]


class Changed(TrajectoryBalance):
    """Trajectory balance with a changed loss of the residuals."""

    def changed(self, residual: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def loss(self, policy, trajectories) -> Loss:
        steps = self.reader.read(policy, trajectories)
        residual = self.log_z(trajectories.conditioning) + self.log_ratio(steps, trajectories)
        return total_loss(self.changed(residual), steps, {})


CHANGES = {
    "zero": lambda residual: 0 * residual.square().mean(),
    "negative": lambda residual: -residual.square().mean(),
    "one-sided": lambda residual: residual.clamp(max=0).square().mean(),
    "square of the mean": lambda residual: residual.mean().square(),
    "without gradient": lambda residual: residual.detach().square().mean(),
}


@pytest.mark.parametrize("name", slow_except(["without gradient", "one-sided"], CHANGES))
def test_loss_that_trains_nothing_is_reported(name, space):
    changed = type("Changed", (Changed,), {"changed": lambda self, residual: CHANGES[name](residual)})
    names, lines = verdict(Case.of(space, objective=changed))
    assert names == ["loss away from the exact optimum"]
    assert lines[0].startswith("exact optimum: ERROR, loss: changed has a loss of ")


def test_negative_loss_at_the_optimum_is_reported(space):
    changed = type("Changed", (Changed,), {"changed": lambda self, residual: residual.square().mean() - 5})
    assert verdict(Case.of(space, objective=changed))[0] == ["loss at the exact optimum"]


@pytest.mark.slow
def test_noise_of_the_network_is_not_an_error(space):
    case = Case.of(space, noise=1.0)
    certificate = case.certified()
    assert errors(certificate) == []
    (part,) = certificate.parts
    assert not has_converged(part)
    assert part.tv_to_optimum == pytest.approx(part.certificate.figures()["total_variation"], abs=1e-6)
    first = findings(certificate, part)[0].text
    assert first.startswith("of trajectory balance is the target (total variation 0.0000, loss 0.0000 on 271 traj")


def test_objective_with_other_target_has_no_optimum(space):
    case = Case.of(space)
    case.objective.samples_reward = False
    assert case.certified().parts[0].optimum is None
    assert verdict(case)[1] == ["network: trajectory balance aims at another distribution than R / Z"]
