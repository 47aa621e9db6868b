"""One suite for the stages of a run: a session that a signal or `kill -9` ends is resumed to an equal run."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gflownet.evaluation.dispatcher import Dispatcher
from gflownet.evaluation.task import Score
from gflownet.files import CHECKSUM
from gflownet.records.status import Phase, RunState, read_status
from gflownet.run.folder import last_checkpoint
from gflownet.run.logging import MetricLogger
from gflownet.run.view import View
from tests import small_run
from tests.language import tiny
from tests.search.searches import PLACES
from tests.tiny_run import metric_rows
from tests.toy_tasks import RewardsHiddenNodes

_INLINE = ("evaluation.executor=inline", "wandb.mode=disabled", "report.every=null", "checkpoint_every=2")
_METHOD = (
    *PLACES,
    *("search.method=surrogate", "search.surrogate.name=tests.search.toy_surrogates:RidgeRegression"),
    *("search.batch_size=3", "search.num_initial=6", "budget.evaluations=15"),
    *("search.sampler.num_likelihood_updates=0", "search.sampler.num_updates=4", "search.sampler.num_verified=0"),
)


class ScoresBySeed(RewardsHiddenNodes):
    """Scores that each training draws from its seed."""

    is_cheap = False

    def evaluate(self, graph: Any, *, seed: int) -> Score:
        score = super().evaluate(graph, seed=seed)
        return Score(score.value + seed % 1000 / 1e4, num_parameters=score.num_parameters)


@dataclass(frozen=True)
class Case:
    """A stage of a run that ends in its middle."""

    run: Callable[..., int]  # folder, *options -> exit status
    options: tuple[str, ...]
    called: tuple[type, str]  # class and name of the method whose call ends the process
    moment: int  # number of the call
    has_stage: Callable[[Path], bool]  # whether the ended run has reached the stage
    resume: str = "resume: gflownet train"  # in the last lines of an interrupted run


def _search(*options: str) -> Callable[..., int]:
    return lambda folder, *more: small_run.main([*options, *_INLINE, f"log_dir={folder}", *more])


def _language(folder: Path, *options: str) -> int:
    folder.parent.mkdir(exist_ok=True)
    return tiny.train(folder.parent, f"log_dir={folder}", *options, model="gru.yaml")


def _num_rows(num: int) -> Callable[[Path], bool]:
    return lambda folder: len(metric_rows(folder)) in (num - 1, num)


def _is_in_final_stage(folder: Path) -> bool:
    status = read_status(folder)
    assert status is not None
    return Phase.FINAL in {status.sessions[-1].phase, *status.seconds}


WRITE = (MetricLogger, "write")
_TO_CONTINUE = "to continue: gflownet language"
CASES = {
    "policy": Case(_search(*small_run.SMALL), ("replay.use=true",), WRITE, 6, _num_rows(6)),
    "middle of a step": Case(
        _search(*small_run.SMALL, "task=tests.toy_tasks:DrawsFromEveryGenerator"),
        ("local_search.num=2", "local_search.num_iterations=2"),
        (Dispatcher, "evaluate"),
        9,
        lambda folder: 0 < len(metric_rows(folder)) < 8,
    ),
    "rounds of a method": Case(_search(*_METHOD), (), WRITE, 4, _num_rows(4)),
    "sampler of a method": Case(_search(*_METHOD), (), WRITE, 8, _num_rows(8)),
    "final stage": Case(
        _search(*small_run.SMALL, f"task={__name__}:{ScoresBySeed.__name__}", "num_training_steps=2"),
        ("final.top=3", "final.num_seeds=3", "final.num_random=6", "final.share=0.6"),
        (View, "stage"),
        5,
        _is_in_final_stage,
    ),
    "language": Case(_language, (), WRITE, 11, _num_rows(11), _TO_CONTINUE),
    "language, contiguous batches": Case(
        _language,
        ("batches=contiguous", "optimiser=muon", "accumulation=2", "sample.every=0"),
        WRITE,
        13,
        _num_rows(13),
        _TO_CONTINUE,
    ),
}
# A killed process writes nothing at its end, in any stage; the others are ended by SIGTERM.
KILLED = ("middle of a step", "final stage", "language")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder of the uninterrupted run of a case."""
    folders: dict[str, Path] = {}

    def run(name: str) -> Path:
        case, key = CASES[name], str(CASES[name].options) + str(name.split()[-1])
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp("whole") / "run"
            assert case.run(folders[key], *case.options) == 0
        return folders[key]

    return run


