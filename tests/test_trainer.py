"""Runs: files, seeds, workers, errors."""

import json
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from gflownet.config import load_config
from gflownet.errors import UserError
from gflownet.records.marker import read_marker
from gflownet.records.status import RunState, read_status
from gflownet.run.checkpoint import RunLock, load
from gflownet.run.trainer import GFNTrainer
from gflownet.workers.pool import WorkerError
from tests import small_run
from tests.evaluation.stub_rows import open_store
from tests.small_run import SMALL, main, run
from tests.tiny_run import metric_rows
from tests.toy_tasks import RewardsHiddenNodes

finished = small_run.finished_toy


def test_run_writes_all_files(finished):
    assert [row["step"] for row in metric_rows(finished)] == list(range(1, 9))
    config = yaml.safe_load((finished / "config.yaml").read_text())
    assert config["algo"]["num_from_policy"] == 4
    assert sorted(path.name for path in (finished / "checkpoints").iterdir()) == [
        "step_00000006.pt",
        "step_00000008.pt",
    ]
    best = json.loads((finished / "top_architectures.json").read_text())
    scores = [entry["validation_score"] for entry in best]
    assert scores == sorted(scores, reverse=True)
    for entry in best:
        hidden = [node for node in entry["graph"]["nodes"] if node["node_type"] == "hidden"]
        assert entry["validation_score"] == pytest.approx((1 + len(hidden)) / 10)
        assert entry["test_score"] == pytest.approx(len(hidden) / 10)
        picture = finished / "architectures" / f"rank_{entry['rank']}.svg"
        assert picture.read_text().startswith("<svg")
    with sqlite3.connect(finished / "evaluations.sqlite") as store:
        (count,) = store.execute("select count(*) from evaluations").fetchone()
    store.close()
    assert count == metric_rows(finished)[-1]["num_distinct"]


def test_run_metrics_of_step(finished):
    for row in metric_rows(finished):
        assert 0.1 <= row["score_mean"] <= row["score_best"] <= 0.4
        assert row["failed_share"] == 0
        assert 0 <= row["cached_share"] <= 1
        assert row["loss"] >= 0
        assert row["log_reward_mean"] <= 0


def test_run_depends_on_the_seed(finished, tmp_path):
    assert run(tmp_path / "other", "seed=1", "num_training_steps=1") == 0
    assert metric_rows(tmp_path / "other") != metric_rows(finished)[:1]


def test_run_files_contain_run_id(finished):
    marker = read_marker(finished)
    assert marker is not None
    lines = (finished / "metrics.jsonl").read_text().splitlines()
    assert {json.loads(line)["run"] for line in lines} == {marker.run}
    assert {entry["run"] for entry in json.loads((finished / "top_architectures.json").read_text())} == {marker.run}
    assert {load(path)["run_id"] for path in (finished / "checkpoints").iterdir()} == {marker.run}
    with open_store(finished / "evaluations.sqlite") as store:
        assert {record.run for record in store.top(100)} == {marker.run}


def test_validation_does_not_affect_training(finished, tmp_path):
    assert run(tmp_path / "run", "validate_every=1", "num_training_steps=2") == 0
    losses = [[row["loss"] for row in metric_rows(folder)] for folder in (tmp_path / "run", finished)]
    assert losses[0] == losses[1][:2]


@pytest.mark.parametrize("name", ["file", "file/inside", "/proc/none"])
def test_unwritable_log_dir_raises(tmp_path, capsys, name):
    (tmp_path / "file").write_text("")
    assert run(tmp_path / name) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: log_dir: expected a writable folder, got ")
    assert error.count("\n") == 1


