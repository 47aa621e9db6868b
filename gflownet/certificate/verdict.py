"""The verdict of a certificate in words: an error of the rules, of the objective, of log Z, or too little training."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from gflownet.certificate.balanced_loss import PerturbedLoss
from gflownet.certificate.figures import ExactCertificate
from gflownet.certificate.result import Certified, RunCertificate
from gflownet.certificate.rules import RuleReport

# Maximum total variation, or upper end of the interval of the flow consistency, of a network that is trained enough.
CONVERGED = 0.05
_EXACT = 1e-6  # maximum total variation of an exact optimum from the target; rewards are in single precision
_NO_LOSS = 1e-4  # loss at the exact optimum caused by rounding
_LOG_Z_TOLERANCE = 0.1  # nats, of a learned log Z; twice CONVERGED more once the network is trained
_LOG_Z_ROUNDING = 1e-3  # nats


@dataclass(frozen=True)
class Finding:
    """One line of the verdict."""

    subject: str  # rules, exact optimum, network or log Z
    text: str
    error: str | None = None  # name of the failed check


def rule_findings(rules: RuleReport) -> list[Finding]:
    """Return one finding if all rules of the environment hold, otherwise one for each failed check, causes first."""
    if rules.violations:
        return [
            Finding("rules", f"ERROR, {v.check.value}: {v.num:,} times, first {v.example}", v.check.value)
            for v in rules.violations
        ]
    states = f"all {rules.num_states:,} states" if rules.is_complete else f"{rules.num_states:,} sampled states"
    text = (
        f"hold: {rules.num_transitions:,} transitions checked, from {states}; "
        f"{rules.num_counted:,} automorphism counts repeated by another method"
    )
    return [Finding("rules", text)]


def findings(certificate: RunCertificate, part: Certified) -> list[Finding]:
    """Return the verdict under one conditioning; the rules of the environment have theirs (`rule_findings`)."""
    if not certificate.samples_reward:
        return [Finding("network", f"{certificate.objective_words} aims at another distribution than R / Z")]
    return [*_optimum(certificate, part), _network(certificate, part), *_log_z(part)]


def has_converged(part: Certified) -> bool:
    """Return whether the network's distance from the target is at most CONVERGED; False if that is unknown."""
    return _distance(part) <= CONVERGED


def errors(certificate: RunCertificate) -> list[str]:
    """Return the names of all failed checks, each once; too little training is no error."""
    every = [
        *rule_findings(certificate.rules),
        *(finding for part in certificate.parts for finding in findings(certificate, part)),
    ]
    return list(dict.fromkeys(finding.error for finding in every if finding.error is not None))


def _distance(part: Certified) -> float:
    figures = part.certificate
    return figures.total_variation if isinstance(figures, ExactCertificate) else figures.flow_consistency.high


def _optimum(certificate: RunCertificate, part: Certified) -> Iterator[Finding]:
    """Yield the findings about the optimum of the objective and its symmetry term."""
    term, optimum = part.symmetry_term, part.optimum
    if term is not None:
        yield Finding(
            "exact optimum", f"ERROR, symmetry term: {term.num} states, first {term.example}", "symmetry term"
        )
    if optimum is None:
        return
    name, loss = certificate.objective_words, optimum.loss
    distance = f"total variation {optimum.total_variation:.4f}"
    if optimum.total_variation > _EXACT or math.isnan(optimum.total_variation):
        if certificate.symmetry == "none" and certificate.rules.holds:
            yield Finding("exact optimum", f"of {name} is R / |Aut|, not R: algo.symmetry=none ({distance})")
        else:
            yield Finding("exact optimum", f"ERROR, of {name} is not the target: {distance}", "exact optimum")
        return
    elsewhere = None if loss is None else loss.elsewhere
    if loss is None:
        yield Finding("exact optimum", f"of {name} is the target ({distance})")
    elif loss.loss <= _NO_LOSS and elsewhere is not None and not _is_penalty(elsewhere):
        gradient = "" if elsewhere.has_gradient else " without a gradient"
        text = f"a loss of {elsewhere.loss:.4f}{gradient} at other flows ({elsewhere.change}), expected more than 0"
        yield Finding("exact optimum", f"ERROR, loss: {name} has {text}", "loss away from the exact optimum")
    elif loss.loss <= _NO_LOSS:
        measured = f"loss {loss.loss:.4f} on {loss.num_trajectories} trajectories"
        yield Finding("exact optimum", f"of {name} is the target ({distance}, {measured})")
    elif loss.loss_at_negative_log_z is not None and loss.loss_at_negative_log_z <= _NO_LOSS:
        text = f"ERROR, sign of log Z: the loss of {name} is {loss.loss:.4f} at log Z and 0 at -log Z"
        yield Finding("exact optimum", text, "sign of log Z")
    else:
        text = f"ERROR, loss: {name} has a loss of {loss.loss:.4f} at flows that balance R, expected 0"
        yield Finding("exact optimum", text, "loss at the exact optimum")


