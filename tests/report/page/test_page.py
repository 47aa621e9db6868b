"""report.html of run folders: content, states, hostile words, missing files, size, determinism."""

from __future__ import annotations

import os
import random
import shlex
from collections.abc import Mapping
from pathlib import Path
from textwrap import fill
from typing import Any

import pytest

from gflownet.config import command_config
from gflownet.errors import UserError
from gflownet.records.marker import RunMarker, write_marker
from gflownet.report.compared.figures import best_score
from gflownet.report.page import advice, page_of, read_run
from gflownet.report.page.page import reproduce_command
from gflownet.report.page.secrets import masked_command, masked_options
from gflownet.run.parser import parse
from tests.evaluation.candidates import classifier_graph
from tests.report.page.folders import (
    RUN,
    WRITTEN,
    Page,
    assignment_of,
    front_run,
    metric_rows,
    page,
    record,
    results_of,
    side,
    status_of,
    write_run,
)

PLUS_MINUS, MINUS = "\N{PLUS-MINUS SIGN}", "\N{MINUS SIGN}"
HOSTILE = '<script>alert("x")</script><img src=x onerror=alert(1)>{{ 7 * 7 }}'


def choices(num: int, *, num_failed: int = 0) -> list[Any]:
    """Return evaluations of assignments; scores rise with x and are higher with kernel a."""
    generator = random.Random(0)
    records = []
    for i in range(num):
        kernel = "a" if i % 2 else "b"
        score = 0.5 + 0.3 * i / num + (0.1 if kernel == "a" else 0.0) + generator.gauss(0, 0.01)
        records.append(record(i, score, assignment_of(kernel=kernel, x=i)))
    return records + [
        record(num + i, None, assignment_of(kernel="b", x=num + i), error=f"ValueError: node {i} has no input")
        for i in range(num_failed)
    ]


def top_of(num: int) -> list[dict[str, Any]]:
    return [
        {
            "rank": rank,
            "run": RUN,
            "validation_score": 0.95 - rank / 100,
            "test_score": 0.9 - rank / 100,
            "num_parameters": 1000 + rank,
            "metrics": {"train_loss": 0.25, "hit_rate": 0.95 - rank / 100},
            "final": {
                "mean": 0.9 - rank / 100,
                "interval": [0.85 - rank / 100, 0.95 - rank / 100],
                "scores": [0.9, 0.9, 0.9],
            },
            "graph": classifier_graph((4 + rank, "relu")).to_dict(),
        }
        for rank in range(num)
    ]


def finished_run(folder: Path, **fields: Any) -> Path:
    references = [
        side("best of 4 random architectures", 0.7, 0.05, tests=(0.6,), num_parameters=9),
        side("scikit-learn", 0.91, 0.01, tests=(0.9,), num_parameters=7510),
    ]
    files = {"top_architectures.json": top_of(3), "results.json": results_of(top_of(3), references)}
    given: dict[str, Any] = {"rows": metric_rows(20), "status": status_of("completed"), "files": files}
    return write_run(folder, choices(40, num_failed=5), **{**given, **fields})


GOLDEN = Path(__file__).with_name("golden_page.txt")


def test_page_of_finished_run_is_the_golden_page(tmp_path):
    """All words of the page but the configuration: GFLOWNET_GOLDEN=1 writes the file, whose difference is then read."""
    read = page(finished_run(tmp_path))
    sections = {name: text for name, text in read.sections.items() if name != "configuration"}
    texts = [f"[{name}] {text}".replace(str(tmp_path), "RUN") for name, text in sections.items()]
    words = "\n\n".join(fill(text, 120, break_long_words=False, break_on_hyphens=False) for text in texts) + "\n"
    if os.environ.get("GFLOWNET_GOLDEN"):
        GOLDEN.write_text(words, encoding="utf-8")
    assert words == GOLDEN.read_text(encoding="utf-8")
    assert {"header", "nav", "main", "footer", "h1"} <= set(read.tags)
    assert read.tags.count("main") == read.tags.count("h1") == 1


