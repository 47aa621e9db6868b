"""Runs with a surrogate: rounds, then a policy trained on completed scores, with its certificate."""

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gflownet.errors import UserError
from gflownet.evaluation.store_database import STORE_NAME
from gflownet.run.folder import CERTIFICATE_STORE_NAME
from gflownet.run.sampling import sample
from gflownet.train import main
from tests.search.searches import PLACES
from tests.small_run import break_losses
from tests.tiny_run import metric_rows

SURROGATE = (
    *PLACES,
    "search.surrogate.name=tests.search.toy_surrogates:RidgeRegression",
    "search.batch_size=4",
    "search.num_initial=8",
    "budget.evaluations=20",
    "num_training_steps=3",
)


def run(folder: Path, *overrides: str) -> int:
    return main([*SURROGATE, f"log_dir={folder}", *overrides])


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """Return the folder of a run with a certificate."""
    folder = tmp_path_factory.mktemp("search") / "run"
    assert run(folder, "search.method=surrogate", "certify=true", "wandb.mode=disabled") == 0
    return folder


def test_certificate_of_completed_reward_costs_no_evaluation(finished):
    certificate = json.loads((finished / "certificate.json").read_text())
    assert (certificate["num_rewards"], certificate["num_predicted"], certificate["num_evaluated"]) == (81, 61, 0)
    for name, num in ((STORE_NAME, 20), (CERTIFICATE_STORE_NAME, 0)):
        with closing(sqlite3.connect(finished / name)) as database:
            assert database.execute("SELECT count(*) FROM evaluations").fetchone() == (num,)


def test_end_of_the_search_is_printed(tmp_path, capsys):
    assert run(tmp_path / "run", "search.method=random", "budget.evaluations=4", "wandb.mode=disabled") == 0
    assert re.search(r"^the search ends after step \d+: 4 evaluations are done$", capsys.readouterr().out, re.MULTILINE)


def test_policy_steps_without_finite_loss_are_skipped_until_too_many_rounds(tmp_path, monkeypatch, capsys):
    options = ("search.method=surrogate_gflownet", "search.proposals.num_enumerated=0", "wandb.mode=disabled")
    options += (
        "search.proposals.num_updates=2",
        "search.train_sampler=false",
        "opt.max_skipped=2",
        "checkpoint_every=1",
    )
    break_losses(monkeypatch, {2})  # one of the first round with predictions
    assert run(tmp_path / "skipped", *options) == 0
    out, rows = capsys.readouterr().out, metric_rows(tmp_path / "skipped")
    assert "step 2: expected a finite loss, got nan; the step is skipped" in out
    assert [path.name for path in (tmp_path / "skipped" / "skipped").iterdir()] == ["step_00000002.pt"]
    assert [row["policy_updates"] for row in rows[1:]] == [0, 2, 4, 6]
    break_losses(monkeypatch, set(range(3, 9)))  # all of the next rounds
    assert run(tmp_path / "ended", *options) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: after step 3: expected a finite loss, got nan; resume=true continues from step 1: ")


def test_rounds_and_training_steps_are_numbered_together(finished):
    rows = metric_rows(finished)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert "surrogate_coverage" in rows[4]
    assert "log_Z" in rows[5]


def test_validation_spends_no_budget_of_a_search(tmp_path):
    options = ("search.method=random", "search.options.without_repeats=true", "budget.evaluations=8")
    assert run(tmp_path / "run", *options, "validate_every=1") == 0
    assert metric_rows(tmp_path / "run")[-1]["num_distinct"] == 8


def test_policy_of_a_search_is_sampled(finished):
    assert {graph.names for graph in sample(finished, 3)} == {("a", "b", "c", "d")}


def test_closing_line_of_a_search(tmp_path, capsys):
    options = ("task=tests.search.searches:ScoresAlike", "search.patience=5", "num_training_steps=1")
    assert run(tmp_path / "run", "search.method=surrogate", *options) == 0
    text = capsys.readouterr().out
    line = next(line for line in text.splitlines() if line.startswith("search.method=surrogate: "))
    assert "no better score in 5 evaluations" in line
    assert line.endswith("whether the policy has converged is not measured (certify=true)")


def test_sampler_of_continued_search_is_trained_again(tmp_path, capsys):
    options = ("search.method=surrogate", "num_training_steps=1", "search.num_initial=4", "search.batch_size=2")
    for budget, resume, num_steps in ((6, "false", 1), (6, "true", 1), (8, "true", 2)):
        assert run(tmp_path / "run", *options, f"budget.evaluations={budget}", f"resume={resume}") == 0
        assert sum("log_Z" in row for row in metric_rows(tmp_path / "run")) == num_steps
    assert capsys.readouterr().out.count("the policy is trained on measured and predicted scores") == 2


def test_closing_line_without_policy(tmp_path, capsys, monkeypatch):
    refuses = ("task=tests.search.searches:FailsOrRefuses", "env.choices.places={a: [1], b: [0, 1], c: [0, 1], d: [2]}")
    assert run(tmp_path / "run", "search.method=surrogate", *refuses, "certify=true") == 2
    shown = capsys.readouterr()
    assert "certificate: none, search.method=surrogate has trained no policy" in shown.out
    assert shown.err.startswith("error: no evaluation was finished")


def test_method_without_policy_is_not_certified_and_not_sampled(tmp_path, capsys):
    assert run(tmp_path / "run", "search.method=random", "certify=true", "budget.evaluations=4") == 0
    assert "certificate: none, search.method=random has trained no policy" in capsys.readouterr().out
    assert not (tmp_path / "run" / "certificate.json").exists()
    with pytest.raises(UserError, match=r"search\.method=random has trained none"):
        sample(tmp_path / "run", 3)


def test_fallback_prints_one_line(tmp_path, capsys):
    wrong = "search.surrogate.name=tests.search.toy_surrogates:Reversed"
    options = ("search.method=surrogate", "budget.evaluations=40", "search.batch_size=8", "search.train_sampler=false")
    assert run(tmp_path / "run", wrong, *options) == 0
    assert capsys.readouterr().out.count("the surrogate predicts no better than the mean score") == 1
