"""One suite for the stages of a run: a session that a signal or `kill -9` ends is resumed to an equal run."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from gflownet.evaluation.candidates.sets import PARENTS_NAME
from gflownet.evaluation.dispatcher import Dispatcher
from gflownet.evaluation.inheritance import InheritingEvaluator
from gflownet.evaluation.task import Score
from gflownet.files import CHECKSUM, json_text
from gflownet.language import run as language_run
from gflownet.records.status import Phase, RunState, read_status
from gflownet.report.results import read_results
from gflownet.rhn.serving import Stream
from gflownet.run.folder import last_checkpoint
from gflownet.run.logging import MetricLogger
from gflownet.search.sampler import Sampler
from tests import small_run
from tests.language import tiny
from tests.search.searches import PLACES, TrainsPlaces
from tests.tiny_run import TINY_RUN, metric_rows

_INLINE = ("evaluation.executor=inline", "wandb.mode=disabled", "report.every=null", "checkpoint_every=2")
_METHOD = (
    *PLACES,
    *("search.method=surrogate", "search.surrogate.name=tests.search.toy_surrogates:RidgeRegression"),
    *("search.batch_size=3", "search.num_initial=3", "budget.evaluations=15"),
    *("search.sampler.num_updates=4", "search.sampler.num_verified=1"),
)
_INHERITED = (
    *("task=digits", "evaluation.inherit=true", "evaluation.num_epochs=2", "search.method=surrogate", "final.top=0"),
    *("search.surrogate.name=tests.search.toy_surrogates:RidgeRegression", "search.num_initial=5"),
    *("search.batch_size=1", "search.width=2", "search.train_sampler=false", "budget.evaluations=10"),
)


class ScoresBySeed(TrainsPlaces):
    """Scores that each training draws from its seed."""

    def evaluate(self, graph: Any, *, seed: int) -> Score:
        return Score(super().evaluate(graph, seed=seed).value + seed % 1000 / 1e4, num_parameters=1)


@dataclass(frozen=True)
class End:
    """The end of a session of a run in the middle of a stage."""

    number: signal.Signals
    called: tuple[Any, str]  # class or module, and name of the function whose call ends the process
    moment: int  # number of the call
    has_stage: Callable[[Path], bool]  # whether the ended run has reached the stage
    words: str = ""  # on stdout


@dataclass(frozen=True)
class Case:
    """A run that ends several times, in several stages, and is resumed after each."""

    run: Callable[..., int]  # folder, *options -> exit status
    options: tuple[str, ...]
    ends: tuple[End, ...]
    resume: str = "resume: gflownet train"  # in the last lines of an interrupted run


def _search(*options: str) -> Callable[..., int]:
    return lambda folder, *more: small_run.main([*options, *_INLINE, f"log_dir={folder}", *more])


def _language(folder: Path, *options: str) -> int:
    folder.parent.mkdir(exist_ok=True)
    return tiny.train(folder.parent, f"log_dir={folder}", *options, model="gru.yaml")


def _num_rows(num: int) -> Callable[[Path], bool]:
    return lambda folder: len(metric_rows(folder)) in (num - 1, num)


def _num_samples(folder: Path) -> int:
    return len((folder / "samples.jsonl").read_bytes().splitlines())


def _is_in_final_stage(folder: Path) -> bool:
    status = read_status(folder)
    assert status is not None
    return Phase.FINAL in {status.sessions[-1].phase, *status.seconds}


WRITE, STAGE = (MetricLogger, "write"), (MetricLogger, "stage")
TERM, KILL = signal.SIGTERM, signal.SIGKILL
_TO_CONTINUE = "to continue: gflownet language"
_CONTIGUOUS = ("batches=contiguous", "optimiser=muon", "accumulation=2", "sample.every=0")
CASES = {
    "policy": Case(
        _search(*small_run.SMALL, "task=tests.toy_tasks:DrawsFromEveryGenerator", "num_training_steps=4"),
        (  # everything that explores, replays or is trained with the policy
            *("local_search.num=2", "local_search.num_iterations=1", "algo.sampling_tau=0.9", "validate_every=2"),
            *("algo.method=subtb", "algo.backward_policy=learned", "algo.sampling_temperature=1.5"),
            *("algo.teacher.share=0.5", "algo.qgfn.use=true", "replay.priority=rank", "replay.resample=false"),
            *("replay.evict=worst", "replay.num_updates=2", "replay.capacity=10"),
        ),
        (
            End(KILL, (Dispatcher, "evaluate"), 4, lambda folder: 0 < len(metric_rows(folder)) < 4),
            End(TERM, WRITE, 2, lambda folder: 1 < len(metric_rows(folder)) < 4),
        ),
    ),
    "stages of a method": Case(
        _search(*_METHOD, f"task={__name__}:ScoresBySeed"),
        ("final.top=3", "final.num_seeds=3", "final.num_random=6", "final.share=0.4"),
        (
            End(TERM, WRITE, 2, _num_rows(2)),
            End(KILL, WRITE, 5, lambda folder: "log_Z" in metric_rows(folder)[-1]),
            End(TERM, (Sampler, "propose"), 2, lambda folder: "log_Z" in metric_rows(folder)[-1]),
            End(KILL, STAGE, 2, _is_in_final_stage),
            End(TERM, STAGE, 6, _is_in_final_stage, "interrupted: ranked by the trainings so far"),
        ),
    ),
    "inherited weights": Case(
        _search(*TINY_RUN, *_INHERITED),
        (),
        (
            End(TERM, (InheritingEvaluator, "_submit_other"), 2, lambda folder: len(metric_rows(folder)) in (4, 5)),
            End(KILL, WRITE, 4, lambda folder: len(list((folder / PARENTS_NAME).iterdir())) > 7),
        ),
    ),
    "language": Case(
        _language,
        (),
        (
            End(KILL, WRITE, 9, _num_rows(9)),
            End(TERM, (Stream, "_run"), 1, lambda folder: (_num_samples(folder), len(metric_rows(folder))) == (1, 10)),
            End(TERM, WRITE, 5, lambda folder: len(metric_rows(folder)) > 10),
            End(TERM, (language_run, "load_language_model"), 1, lambda folder: len(metric_rows(folder)) == 20),
        ),
        _TO_CONTINUE,
    ),
    "contiguous batches": Case(_language, _CONTIGUOUS, (End(TERM, WRITE, 13, _num_rows(13)),), _TO_CONTINUE),
}


def end_at(end: End, patch: pytest.MonkeyPatch) -> None:
    """Send a signal to this process in the middle of a stage."""
    called, calls = getattr(*end.called), []

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(None)
        if len(calls) == end.moment:
            os.kill(os.getpid(), end.number)
        return called(*arguments, **options)

    patch.setattr(*end.called, counted)


def killed(case: Case, end: End, folder: Path, *options: str) -> None:
    """Take the run in a fork of this process, which `kill -9` ends."""
    child = os.fork()
    if child == 0:
        with pytest.MonkeyPatch.context() as patch, Path(os.devnull).open("w") as null:
            end_at(end, patch)
            with redirect_stdout(null), redirect_stderr(null):
                case.run(folder, *case.options, *options)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def entries_of(folder: Path) -> list[dict[str, Any]]:
    """Return the reported architectures and references, without the run's id and times."""
    entries = []
    for name in ("top_architectures.json", "random_architecture.json"):
        path = folder / name
        entries += json.loads(path.read_text()) if path.exists() else []
    results = read_results(folder)
    entries += [json.loads(json_text(asdict(each))) for each in (*results.finalists, *results.comparisons)]
    for entry in entries:
        entry.get("reference", entry).pop("load", None)
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
def test_resume_after_every_end_is_exact(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case, folder, resume = CASES[name], tmp_path / "ended" / "run", []
    for end in case.ends:
        capsys.readouterr()
        if end.number == KILL:  # writes nothing at its end
            killed(case, end, folder, *resume)
        else:
            with pytest.MonkeyPatch.context() as patch:
                end_at(end, patch)
                assert case.run(folder, *case.options, *resume) == 128 + TERM
            printed = capsys.readouterr()
            assert f"{case.resume} log_dir={folder} resume=true" in printed.out
            assert end.words in printed.out
            assert printed.err.count("stopping") == 1
        status = read_status(folder)
        assert status is not None
        expected = (RunState.KILLED, "") if end.number == KILL else (RunState.INTERRUPTED, "SIGTERM")
        assert (status.state, status.message) == expected
        assert end.has_stage(folder), end
        resume = ["resume=true"]
    assert case.run(folder, *case.options, *resume) == 0
    assert case.run(tmp_path / "whole" / "run", *case.options) == 0
    assert_equal(folder, tmp_path / "whole" / "run")