def end_at(case: Case, number: signal.Signals, patch: pytest.MonkeyPatch) -> None:
    """Send a signal to this process in the middle of a stage."""
    called, calls = getattr(*case.called), []

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(None)
        if len(calls) == case.moment:
            os.kill(os.getpid(), number)
        return called(*arguments, **options)

    patch.setattr(*case.called, counted)


def killed(case: Case, folder: Path) -> None:
    """Take the run in a fork of this process, which `kill -9` ends."""
    child = os.fork()
    if child == 0:
        with pytest.MonkeyPatch.context() as patch, Path(os.devnull).open("w") as null:
            end_at(case, signal.SIGKILL, patch)
            with redirect_stdout(null), redirect_stderr(null):
                case.run(folder, *case.options)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def entries_of(folder: Path) -> list[dict[str, Any]]:
    """Return the reported architectures and references, without the run's id and times."""
    entries = []
    for name in ("top_architectures.json", "references.json", "random_architecture.json"):
        path = folder / name
        entries += json.loads(path.read_text()) if path.exists() else []
    return [{key: value for key, value in entry.items() if key not in ("run", "load", CHECKSUM)} for entry in entries]


def state_of(folder: Path) -> Any:
    """Return the state of the last checkpoint, without the run's id and times."""

    def without_times(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: without_times(v) for k, v in value.items() if k != "run_id" and "seconds" not in str(k)}
        return [without_times(each) for each in value] if isinstance(value, list | tuple) else value

    return without_times(last_checkpoint(folder, option="run").state)


def assert_equal(folder: Path, whole: Path) -> None:
    """Compare metrics, checkpoints, reports, samples and models of two runs."""
    assert metric_rows(folder) == metric_rows(whole)
    assert tiny.differences(state_of(folder), state_of(whole)) == []
    assert entries_of(folder) == entries_of(whole)
    for name in ("samples.jsonl", "model/model.json", "model/model.safetensors"):
        assert (folder / name).exists() == (whole / name).exists()
        if (whole / name).exists():
            assert (folder / name).read_bytes() == (whole / name).read_bytes(), name


@pytest.mark.parametrize("name", CASES)
@pytest.mark.cpu_seconds(5)
def test_resume_after_sigterm_is_exact(
    name: str, whole: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case, folder = CASES[name], tmp_path / "stopped" / "run"
    with pytest.MonkeyPatch.context() as patch:
        end_at(case, signal.SIGTERM, patch)
        assert case.run(folder, *case.options) == 128 + signal.SIGTERM
    printed = capsys.readouterr()
    assert f"{case.resume} log_dir={folder} resume=true" in printed.out
    assert printed.err.count("stopping") == 1
    status = read_status(folder)
    assert status is not None
    assert (status.state, status.message) == (RunState.INTERRUPTED, "SIGTERM")
    assert case.has_stage(folder)
    assert case.run(folder, *case.options, "resume=true") == 0
    assert_equal(folder, whole(name))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in KILLED)) for name in CASES]
)
def test_resume_after_kill_is_exact(name: str, whole: Callable[[str], Path], tmp_path: Path) -> None:
    case, folder = CASES[name], tmp_path / "killed" / "run"
    killed(case, folder)
    status = read_status(folder)
    assert status is not None
    assert status.state is RunState.KILLED
    assert case.has_stage(folder)
    assert case.run(folder, *case.options, "resume=true") == 0
    assert_equal(folder, whole(name))