def test_evaluations_and_steps_after_a_resume_agree_everywhere(tmp_path):
    """A search with early stopping, its sampler, and both again with a larger budget."""
    rows = [{"step": i, "score_mean": 0.5} for i in (1, 2)] + [{"step": 3, "loss": 9.0}, {"step": 4, "loss": 8.0}]
    rows += [
        {"step": 5, "score_mean": 0.5},
        {"step": 6, "loss": 7.0},
        {"step": 7, "loss": 6.0},
        {"step": 8, "loss": 5.0},
    ]
    plan = {"method": "surrogate", "num_search": 12, "num_final": 1, "num_steps": 3}
    stopped = [record(50 + i, 0.1, assignment_of(x=50 + i), fidelity=4, metrics={"is_stopped": 1.0}) for i in range(2)]
    partial = record(60, 0.1, assignment_of(x=60), fidelity=4)  # continued: a whole evaluation is another row
    status = status_of("completed") | {"plan": plan}
    options = ["search.method=surrogate", "budget.evaluations=13"]
    folder = write_run(tmp_path, [*choices(10), *stopped, partial], rows=rows, status=status, options=options)
    header = page(folder).sections["header"]
    assert "12 evaluations, chosen by predictions of a surrogate" in header
    assert "evaluations of the search 12 of 12, 2 stopped early" in header
    assert "steps of the sampler 3 of 3" in header
    assert "Its loss was 7 in the first of 3 steps and 5 in the last" in header


def test_running_run_shows_best_evaluations(tmp_path):
    status = status_of("running", is_alive=True)
    folder = write_run(tmp_path, choices(40), rows=metric_rows(20), status=status)
    read = page(folder)
    header = read.sections["header"]
    assert "Running: training, step 20 of 100" in header
    assert "1 h" in header  # from the start to the time of writing
    assert "Rank 0 so far" in read.sections["best"]
    scores = [each.score for each in read_run(folder).successes]
    assert f"{max(scores):.4g}" in read.sections["best"]
    assert "progress" in read.tags


def test_best_evaluations_respect_constraints(tmp_path):
    records = [record(i, 0.5 + i / 10, assignment_of(x=i), metrics={"size": i}) for i in range(4)]
    folder = write_run(tmp_path, records, options=["evaluation.constraints={size: 2}"])
    best = page(folder).sections["best"]
    assert "0.7" in best
    assert "0.8" not in best
    run = read_run(folder)
    assert (len(run.successes), len(run.feasible), run.best_score) == (4, 3, pytest.approx(0.7))
    assert best_score(run) == run.best_score
    assert "Rank 0 so far: score 0.7000 in the search" in page(folder).sections["header"]


def test_options_from_the_environment_leave_a_page(tmp_path):
    names = ["num_training_steps", "budget.evaluations", "budget.seconds", "seed", "evaluation.constraints"]
    status = status_of("running", is_alive=True)
    for method in ("gflownet", "random"):
        folder = write_run(tmp_path / method, choices(40), rows=metric_rows(20), status=status)
        tree: dict[str, Any] = {"search": {"method": method}, "budget": {}, "evaluation": {}}
        for name in names:
            group, _, key = name.rpartition(".")
            (tree[group] if group else tree)[key] = "${oc.env:GFLOWNET_VALUE}"
        write_marker(folder, RunMarker(RUN, tree))
        read = page(folder)
        assert "evaluation.constraints is ${oc.env:GFLOWNET_VALUE}, whose value is unknown" in read.sections["header"]
        assert "effects" in read.sections


@pytest.mark.parametrize(
    ("state", "message", "words"),
    [
        ("interrupted", "SIGINT", "Interrupted by SIGINT at step 20 of 100"),
        ("failed", "ValueError: no data", "Failed at step 20 of 100: ValueError: no data"),
        ("running", "", "Killed at step 20 of 100: the process ended without a final state"),
    ],
)
def test_state_in_words(tmp_path, state, message, words):
    read = page(write_run(tmp_path, rows=metric_rows(20), status=status_of(state, message=message)))
    assert words in read.sections["header"]
    assert f"python -m gflownet.train log_dir={tmp_path} resume=true" in read.sections["configuration"]


