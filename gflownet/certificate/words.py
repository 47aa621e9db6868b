"""A certificate as findings of its verdict, table, sentence, metrics, JSON and lines of the console. Imports no torch.

The findings read a `RunCertificate`: an error of the rules, of the objective, of log Z, or too little training. The
table and the sentence read an entry of certificate.json.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from gflownet.certificate.result import NO_DISTANCE, Certified, RuleReport, RunCertificate
from gflownet.errors import counted
from gflownet.terminal.console import print_line

# Maximum total variation, or upper end of the interval of the flow consistency, of a network that is trained enough.
CONVERGED = 0.05
_EXACT = 1e-6  # maximum total variation of an exact optimum from the target; rewards are in single precision
_NO_LOSS = 1e-4  # loss at the exact optimum caused by rounding
_LOG_Z_TOLERANCE = 0.1  # nats, of a learned log Z; twice CONVERGED more once the network is trained
_LOG_Z_ROUNDING = 1e-3  # nats
_MAX_CLASSES = 5  # automorphism counts in one line of the table
_OTHER_TARGET = "aims at another distribution"


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
        return [Finding("network", f"{certificate.objective_words} {_OTHER_TARGET} than R / Z")]
    return [*_optimum(certificate, part), _network(certificate, part), *_log_z(part)]


def has_converged(part: Certified) -> bool:
    """Return whether the network's distance from the target is at most CONVERGED; False if that is unknown.

    Also False for a network whose log Z is still wrong by no more than its loss allows.
    """
    return _distance(part) <= CONVERGED and not _learns_log_z(part)


def errors(certificate: RunCertificate) -> list[str]:
    """Return the names of all failed checks, each once; too little training is no error."""
    every = [
        *rule_findings(certificate.rules),
        *(finding for part in certificate.parts for finding in findings(certificate, part)),
    ]
    return list(dict.fromkeys(finding.error for finding in every if finding.error is not None))


def _distance(part: Certified, *, at_least: bool = False) -> float:
    """Return the distance of the network from the target, the upper or lower end of its interval."""
    figures = part.certificate
    if figures.kind == "exact":
        return figures.total_variation
    return figures.flow_consistency.low if at_least else figures.flow_consistency.high


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
    elif loss.loss <= _NO_LOSS and elsewhere is not None and not (elsewhere.loss > _NO_LOSS and elsewhere.has_gradient):
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
        place = f"at flows that balance R, expected 0, on trajectories {loss.where}"
        text = f"ERROR, loss: {name} has a loss of {loss.loss:.4f} {place}"
        yield Finding("exact optimum", text, "loss at the exact optimum")


def _network(certificate: RunCertificate, part: Certified) -> Finding:
    """Return the finding about the distance of the network from the target."""
    figures, where = part.certificate, ""
    if figures.kind == "exact":
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
    trained, advice = part.trained, "train for longer"
    is_explained = not certificate.rules.holds or any(finding.error for finding in _optimum(certificate, part))
    if is_explained:
        advice = "see the error above"
    elif part.optimum is None and certificate.symmetry == "none":
        advice = "no training reaches it: algo.symmetry=none samples R / |Aut|"
    elif part.optimum is not None and not part.optimum.total_variation <= CONVERGED:
        advice = "no training reaches it: the exact optimum is further away"
    elif trained is not None and trained.reach < _distance(part, at_least=True):
        text = f"ERROR, loss: {distance}, but a loss of {trained.loss:.2g}, at which more training changes nothing"
        return Finding("network", text, "loss of the network")
    elif _learns_log_z(part) and trained is not None:
        distance += f" and a loss of {trained.loss:.3g}: log Z is not learned yet"
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
    figures_text = f"learned {learned:.4f}, {kind} {true:.4f}"
    is_trained = has_converged(part) or _is_near_optimum(part)
    tolerance = _log_z_tolerance(part)
    if abs(learned - true) <= tolerance:
        is_known = is_trained or figures.kind == "exact"
        yield Finding(
            "log Z",
            f"right: {figures_text}" if is_known else f"{figures_text}; equal on the states that the policy samples",
        )
    elif not is_trained:
        yield Finding("log Z", f"{figures_text}; not judged before the network has converged")
    else:
        yield _wrong_log_z(f"learned {learned:.4f}, {kind}", learned, true, tolerance)


def _log_z_tolerance(part: Certified) -> float:
    """Return the accepted error of a learned log Z, nats; larger for a trained network."""
    is_near = _distance(part) <= CONVERGED or _reaches_optimum(part)
    return _LOG_Z_TOLERANCE + _half_width(part) + (2 * CONVERGED if is_near else 0)


def _learns_log_z(part: Certified) -> bool:
    """Return whether log Z is wrong by no more than the loss of the network allows: it is still learned."""
    learned, trained = part.certificate.learned_log_z, part.trained
    if learned is None or trained is None:
        return False
    error = abs(learned - _true_log_z(part)[0])
    return _log_z_tolerance(part) < error <= trained.reach


def _reaches_optimum(part: Certified) -> bool:
    return part.tv_to_optimum is not None and part.tv_to_optimum <= CONVERGED


def _is_near_optimum(part: Certified) -> bool:
    return _reaches_optimum(part) and not _learns_log_z(part)


def _true_log_z(part: Certified) -> tuple[float, str]:
    """Return log Z of the objective's optimum, or its estimate from samples, and its name."""
    if part.optimum is not None and not math.isnan(part.optimum.log_z):
        return part.optimum.log_z, "true"
    if part.certificate.kind == "exact":
        return part.certificate.log_z, "true"
    return part.certificate.log_z.value, "estimated"


