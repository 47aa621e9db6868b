"""Output of whole runs: quiet, normal, verbose, start-up, and the lines of an interrupted run."""

from __future__ import annotations

import io
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from gflownet.run.run import Run
from gflownet.run.search_stage import SearchStage
from gflownet.terminal.console import StartUp
from gflownet.train import main
from tests.tiny_run import TINY_RUN

ONE_OF_SEVERAL = re.compile(
    r"(?<![\d.,:/])1 (?:[a-z]+ )?(?:steps|seeds|evaluations|trainings|epochs|finalists|workers|graphs)\b"
)
SPACE = ("task=hypergrid", "env.name=hypergrid", "model.name=mlp", "num_training_steps=4", "print_every=2")


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Return a function that runs with options and returns the printed lines."""

    def output(*options: str) -> list[str]:
        capsys.readouterr()
        assert main([*TINY_RUN, *SPACE, f"log_dir={tmp_path / 'run'}", "overwrite_existing_exp=true", *options]) == 0
        printed = capsys.readouterr()
        assert printed.err == ""
        return printed.out.splitlines()

    return output


def is_summary(lines: list[str]) -> bool:
    text = "\n".join(lines)
    return all(words in text for words in ("best architectures", "everything about this run: ", "time: 0:00:"))


def test_output_by_verbosity(run) -> None:
    quiet, normal, verbose = run("-q"), run(), run("--verbose")
    assert all(is_summary(lines) for lines in (quiet, normal, verbose))
    assert quiet[0].startswith("mean score of sampled architectures"), "nothing but the summary"
    assert not [line for line in (*quiet, *normal, *verbose) if ONE_OF_SEVERAL.search(line)]
    steps = [[line.split()[1] for line in lines if line.startswith("step ")] for lines in (quiet, normal, verbose)]
    assert steps == [[], ["2/4", "4/4"], ["1/4", "2/4", "3/4", "4/4"]]
    evaluations = [line for line in verbose if re.match(r"evaluation \w+-\w+: score 0\.\d{4} in \d", line)]
    assert len(evaluations) == int(re.findall(r"distinct (\d+)", "\n".join(verbose))[-1])
    for words in ("start-up: python ", "start-up: task hypergrid", "training begins", "training took 0:00:"):
        assert any(line.startswith(words) for line in verbose), words
    assert not any(line.startswith(("start-up: task", "evaluation ", "training ")) for line in normal)


def test_time_includes_imports_and_data(run, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=iter([0.0, 1000.0]).__next__)  # before and after the trainer is built
    monkeypatch.setattr("gflownet.train.time", clock)
    assert any(re.match(r"time: 0:1[67]:\d\d", line) for line in run("-q"))


def test_interrupted_run_ends_with_the_line_that_resumes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = SearchStage.write

    def write_and_stop(self: SearchStage, run: Run, metrics: dict[str, float]) -> None:
        write(self, run, metrics)
        run.stop.signal = 2

    monkeypatch.setattr(SearchStage, "write", write_and_stop)
    folder = tmp_path / "my run"
    assert main([*TINY_RUN, *SPACE, f"log_dir={folder}", "report.every=null"]) == 130
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"resume: gflownet train log_dir='{folder}' resume=true"
    monkeypatch.undo()
    assert main([f"log_dir={folder}", "resume=true", "console=quiet"]) == 0, "the verbosity may change"
    assert " in 2 sessions" in capsys.readouterr().out


def test_start_up_step_on_a_terminal_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.StringIO()
    monkeypatch.setattr("gflownet.terminal.console.make_console", lambda: Console(file=output, force_terminal=True))
    with StartUp("normal").step("data"):
        assert output.getvalue() == "\r\x1b[Kstart-up: data ..."
    assert output.getvalue().endswith("\r\x1b[K")
