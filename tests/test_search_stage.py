"""Runs with a surrogate: rounds, then a policy trained on completed scores, with its certificate."""

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gflownet.evaluation.racing import RANDOM_REPEAT
from gflownet.evaluation.store.database import STORE_NAME
from gflownet.evaluation.store.evaluations import EvaluationStatus
from gflownet.report.results import Results, SamplerResults, read_results
from gflownet.report.verdict import sampler_lines, summary_figures
from gflownet.run.closing_stages import of_their_sizes
from gflownet.run.folder import CERTIFICATE_STORE_NAME
from gflownet.run.sampling import restore, sample
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
    "search.sampler.num_verified=8",
    "report.every=null",
)


def run(folder: Path, *overrides: str) -> int:
    return main([*SURROGATE, f"log_dir={folder}", *overrides])


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """Return the folder of a run with a certificate."""
    folder = tmp_path_factory.mktemp("search") / "run"
    assert run(folder, "search.method=surrogate", "certify=true", "wandb.mode=disabled") == 0
    return folder


def test_certificate_of_predicted_reward_costs_no_evaluation(finished):
    certificate = json.loads((finished / "certificate.json").read_text())
    assert (certificate["num_rewards"], certificate["num_predicted"], certificate["num_evaluated"]) == (81, 81, 0)
    for name, num in ((STORE_NAME, 20), (CERTIFICATE_STORE_NAME, 0)):
        with closing(sqlite3.connect(finished / name)) as database:
            assert database.execute("SELECT count(*) FROM evaluations").fetchone() == (num,)


def test_policy_steps_without_finite_loss_are_skipped_until_too_many_rounds(tmp_path, monkeypatch, capsys):
    options = ("search.method=surrogate_gflownet", "wandb.mode=disabled")
    options += ("search.proposals.updates_per_evaluation=1", "search.train_sampler=false", "checkpoint_every=1")
    monkeypatch.setattr("gflownet.run.failures._MAX_SKIPPED", 2)
    break_losses(monkeypatch, {2})  # one of the first round with predictions
    assert run(tmp_path / "skipped", *options) == 0
    out, rows = capsys.readouterr().out, metric_rows(tmp_path / "skipped")
    assert "step 3: expected a finite loss, got nan; the step is skipped" in out
    assert [path.name for path in (tmp_path / "skipped" / "skipped").iterdir()] == ["step_00000003.pt"]
    assert [row["policy_updates"] for row in rows[1:]] == [0, 8, 12, 16]
    break_losses(monkeypatch, set(range(9, 21)))  # all of the next rounds
    assert run(tmp_path / "ended", *options) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: after step 4: expected a finite loss, got nan; resume=true continues from step 2: ")


def test_rounds_and_training_steps_are_numbered_together(finished):
    rows = metric_rows(finished)
    assert [row["step"] for row in rows] == [*range(1, 13)]
    assert "surrogate_coverage" in rows[4]
    assert ["likelihood_loss" in row for row in rows[5:11]] == [True] * 3 + [False] * 3
    assert {"loss", "log_Z", "predicted_score_mean", "sampler_rank_correlation"} <= rows[8].keys()
    assert (rows[4]["num_distinct"], rows[11]["num_distinct"]) == (18, 20)


def test_validation_spends_no_budget_of_a_search(tmp_path):
    options = ("search.method=random", "search.options.without_repeats=true", "budget.evaluations=5")
    assert run(tmp_path / "run", *options, "validate_every=1", "search.train_sampler=false") == 0
    assert metric_rows(tmp_path / "run")[-1]["num_distinct"] == 5


def test_policy_of_a_search_is_sampled(finished):
    assert {graph.names for graph in sample(finished, 3)} == {("a", "b", "c", "d")}


def test_samples_are_new_and_the_best_by_prediction(finished):
    with closing(sqlite3.connect(finished / STORE_NAME)) as database:
        known = {graph_hash for (graph_hash,) in database.execute("SELECT hash FROM evaluations")}
    restored = restore(finished)
    assert restored.predict is not None
    (best,), (raw,) = (list(restored.batches(num, seed=1, varied=num > 8)) for num in (8, 256))
    hashes, varied = ([graph.canonical_hash() for graph in restored.graphs(batch)] for batch in (best, raw))
    assert set(varied) & known, "else nothing would be left out"
    predicted = dict(zip(varied, restored.predict(raw.terminal).tolist(), strict=True))
    new = sorted((score for graph_hash, score in predicted.items() if graph_hash not in known), reverse=True)
    assert [predicted[graph_hash] for graph_hash in hashes] == new[:8]