def test_next_step_counts_standard_methods_and_random_architectures(tmp_path):
    forest, line = side("a forest", 0.99, 0.005, load="import sklearn"), side("a line", 0.98, 0.01, load="import numpy")
    random, alike = side("best of 9 random architectures", 0.7, 0.01), side("a tree", 0.9, 0.01, load="import this")
    longer = "python -m gflownet.train log_dir="
    for name, references, expected in (
        (
            "method",
            [line, forest, random],
            ["Use a forest (0.9900 ± 0.0050), which is clearly better, or", "import sklearn"],
        ),
        ("longer", [side(random.name, 0.9, 0.01), alike], ["Search longer", longer]),
        ("seeds", [side(random.name, 0.9, 0.01, num=2), alike], ["Train the best again on more seeds", longer]),
        ("load", [random, alike], []),
    ):
        files = {"top_architectures.json": top_of(3), "results.json": results_of(top_of(3), references)}
        folder = finished_run(tmp_path / name, files=files)
        lines = advice(read_run(folder))
        assert len(lines) == len(expected)
        assert all(line.strip().startswith(text) for line, text in zip(lines, expected, strict=True)), lines
        assert all(text in page(folder).sections["header"] for text in expected or ["Load the best architecture"])
        assert name != "seeds" or lines[-1].endswith(" resume=true final.share=0.5")


def test_search_method_counts_evaluations(tmp_path):
    rows = [{"step": i, "score_mean": 0.5, "seconds": 1.0 * i} for i in range(1, 11)]
    options = ["search.method=random", "budget.evaluations=80"]
    status = status_of("interrupted") | {"plan": {"num_search": 72, "num_verified": 8}}
    folder = write_run(tmp_path, choices(40), rows=rows, status=status, options=options)
    read = page(folder)
    assert "evaluation 40 of 80" in read.sections["header"]
    assert "chosen by uniformly random actions" in read.sections["header"]
    rows += [{"step": 11, "likelihood_loss": 9.0}, {"step": 12, "loss": 1.0}, {"step": 13, "loss": 1.0}]
    status = status_of("failed") | {"plan": {"num_steps": 100}}
    read = page(write_run(tmp_path / "later", choices(40), rows=rows, status=status, options=options))
    assert "step of the sampler 3 of 100" in read.sections["header"]


def test_first_picture_is_the_fronts_on_new_seeds(tmp_path):
    folder = front_run(tmp_path)
    read = page(folder)
    assert list(read.sections)[1] == "front", "the first figure"
    assert {"#front-0", "#front-1"} <= set(read.links)
    assert 'role="group" aria-labelledby="front-parameters-chart-title' in read.text  # an image has no links
    text = read.sections["front"]
    assert "front of accuracy (higher is better) and parameters (lower is better)" in text
    assert "0 0.9 900 1 0.5 500" in text, "a row for each architecture"
    assert read.text.index('id="fronts-chart"') < read.text.index("Against references, on new seeds")
    assert [read.text.count(f'class="diamond s{form}"') for form in ("0 full", "1 open")] == [4, 2], (
        "with legends and ranks"
    )
    assert "parameters (log scale)" in read.sections["header"]
    (folder / "pareto_front.json").unlink()
    assert "computed at the end of the run" in page(folder).sections["front"]


@pytest.mark.parametrize("place", ["task", "error", "value", "place", "message", "metric", "reference", "problem"])
def test_hostile_words_stay_text(tmp_path, place):
    options, records, status, files = [], choices(12), status_of("completed"), dict[str, Any]()
    if place == "task":
        options = [f"wandb.project='{HOSTILE}'"]
    elif place == "error":
        records.append(record(99, None, assignment_of(x=1), error=f"{HOSTILE}\n{HOSTILE}"))
    elif place == "value":
        records = [record(i, i / 12, assignment_of(kernel=HOSTILE if i % 2 else "b")) for i in range(12)]
    elif place == "place":
        records = [record(i, i / 12, assignment_of(**{HOSTILE: i % 2})) for i in range(12)]
    elif place == "message":
        status = status_of("failed", message=HOSTILE)
    elif place == "metric":
        files["results.json"] = results_of([{**top_of(1)[0], "metrics": {HOSTILE: 1.0}}])
    elif place == "reference":
        files["results.json"] = results_of(top_of(1), [side(HOSTILE, 0.5, 0.1)])
    elif place == "problem":
        files["pareto_front.json"] = {HOSTILE: 1}
    folder = write_run(tmp_path, records, rows=metric_rows(3), status=status, files=files, options=options)
    clean = page(write_run(tmp_path / "clean", choices(12), rows=metric_rows(3), status=status_of("completed")))
    read = page(folder)
    assert read.tags.count("script") == clean.tags.count("script") == 1
    assert "img" not in read.tags
    assert "<script>alert" not in read.text
    if place not in ("problem",):
        assert any("alert(" in text for text in read.sections.values())
        assert any("{{ 7 * 7 }}" in text for text in read.sections.values()) or place == "task"