def _half_width(part: Certified) -> float:
    """Return half of the width of the interval of an estimated log Z, 0 for an exact one."""
    if part.certificate.kind == "exact":
        return 0.0
    width = part.certificate.log_z.high - part.certificate.log_z.low
    return width / 2 if math.isfinite(width) else 0.0


def _wrong_log_z(what: str, value: float, true: float, tolerance: float) -> Finding:
    if abs(value + true) <= tolerance * (1 + abs(true)):
        return Finding("log Z", f"ERROR, sign of log Z: {what} {true:.4f}", "sign of log Z")
    return Finding("log Z", f"ERROR, offset of log Z: {what} {true:.4f}, {value - true:+.4f}", "offset of log Z")


def table(part: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the label of each figure, its value for a correct p, and the value found."""
    text_of = partial(_shown, part)
    correlation = ("Spearman of log p, log R", "1", text_of("spearman"))
    learned = ("log Z, learned", "log Z", text_of("learned_log_z"))
    symmetries = [
        ("symmetries", "hold", _symmetries(part)),
        ("log(p Z / R), mean by |Aut|", "0", _by_class(part.get("classes") or ())),
    ]
    if part.get("kind") == "exact":
        return [
            ("total variation", "0", text_of("total_variation")),
            ("L1 distance", "0", text_of("l1")),
            ("Jensen-Shannon divergence, nats", "0", text_of("jensen_shannon", digits=5)),
            correlation,
            ("log Z", "", text_of("log_z")),
            learned,
            *symmetries,
            (
                "terminal states, of all",
                "",
                "{} of {}".format(*(part.get(f"num_{name}") for name in ("terminal", "states"))),
            ),
        ]
    rollouts = f"{part.get('num_rollouts')} ways back each, {text_of('effective_rollouts', digits=1)} effective"
    return [
        (f"flow consistency in subsets of {part.get('subset_size')}", "0", text_of("flow_consistency")),
        correlation,
        ("Pearson of log p, log R", "1", text_of("pearson")),
        ("mean log p", "", text_of("log_prob")),
        ("ELBO", "log Z", text_of("elbo")),
        ("log Z", "", text_of("log_z")),
        ("EUBO, reweighted", "log Z", text_of("eubo")),
        learned,
        ("slope in log |Aut|", "0", text_of("symmetry_slope")),
        *symmetries,
        ("trajectories", "", str(part.get("num_samples"))),
        ("terminal states compared", "", f"{part.get('num_test')}, {rollouts}"),
    ]


def _figure(part: Mapping[str, Any], name: str) -> float:
    value = part.get(name)
    return float(value) if isinstance(value, int | float) else math.nan


def _shown(part: Mapping[str, Any], name: str, *, digits: int = 4) -> str:
    """Return a figure, with its interval if it has one."""
    values = (_figure(part, f"{name}{end}") for end in ("", "_low", "_high"))
    value, low, high = (f"{value:.{digits}f}" if math.isfinite(value) else "-" for value in values)
    return f"{value} [{low}, {high}]" if f"{name}_low" in part else value


def _symmetries(part: Mapping[str, Any]) -> str:
    hold = part.get("symmetries_hold")
    verdict = "open" if hold is None else "hold" if hold else "IGNORED"
    if part.get("kind") != "exact":
        is_open = "symmetry_slope_low" in part
        return f"{verdict} (-1 is uncorrected)" if is_open else "-, nothing compared is symmetric"
    if _figure(part, "tv_of_symmetries") < NO_DISTANCE:
        return "-, nothing here is symmetric"
    return f"{verdict} ({_shown(part, 'total_variation')} from R, {_shown(part, 'tv_uncorrected')} from R / |Aut|)"


def _by_class(classes: Sequence[Mapping[str, Any]]) -> str:
    """Return the mean deviation of each automorphism count, those of most states first."""
    rows = [tuple(_figure(row, name) for name in ("num_states", "automorphisms", "deviation")) for row in classes]
    largest = sorted(rows, key=lambda row: -row[0])[:_MAX_CLASSES]
    texts = [f"{count:g}: {deviation:+.3f}" for _, count, deviation in sorted(largest, key=lambda row: row[1])]
    return ", ".join(texts) + (", ..." if len(classes) > len(largest) else "")


def sentence(part: Mapping[str, Any], errors: Sequence[str]) -> tuple[str, str]:
    """Return the verdict in one sentence, and its tone: good, bad or open."""
    name = "total_variation" if part.get("kind") == "exact" else "flow_consistency"
    distance, low, high = (_figure(part, f"{name}{end}") for end in ("", "_low", "_high"))
    measured, has_interval = f"{name.replace('_', ' ')} {_short(distance)}", math.isfinite(low + high)
    if has_interval:
        measured += f" (95 % interval {_short(low)} to {_short(high)})"
    if errors:
        return f"The certificate found errors ({', '.join(errors)}); {measured}.", "bad"
    if any(_OTHER_TARGET in str(line) for line in part.get("verdict") or ()):
        words = f"The objective {_OTHER_TARGET} than the reward: {measured}, which it does not reduce."
        return words, "open"
    if not math.isfinite(distance):
        return "Not judged: too few states to measure the distance from the target.", "open"
    if part.get("has_converged"):
        if has_interval:
            return f"This run samples in proportion to the reward: {measured}.", "good"
        return f"This run samples within TV {_short(distance)} of the target, in proportion to the reward.", "good"
    if _figure(part, "tv_to_optimum") <= CONVERGED:
        return f"The network has reached the optimum of its objective, which is not the target: {measured}.", "open"
    advice = "No training reaches it: the optimum of the objective is not the target."
    advice = advice if _figure(part, "optimum_total_variation") > CONVERGED else "Train longer."
    return f"This run has not converged: {measured}; {_short(CONVERGED)} counts as converged. {advice}", "bad"


def _short(value: float) -> str:
    """Return a distance with at most three digits: .03, .72."""
    if not math.isfinite(value):
        return "unknown"
    return f"{value:.2f}".replace("0.", ".", 1) if value >= 0.01 else f"{value:.1g}"


_MAX_ERRORS = 3  # failed rules with their own line; the others are consequences of these in most cases


def certificate_metrics(certificate: RunCertificate) -> dict[str, float]:
    """Return every figure as a metric `certificate/NAME`, or `certificate/NUMBER/NAME` for several conditionings."""
    rules = certificate.rules
    metrics: dict[str, float] = {
        "certificate/rules_hold": float(rules.holds),
        "certificate/num_transitions": rules.num_transitions,
        "certificate/num_errors": len(errors(certificate)),
    }
    for index, part in enumerate(certificate.parts):
        prefix = "certificate/" if len(certificate.parts) == 1 else f"certificate/{index}/"
        metrics |= {f"{prefix}{name}": value for name, value in _figures(part).items()}
    return metrics


def certificate_content(certificate: RunCertificate, *, run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of certificate.json, with further fields about the run."""
    return {
        **run,
        "errors": errors(certificate),
        **{
            name: getattr(certificate, name) for name in ("num_rewards", "num_evaluated", "num_failed", "num_predicted")
        },
        "rules": _rules(certificate),
        "certificates": [_content(certificate, part) for part in certificate.parts],
    }


def _rules(certificate: RunCertificate) -> dict[str, Any]:
    rules = certificate.rules
    violations = [asdict(each) | {"check": each.check.value} for each in rules.violations]
    return {
        **{"hold": rules.holds, **asdict(rules), "violations": violations},
        "verdict": [f"{finding.subject}: {finding.text}" for finding in rule_findings(rules)],
    }


def _content(certificate: RunCertificate, part: Certified) -> dict[str, Any]:
    return {
        "kind": part.certificate.kind,
        "beta": part.beta,
        "conditioning": list(part.conditioning),
        "limits": dict(part.limits),
        "symmetries_hold": part.certificate.symmetries_hold,
        "verdict": [f"{finding.subject}: {finding.text}" for finding in findings(certificate, part)],
        **_figures(part),
        "classes": [asdict(each) for each in part.certificate.classes],
    }


def _figures(part: Certified) -> dict[str, float]:
    """Return all figures under one conditioning, NaN for unknown values."""
    optimum = {} if part.optimum is None else part.optimum.figures()
    figures = {**optimum, "tv_to_optimum": part.tv_to_optimum}
    return {
        **part.certificate.figures(),
        **{name: math.nan if value is None else value for name, value in figures.items()},
        "has_converged": float(has_converged(part)),
    }


def print_certificate(content: Mapping[str, Any], *, path: Path, console: Console) -> None:
    """Print a table for each conditioning, with the expected figures for a correct p, the verdict, and the path."""
    parts = content["certificates"]
    one_beta = len({part["beta"] for part in parts}) == 1
    rules = content["rules"]["verdict"][:_MAX_ERRORS]
    for index, part in enumerate(parts):
        how = "exact" if part["kind"] == "exact" else "estimates with 95 % intervals"
        title = f"certificate of p(x) ~ R(x), {how}, beta {part['beta']:.4g}"
        if part["limits"]:
            caps = (f"{cap:,} {name.replace('_', '-')}" for name, cap in part["limits"].items())
            title += f", networks with at most {' and '.join(caps)}"
        elif one_beta and len(parts) > 1:
            title += f", conditioned on {' '.join(f'{feature:.2f}' for feature in part['conditioning'])}"
        figures = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
        for header in ("", "if right", "found"):
            figures.add_column(header, no_wrap=True)
        for line in table(part):
            figures.add_row(*line)
        console.print(figures)
        print_line(console, "verdict")
        for subject, _, text in (line.partition(": ") for line in [*(rules if index == 0 else []), *part["verdict"]]):
            print_line(console, f"  {subject + ':':<15}{text}")
    paid, num = f"rewards: {counted(content['num_rewards'], 'terminal state')}, ", content["num_predicted"]
    paid += f"{num} predicted" if num else f"{content['num_evaluated']} evaluated for this alone"
    failed = f", {content['num_failed']} failed" if content["num_failed"] else ""
    print_line(console, f"{paid}{failed}; all figures: {path}")