def test_default_folder_is_the_next_free_one(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (Path(f"logs/tests.toy_tasks:RewardsHiddenNodes{end}") for end in ("", "_2"))
    short, line = (*SMALL, "num_training_steps=1"), f"log_dir: {first} has a run, this one is in {second}"
    assert main(short) == main([*short, "seed=1"]) == 0
    assert capsys.readouterr().out.splitlines().count(line) == 1
    assert yaml.safe_load((second / "config.yaml").read_text())["log_dir"] == str(second)
    assert main([*short, f"log_dir={first}"]) == 2
    assert capsys.readouterr().err.startswith(f"error: log_dir: expected a folder without a run, got {first}; ")
    assert main([*SMALL, "num_training_steps=2", "seed=1", "resume=true"]) == 0, "the newest run"
    assert main([*short, "seed=2", "overwrite_existing_exp=true"]) == 0, "the run of the default folder"
    assert [len(metric_rows(folder)) for folder in (first, second)] == [1, 2]
    assert sorted(Path("logs").iterdir()) == [first, Path(f"{first}.1"), second]


def test_default_folder_of_another_process_is_left_to_it() -> None:
    """The other one has locked it after the look at the start."""
    trainer = GFNTrainer(load_config(None, [*SMALL, "num_training_steps=1", "log_dir=logs/taken"]))
    trainer.default_folder = "logs/taken"
    with RunLock(Path("logs/taken")):
        trainer.run()
    assert yaml.safe_load(Path("logs/taken_2/config.yaml").read_text())["log_dir"] == "logs/taken_2"
    assert not Path("logs/taken/config.yaml").exists()


@pytest.mark.parametrize(
    ("options", "message", "num_steps"),
    [
        (("budget.evaluations=2",), "every evaluation failed, 2 of 2 with: ", 0),
        (("algo.num_from_policy=16",), "; the search stops; check that", 1),
        (
            ("search.method=surrogate", "evaluation.executor=inline", "search.batch_size=10", "budget.evaluations=30"),
            "every evaluation failed, 10 of 10 with: ",
            1,
        ),
    ],
)
def test_run_that_only_fails_ends_as_a_failure(options, message, num_steps, tmp_path, capsys):
    folder = tmp_path / "run"
    assert run(folder, "task=tests.toy_tasks:AlwaysFails", *options) == 2
    shown = capsys.readouterr()
    reason = r"RuntimeError: nothing works \(toy_tasks\.py:\d+\)"
    lines = [line for line in shown.out.splitlines() if line.startswith("step 1: evaluation of ")]
    assert len(lines) == num_steps
    assert all(re.fullmatch(rf"step 1: evaluation of \S{{12}} failed: {reason}", line) for line in lines)
    failed = r"failed evaluations: \d+ \(\d+ x failed: RuntimeError \(toy_tasks\.py:\d+\)\)\n"
    assert len(re.findall(failed, shown.out)) == 1
    assert message in shown.err
    assert re.search(reason, shown.err)
    assert "gflownet.load" not in shown.out
    rows = (folder / "metrics.jsonl").read_text().splitlines() if num_steps else []
    assert len(rows) == num_steps
    status = read_status(folder)
    assert status is not None
    assert status.state is RunState.FAILED
    assert message in status.message


def test_run_escapes_control_characters(tmp_path, capsys):
    folder = tmp_path / "run\u202e[b]"
    assert run(folder, "task=tests.toy_tasks:FailsWithEscapes", "num_training_steps=2") == 0
    assert run(folder) == 2
    shown = capsys.readouterr()
    for text in (shown.out, shown.err):
        assert text.replace("\n", "").isprintable()
    assert " failed: RuntimeError: \\x1b]0;owned\\x07 \\u202e <script>" in shown.out
    assert "no test score of rank 0: RuntimeError: \\x1b[31m" in shown.out
    assert r"run\u202e[b]" in shown.err


def test_report_uses_seed_of_evaluation(tmp_path):
    assert run(tmp_path / "run", "task=tests.toy_tasks:ScoresTheSeed", "num_training_steps=1", "seed=5") == 0
    entries = json.loads((tmp_path / "run" / "top_architectures.json").read_text())
    assert len({entry["validation_score"] for entry in entries}) > 1
    assert [entry["test_score"] for entry in entries] == [entry["validation_score"] for entry in entries]


@pytest.mark.slow
def test_killed_run_leaves_no_process(tmp_path):
    command = [sys.executable, "-m", "gflownet.train", *SMALL, f"log_dir={tmp_path}", "num_workers=2"]
    command += ["num_training_steps=100000"]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    wait_until(lambda: (tmp_path / "metrics.jsonl").exists() and metric_rows(tmp_path), seconds=90)
    assert len(session_members(run.pid)) >= 3
    run.kill()
    run.wait()
    wait_until(lambda: not session_members(run.pid), seconds=30)


def wait_until(condition: Callable[[], object], *, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def session_members(session: int) -> list[int]:
    """Return the living processes of a session, zombies aside."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, _, owner = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue
            if int(owner) == session and state != "Z":
                found.append(int(entry.name))
    return found


def test_run_records_failing_candidates(tmp_path):
    folder = tmp_path / "run"
    assert run(folder, "task=tests.toy_tasks:SometimesFails", "num_training_steps=4") == 0
    shares = [row["failed_share"] for row in metric_rows(folder)]
    assert max(shares) > 0
    assert min(shares) < 1
    with sqlite3.connect(folder / "evaluations.sqlite") as store:
        errors = {e for (e,) in store.execute("select error from evaluations where status = 'failed'")}
        floors = {s for (s,) in store.execute("select score from evaluations where status = 'failed'")}
    store.close()
    assert any("no relu here" in error for error in errors)
    assert any("expected a finite score, got nan" in error for error in errors)
    assert floors == {load_config().evaluation.floor_score}


def test_existing_run_is_not_overwritten(finished, copied_run, capsys):
    before = metric_rows(finished)
    assert run(finished) == 2
    assert "overwrite_existing_exp=true" in capsys.readouterr().err
    assert metric_rows(finished) == before
    own = copied_run("toy")
    (own / "notes.txt").write_text("mine")
    assert run(own, "overwrite_existing_exp=true", "num_training_steps=1") == 0
    assert len(metric_rows(own)) == 1
    assert Path(f"{own}.1", "notes.txt").read_text() == "mine"


def test_run_with_one_worker_equal_for_transports(tmp_path):
    """The seed decides, the way of the messages does not."""
    for name, way in {"first": "mp_buffer_size=1000000", "second": "pickle_mp_messages=true"}.items():
        assert run(tmp_path / name, "num_workers=1", "num_training_steps=2", way) == 0
    assert metric_rows(tmp_path / "first") == metric_rows(tmp_path / "second")
    assert len(metric_rows(tmp_path / "first")) == 2


def test_run_with_several_workers_and_mixed_precision_resumes(tmp_path):
    folder = tmp_path / "run"
    options = ("num_workers=2", "mp_buffer_size=1000000", "opt.precision=bfloat16")
    assert run(folder, *options, "num_training_steps=1") == 0
    assert run(folder, *options, "num_training_steps=2", "resume=true") == 0
    assert [row["step"] for row in metric_rows(folder)] == [1, 2]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("env.max_edges=0", "max_edges"),
        ("task=tests.toy_tasks:HasNoReward", "HasNoReward.log_reward: expected a finite number for the score 0."),
        ("device=gpu", "device: expected cpu, cuda or cuda:N, got 'gpu'"),
        ("device=cuda:99", "CUDA devices, got cuda:99"),
    ],
)
def test_run_user_error_is_one_line(tmp_path, capsys, override, message):
    assert run(tmp_path / "run", override) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["task=tests.toy_tasks:Hangs", "workers.deadline=1"],
            "expected a message within 1.0 s, got none; it was killed (if it was only slow, set a longer deadline) "
            "(workers.deadline)",
        ),
        (["task=tests.toy_tasks:Dies"], "was killed by SIGKILL (out of memory?) (workers.deadline)"),
        (["task=tests.toy_tasks:CannotBePickled"], "expected a picklable object"),
    ],
)
def test_run_unsupported_worker_options_raise(tmp_path, capsys, options, message):
    assert run(tmp_path / "run", "num_workers=1", *options) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    torch.set_num_threads(1)


class BreaksItsConditions(RewardsHiddenNodes):
    """Has no conditions."""

    def sample_conditioning(self, num, *, generator):
        raise RuntimeError("no conditions today")


def test_run_user_exception_in_worker_has_traceback(tmp_path):
    with pytest.raises(WorkerError, match="no conditions today") as caught:
        run(tmp_path / "run", "num_workers=1", f"task={__name__}:BreaksItsConditions")
    cause = caught.value.__cause__
    assert isinstance(cause, RuntimeError)
    assert "in sample_conditioning" in str(cause.__cause__)


def test_second_run_in_folder_raises(tmp_path):
    with RunLock(tmp_path / "run"), pytest.raises(UserError, match="without an active run"):
        GFNTrainer(load_config(None, [*SMALL, f"log_dir={tmp_path / 'run'}"])).run()


def test_run_logger_failure_raises(copied_run, monkeypatch):
    def refuse(self, folder):
        raise OSError("no space left on device")

    monkeypatch.setattr(GFNTrainer, "_open_logger", refuse)
    with pytest.raises(OSError, match="no space left"):
        run(copied_run("toy"), "resume=true", "final.top=3", "final.num_seeds=2", "final.num_random=6")