def test_secrets_are_masked(tmp_path, monkeypatch):
    monkeypatch.setenv("PGPASSWORD", "hunter2")
    monkeypatch.delenv("ABSENT", raising=False)
    status = status_of("failed", message="cannot connect to postgresql://me:hunter2@host/db")
    status["sessions"][0]["command"].append("evaluation.store_url=postgresql://me:hunter2@host/db")
    error = record(1, None, assignment_of(x=1), error="GET https://user:hunter2@host/x?token=hunter2 failed")
    status["sessions"][0]["command"] += ["--task_options.token", "my secret"]
    options = ["evaluation.store_url=postgresql://me:${oc.env:ABSENT}@host/db", "task_options.api_key=hunter2"]
    options += ["task_options.password=7418529", "task_options.url=postgresql://me:p@ssword1@host/db"]
    options += ["task_options.credentials={user: hunter3}"]
    folder = write_run(tmp_path, [error], status=status, options=options)
    text = page(folder).text
    secrets = ("hunter2", "p@ss", "ssword1", "my secret", "7418529", "hunter3")
    assert [secret for secret in secrets if secret in text] == []
    assert "${oc.env:ABSENT}" in text
    (folder / "config.yaml").write_text((folder / "config.yaml").read_text().replace("postgresql", "sqlite"))


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--task_options.api_key", "hunter2"], "--task_options.api_key ***"),
        (["--task_options.api_key=hunter2"], "'--task_options.api_key=***'"),
        (["--verbose", "task_options.password=my hunter2"], "--verbose 'task_options.password=***'"),
        (["task_options={aws_secret_access_key: hunter2}"], '\'task_options={"aws_secret_access_key": "***"}\''),
        (["url=postgresql://me:hun@hunter2@host/db"], "'url=postgresql://me:***@host/db'"),
        (["url=https://hunter2@host/x"], "'url=https://***@host/x'"),
        (["--config", "choices", "seed=3", "model.num_emb=64"], "--config choices seed=3 model.num_emb=64"),
        (["url=postgresql://me@host/db", "key=${oc.env:KEY}"], "url=postgresql://me@host/db 'key=${oc.env:KEY}'"),
    ],
)
def test_secrets_of_a_command_are_masked(words, shown):
    assert masked_command(["train", *words]) == f"train {shown}"


def test_secrets_of_options_are_masked_by_any_key_of_their_path():
    options = {"password": 12, "secret_key": "a", "credentials": {"user": "me", "all": [1]}, "token": "${oc.env:T}"}
    expected = {"password": "***", "secret_key": "***", "credentials": {"user": "***", "all": ["***"]}}
    same = {"seed": 3, "tokenizer": "words", "url": "sqlite:///x", "password": None}
    assert masked_options(options) == expected | {"token": "${oc.env:T}"}
    assert masked_options({"a": same}) == {"a": same}