def test_closing_line_of_a_search(tmp_path, capsys):
    options = ("task=tests.search.searches:ScoresAlike", "search.patience=5")
    assert run(tmp_path / "run", "search.method=surrogate", *options) == 0
    text = capsys.readouterr().out
    line = next(line for line in text.splitlines() if line.startswith("search.method=surrogate: "))
    assert "no better score in 5 evaluations" in line
    sampler, warning = (line for line in text.splitlines() if line.startswith(("sampler: ", "the sampler has ")))
    assert re.fullmatch(
        r"sampler: 2 new samples: 0\.500 \(random predicted 0\.500\); \d+ of 64 distinct, \S+ evaluated before; "
        r"log p against log R \S+; flow consistency \S+: (not )?converged",
        sampler,
    )
    assert warning.startswith("the sampler has learned from "), warning
    record = read_results(tmp_path / "run").sampler
    assert record is not None
    assert record.scores == (0.5, 0.5)
    assert sampler_lines(record) == [sampler, warning], "the record has all figures"


def test_samples_are_compared_with_random_architectures_of_their_sizes():
    def row(score: float, size: int | None) -> Any:
        return SimpleNamespace(
            seed=RANDOM_REPEAT, hash=f"{size}", score=score, num_parameters=size, status=EvaluationStatus.OK
        )

    random = [row(0.1, 99), row(0.5, 100), row(0.7, 300), row(0.9, 301)]
    for sizes, expected in (((300, 100), [0.5, 0.7]), ((5,), []), ((None,), [0.1, 0.5, 0.7, 0.9])):
        assert [each.score for each in of_their_sizes(random, sizes)] == expected


def test_lines_about_a_sampler():
    scores: Any = {"scores": (0.9, 0.8), "parameters": (1200, 300), "random_scores": (0.5, 0.7, 0.9)}
    scores |= {"chosen_scores": (0.7, 0.9), "random_predicted": 0.6, "rank_correlation": None}
    record = SamplerResults(20, 64, 31, 0, flow_consistency=0.04, is_converged=True, **scores)
    assert sampler_lines(record) == [
        "sampler: 2 new samples: 0.850 (3 random architectures of 300 to 1,200 parameters: 0.700, the 2 of them with "
        "the best predictions: 0.800); 31 of 64 distinct, none evaluated before; flow consistency 0.04: converged",
        "33 of 64 samples repeat another one: the sampler knows few architectures",
    ]
    assert summary_figures(Results(sampler=record)) == pytest.approx(
        {
            **{"sampler/score": 0.85, "sampler/random_score": 0.7, "sampler/chosen_score": 0.8},
            **{"sampler/num_samples": 64.0, "sampler/num_distinct": 31.0, "sampler/num_known": 0.0},
            **{"sampler/num_trained_on": 20.0, "sampler/random_predicted": 0.6, "sampler/flow_consistency": 0.04},
            "sampler/is_converged": 1.0,
        }
    )


def test_sampler_of_continued_search_is_trained_again(tmp_path, capsys):
    options = ("search.method=surrogate", "search.num_initial=4", "search.batch_size=2")
    for budget, resume, num_steps in ((6, "false", 1), (8, "true", 3)):
        assert run(tmp_path / "run", *options, f"budget.evaluations={budget}", f"resume={resume}") == 0
        assert sum("log_Z" in row for row in metric_rows(tmp_path / "run")) == num_steps
    assert capsys.readouterr().out.count("the sampler is trained on predictions") == 2


def test_closing_line_without_policy(tmp_path, capsys, monkeypatch):
    refuses = ("task=tests.search.searches:FailsOrRefuses", "env.choices.places={a: [1], b: [0, 1], c: [0, 1], d: [2]}")
    assert run(tmp_path / "run", "search.method=surrogate", *refuses, "certify=true") == 2
    shown = capsys.readouterr()
    assert "certificate: none, search.method=surrogate has trained no policy" in shown.out
    assert shown.err.startswith("error: no evaluation was finished")


def test_method_without_surrogate_ends_with_a_sampler(tmp_path, capsys):
    assert run(tmp_path / "run", "search.method=local_search", "budget.evaluations=6") == 0
    assert "sampler: no sample was evaluated" in capsys.readouterr().out
    assert len(sample(tmp_path / "run", 3)) == 3


def test_run_without_sampler_is_not_certified_and_trains_it_on_first_use(tmp_path, capsys):
    folder = tmp_path / "run"
    options = ("search.train_sampler=false", "certify=true", "budget.evaluations=4")
    assert run(folder, "search.method=random", *options) == 0
    text = capsys.readouterr().out
    assert "certificate: none, search.method=random has trained no policy" in text
    assert re.search(r"^the search ends after step \d+: 4 evaluations are done$", text, re.MULTILINE)
    assert not (folder / "certificate.json").exists()
    first = sample(folder, 3)
    assert capsys.readouterr().err == f"{folder}: the sampler is trained on predictions from 4 evaluations\n"
    assert sample(folder, 3) == first
    assert capsys.readouterr().err == "", "it is kept"


def test_fallback_prints_one_line(tmp_path, capsys):
    wrong = "search.surrogate.name=tests.search.toy_surrogates:Reversed"
    options = ("search.method=surrogate", "budget.evaluations=40", "search.batch_size=8", "search.train_sampler=false")
    assert run(tmp_path / "run", wrong, *options) == 0
    assert capsys.readouterr().out.count("the surrogate predicts no better than the mean score") == 1
