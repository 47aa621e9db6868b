"""The certificate as printed, as JSON and as metrics."""

import io
import json
import math

import pytest
from rich.console import Console

from gflownet.certificate import RunCertificate
from gflownet.certificate.exact import enumerate_states
from gflownet.certificate.words import certificate_content, certificate_metrics, print_certificate, table
from gflownet.files import json_text
from tests.certificate.subjects import Case
from tests.objectives.spaces import make_space
from tests.oracles.tabular import classes_of
from tests.planted_environments import HidesAnEdgeRemoval


def printed(certificate: RunCertificate, path) -> list[str]:
    console = Console(file=io.StringIO(), width=140)
    print_certificate(certificate_content(certificate, run={}), path=path, console=console)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def right() -> RunCertificate:
    return Case.of(make_space("two_coloured_3")).certified()


def test_print_certificate_ends_with_verdict(right, tmp_path):
    lines = printed(right, tmp_path)
    start = lines.index("verdict")
    assert lines[start + 1 : start + 5] == [
        "  rules:         hold: 56 transitions checked, from all 16 states; "
        "16 automorphism counts repeated by another method",
        "  exact optimum: of trajectory balance is the target "
        "(total variation 0.0000, loss 0.0000 on 271 trajectories)",
        "  network:       trained enough: total variation 0.0000, limit 0.05",
        "  log Z:         right: learned 3.6943, true 3.6943",
    ]
    assert any("log(p Z / R), mean by |Aut|" in line and "1: " in line and "6: " in line for line in lines)


def test_print_certificate_shows_violated_rule_first(tmp_path):
    env = HidesAnEdgeRemoval()
    lines = printed(Case.of(classes_of(env, enumerate_states(env))).certified(), tmp_path)
    assert lines[lines.index("verdict") + 1].startswith("  rules:         ERROR, backward mask hides a legal removal: ")
    assert any(line.startswith("  network: ") for line in lines)


def test_certificate_content_lists_errors_classes_and_rules(right):
    content = json.loads(json_text(certificate_content(right, run={"seed": 3})))
    assert (content["seed"], content["errors"]) == (3, [])
    rules = content["rules"]
    assert (rules["hold"], rules["is_complete"], rules["violations"]) == (True, True, [])
    assert rules["num_forward"] + rules["num_backward"] == 56
    (part,) = content["certificates"]
    assert [row["automorphisms"] for row in part["classes"]] == [1, 2, 6]
    assert sum(row["num_states"] for row in part["classes"]) == part["num_terminal"]
    assert max(abs(row["deviation"]) for row in part["classes"]) < 1e-5
    assert part["optimum_total_variation"] < 1e-6
    assert part["tv_to_optimum"] < 1e-6
    assert part["has_converged"] == 1
    assert [line.partition(":")[0] for line in part["verdict"]] == ["exact optimum", "network", "log Z"]


def test_certificate_metrics_count_errors(right):
    metrics = certificate_metrics(right)
    assert (metrics["certificate/rules_hold"], metrics["certificate/num_errors"]) == (1, 0)
    assert metrics["certificate/num_transitions"] == 56
    assert metrics["certificate/optimum_loss"] < 1e-9
    assert metrics["certificate/max_class_deviation"] < 1e-5
    assert metrics["certificate/has_converged"] == 1
    assert all(isinstance(value, float | int) for value in metrics.values())
    assert math.isfinite(metrics["certificate/tv_to_optimum"])


EXACT = {"kind": "exact", "total_variation": 0.5, "tv_uncorrected": 0.01, "tv_of_symmetries": 0.5}


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({**EXACT, "symmetries_hold": False}, "IGNORED (0.5000 from R, 0.0100 from R / |Aut|)"),
        ({**EXACT, "symmetries_hold": None}, "open (0.5000 from R, 0.0100 from R / |Aut|)"),
        ({**EXACT, "symmetries_hold": None, "tv_of_symmetries": 0.0}, "-, nothing here is symmetric"),
        ({"symmetries_hold": True, "symmetry_slope_low": -0.1}, "hold (-1 is uncorrected)"),
        ({"symmetries_hold": None}, "-, nothing compared is symmetric"),
    ],
)
def test_table_names_ignored_symmetries(part, words):
    assert ("symmetries", "hold", words) in table(part)