def test_resumed_run_is_reproduced_from_its_start(tmp_path):
    folder = write_run(tmp_path, options=["resume=auto", "overwrite_existing_exp=true"])
    words = shlex.split(reproduce_command(read_run(folder)))
    command = parse(words[3:])
    config = command_config(command.config, command.overrides)
    assert (config.resume, config.overwrite_existing_exp, config.log_dir) == (False, False, f"{folder}_again")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("run.json", b"{", "damaged file"),
        ("status.json", b"[1", "status.json is damaged"),
        ("metrics.jsonl", None, "metrics.jsonl is missing"),
        ("metrics.jsonl", b'{"step": 1}\n{"ste\n{"step": 2}\n', "1 damaged line left out"),
        ("evaluations.sqlite", None, "evaluations.sqlite is missing"),
        ("evaluations.sqlite", b"no database", "evaluations cannot be read"),
        ("top_architectures.json", None, "top_architectures.json is missing"),
        ("top_architectures.json", b"[{", "top_architectures.json is damaged"),
        ("results.json", b'{"format": 1, "final": {"finalists": 3}}', "results.json is damaged"),
        ("results.json", b'{"format": 2}', "expected results in format 1, got 2"),
        ("results.json", b"[" * 100_000, "results.json is damaged"),
        ("results.json", None, "results.json is missing"),
        ("certificate.json", b"\xff", "certificate.json is damaged"),
        ("pareto_front.json", b"[" * 100_000, "pareto_front.json is damaged"),
    ],
)
def test_missing_and_damaged_files_are_named(tmp_path, name, content, words):
    folder = finished_run(tmp_path)
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    read = page(folder)
    assert words in read.sections["header"]
    assert "configuration" in read.sections


def test_odd_entries_do_not_prevent_the_page(tmp_path):
    odd: list[Mapping[str, Any]] = [
        *({}, {"rank": "x", "graph": 3}, {"rank": 1, "final": 4, "metrics": [1], "graph": {"nodes": "no"}}),
        {"rank": 2, "graph": {"nodes": [{"id": 0, "node_type": "hidden", "operation": {"name": 3}}], "edges": []}},
    ]
    files = {"top_architectures.json": odd, "pareto_front.json": odd, "certificate.json": {}}
    files["results.json"] = results_of([{**top_of(3)[rank], "metrics": {}} for rank in (1, 2)])
    options = ["evaluation.objectives=[accuracy,parameters]"]
    folder = write_run(tmp_path, choices(12), config="digits", options=options, files=files)
    assert "best" in page(folder).sections


def test_half_a_line_of_a_killed_run_is_no_problem(tmp_path):
    folder = write_run(tmp_path, rows=metric_rows(4), status=status_of("running"))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "lo')
    assert not read_run(folder).problems
    assert "step 4 of 100" in page(folder).sections["header"]


def test_folder_without_a_run_raises(tmp_path):
    with pytest.raises(UserError, match="expected the log_dir of a run"):
        read_run(tmp_path)


def test_page_from_the_folder_is_the_page_of_the_run(finished_runs, copied_run, tmp_path):
    """Byte for byte, without the process; lines that load follow a moved folder."""
    folder, moved = finished_runs("toy"), copied_run("toy")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert page_of(read_run(folder)) == page
    assert "<time>2026-11-23 11:01 UTC" in page_of(read_run(finished_run(tmp_path))), "the end of the run"
    for path in (folder, moved):
        assert f"gflownet.load(&#34;{path}/top_architectures.json" in page_of(read_run(path))


def test_long_runs_have_small_pages(tmp_path):
    records = choices(800, num_failed=80)
    text = page_of(read_run(write_run(tmp_path, records, rows=metric_rows(2_000))), written=WRITTEN)
    short = page_of(read_run(write_run(tmp_path / "b", records[:200], rows=metric_rows(400))), written=WRITTEN)
    assert len(text) < 250_000
    assert len(text) < 1.5 * len(short)


def test_page_of_no_data_is_complete(tmp_path):
    read: Page = page(write_run(tmp_path))
    assert list(read.sections)[1:] == ["certificate", "configuration"]


def test_summary_of_the_data_is_a_section(tmp_path):
    folder = write_run(tmp_path)
    (folder / "data.txt").write_text("columns:\n  a<b  number, 3 % missing\n")
    assert "a<b number, 3 % missing" in page(folder).sections["data"]


def test_error_in_a_section_leaves_the_others(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("gflownet.report.page.page.effect_section", lambda run: 1 / 0)
    read = Page(page_of(read_run(finished_run(tmp_path)), written=WRITTEN))
    assert "could not be written: ZeroDivisionError" in read.sections["effects"]
    assert "Rank 0" in read.sections["best"]
    assert "section effects" in caplog.text