def _is_penalty(loss: PerturbedLoss) -> bool:
    """Return whether flows that do not balance the rewards have a positive loss with a gradient."""
    return loss.loss > _NO_LOSS and loss.has_gradient


def _network(certificate: RunCertificate, part: Certified) -> Finding:
    """Return the finding about the distance of the network from the target."""
    figures, where = part.certificate, ""
    if isinstance(figures, ExactCertificate):
        distance = f"total variation {figures.total_variation:.4f}"
    else:
        low, high = figures.flow_consistency.low, figures.flow_consistency.high
        distance = f"flow consistency {figures.flow_consistency.value:.4f} [{low:.4f}, {high:.4f}]"
        where = f" on the {figures.num_test:,} states compared"
    if not math.isfinite(_distance(part)):
        return Finding("network", f"not judged: {distance}, too few states{where}")
    if has_converged(part):
        return Finding("network", f"trained enough{where}: {distance}, limit {CONVERGED}")
    if _is_near_optimum(part):
        return Finding(
            "network", f"far from R, {distance}, but trained enough: {part.tv_to_optimum:.4f} from the optimum"
        )
    is_explained = not certificate.rules.holds or any(finding.error for finding in _optimum(certificate, part))
    advice = "see the error above" if is_explained else "train for longer"
    return Finding("network", f"not converged: {distance}, limit {CONVERGED}; {advice}")


def _log_z(part: Certified) -> Iterator[Finding]:
    """Yield the finding about log Z, if it is learned: wrong at the optimum, or wrong for a converged network."""
    optimum, figures = part.optimum, part.certificate
    learned, (true, kind) = figures.learned_log_z, _true_log_z(part)
    if optimum is not None and optimum.loss is not None and optimum.loss.reported_log_z is not None:
        reported, expected = optimum.loss.reported_log_z, optimum.log_z
        if abs(reported - expected) > _LOG_Z_ROUNDING * (1 + abs(expected)):
            yield _wrong_log_z(f"{reported:.4f} at the exact optimum, true", reported, expected, _LOG_Z_ROUNDING)
            return
    if learned is None:
        return
    shown = f"learned {learned:.4f}, {kind} {true:.4f}"
    is_trained = has_converged(part) or _is_near_optimum(part)
    tolerance = _LOG_Z_TOLERANCE + _half_width(part) + (2 * CONVERGED if is_trained else 0)
    if abs(learned - true) <= tolerance:
        is_known = is_trained or isinstance(figures, ExactCertificate)
        yield Finding(
            "log Z", f"right: {shown}" if is_known else f"{shown}; equal on the states that the policy samples"
        )
    elif not is_trained:
        yield Finding("log Z", f"{shown}; not judged before the network has converged")
    else:
        yield _wrong_log_z(f"learned {learned:.4f}, {kind}", learned, true, tolerance)


def _is_near_optimum(part: Certified) -> bool:
    return part.tv_to_optimum is not None and part.tv_to_optimum <= CONVERGED


def _true_log_z(part: Certified) -> tuple[float, str]:
    """Return log Z of the objective's optimum, or its estimate from samples, and its name."""
    if part.optimum is not None and not math.isnan(part.optimum.log_z):
        return part.optimum.log_z, "true"
    if isinstance(part.certificate, ExactCertificate):
        return part.certificate.log_z, "true"
    return part.certificate.log_z.value, "estimated"


def _half_width(part: Certified) -> float:
    """Return half of the width of the interval of an estimated log Z, 0 for an exact one."""
    if isinstance(part.certificate, ExactCertificate):
        return 0.0
    width = part.certificate.log_z.high - part.certificate.log_z.low
    return width / 2 if math.isfinite(width) else 0.0


def _wrong_log_z(what: str, value: float, true: float, tolerance: float) -> Finding:
    """Return the finding of a sign error or an offset."""
    if abs(value + true) <= tolerance * (1 + abs(true)):
        return Finding("log Z", f"ERROR, sign of log Z: {what} {true:.4f}", "sign of log Z")
    return Finding("log Z", f"ERROR, offset of log Z: {what} {true:.4f}, {value - true:+.4f}", "offset of log Z")
