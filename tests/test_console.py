"""Console: plain lines, live panel, tables of the report."""

from __future__ import annotations

import io
import math
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from gflownet.records.status import Phase
from gflownet.run.view import FIGURES, LivePanel, PlainLines, PlannedWork, View, make_view

VALUES = {
    "loss": 0.51234,
    "likelihood_loss": 21.5512,
    "log_Z": 3.14159,
    "log_reward_mean": -2.5,
    "predicted_score_mean": 0.625,
    "sampler_rank_correlation": 0.4567,
    "score_mean": 0.75,
    "score_best": 0.9375,
    "num_distinct": 1234,
    "cached_share": 0.25,
    "failed_share": 0.01,
    "evaluations_per_second": 12.34,
}
SHOWN = ("0.5123", "21.55", "3.14", "-2.50", "0.625", "0.46", "0.750", "0.938", "1,234", "25%", "1%", "12.3")


class FakeTime:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.moment = 100.0

    def __call__(self) -> float:
        return self.moment


def test_plain_lines_contain_all_metrics() -> None:
    output = io.StringIO()
    view = make_view(Console(file=output, width=40), planned=PlannedWork(num_steps=20), print_every=5)
    assert isinstance(view, PlainLines)
    view.write(5, VALUES)
    line = output.getvalue()
    assert line.count("\n") == 1, "as wide as it is, a line is not wrapped"
    assert [f"{figure.short} {shown}" in line for figure, shown in zip(FIGURES, SHOWN, strict=True)] == [True] * len(
        SHOWN
    )
    assert line.startswith("step 5/20 | ")


def test_plain_lines_print_every() -> None:
    output = io.StringIO()
    view = PlainLines(Console(file=output, width=40), PlannedWork(num_steps=12), print_every=5)
    for step in range(1, 13):
        view.write(step, {"log_Z": math.nan})
    view.close()
    assert output.getvalue() == "step 5/12\nstep 10/12\nstep 12/12\n", "and no dash for what has no value"


def time_left(planned: PlannedWork, now: FakeTime, steps: dict[int, dict[str, float]], **options: bool) -> str:
    """Return the time left in the line of the last of some steps, which take 10 seconds each."""
    output = io.StringIO()
    view = PlainLines(Console(file=output), planned, now=now, print_every=1, **options)
    for step, values in steps.items():
        now.moment += 10
        view.write(step, values)
    return output.getvalue().splitlines()[-1].rpartition(" | ")[2].removesuffix(" left")


def test_time_left_counts_steps_and_evaluations_of_this_process() -> None:
    now = FakeTime()
    steps = {101: dict[str, float](), 102: {}, 103: {}}
    assert time_left(PlannedWork(num_steps=105), now, steps, is_resumed=True) == "0:00:20"
    evaluated = {101: {"num_distinct": 90.0}, 102: {"num_distinct": 100.0}, 103: {"num_distinct": 120.0}}
    assert time_left(PlannedWork(num_evaluations=220), now, evaluated, is_resumed=True) == "0:00:50"
    assert time_left(PlannedWork(num_steps=105), now, {106: {}}) == "step 106/106", "more steps than expected"


def panel(width: int) -> tuple[LivePanel, io.StringIO, FakeTime]:
    output, now = io.StringIO(), FakeTime()
    console = Console(file=output, force_terminal=True, width=width, height=30, color_system=None)
    return LivePanel(console, PlannedWork(num_steps=20), now=now, seconds=0.0), output, now


@pytest.mark.parametrize("width", [40, 80, 120])
def test_live_panel_contains_all_metrics(width: int) -> None:
    view, output, now = panel(width)
    view.write(1, VALUES)
    now.moment += 10
    view.write(2, VALUES)
    view.close()
    last = output.getvalue().rpartition("gflownet")[2]
    for figure, shown in zip(FIGURES, SHOWN, strict=True):
        assert re.search(rf"{re.escape(figure.label)} +{re.escape(shown)}", last), figure.label
    assert "step 2/20" in last
    assert "0:03:00 left" in last
    assert max(len(line) for line in last.splitlines()) <= width


def test_live_panel_redraws_in_place() -> None:
    view, output, now = panel(80)
    for step in range(1, 4):
        now.moment += 1
        view.write(step, VALUES)
    view.close()
    hide, show, line_up = "\x1b[?25l", "\x1b[?25h", "\x1b[1A"
    written = output.getvalue()
    assert written.startswith(hide)
    assert written.rstrip().endswith(show)
    assert written.count(line_up) >= 2


class Screen(io.StringIO):
    """Reports a text that is drawn by any thread."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text, self.is_drawn = text, threading.Event()

    def write(self, text: str, /) -> int:
        if self._text in text:
            self.is_drawn.set()
        return super().write(text)


def test_live_panel_is_redrawn_during_one_piece_of_work() -> None:
    now, screen = FakeTime(), Screen("0:00:07 elapsed")
    console = Console(file=screen, force_terminal=True, width=80, height=30, color_system=None)
    view = LivePanel(console, PlannedWork(num_steps=20), now=now, seconds=0.01)
    now.moment += 7
    assert screen.is_drawn.wait(5)
    view.close()


def test_live_panel_refresh_rate() -> None:
    view, output, now = panel(80)
    for step in range(1, 20):
        now.moment += 0.001
        view.write(step, VALUES)
    assert "step 1/20" in output.getvalue()
    assert "step 2/20" not in output.getvalue()
    view.write(20, VALUES)
    assert "step 20/20" in output.getvalue()
    view.close()


@pytest.mark.parametrize(("term", "kind"), [("xterm", LivePanel), ("dumb", PlainLines), ("unknown", PlainLines)])
def test_terminal_that_cannot_redraw_gets_plain_lines(term: str, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", term)
    view = make_view(Console(file=io.StringIO(), force_terminal=True), planned=PlannedWork(num_steps=20), print_every=1)
    view.close()
    assert type(view) is kind


PHASES = (Phase.SEARCH, Phase.SAMPLER, Phase.FINAL, Phase.REPORT)
RUN_LIMITS = PlannedWork(num_evaluations=10, num_after=20, num_sampler_steps=8, phases=PHASES)
FINAL_VALUES = {"num_finalists": 3, "num_new_seeds": 2, "final_score_best": 0.75, "seconds": 21.0}


def go_through_phases(view: View, now: FakeTime) -> Iterator[Phase]:
    """Show a run of a search method, and yield in the middle of each phase."""
    view.enter(Phase.SEARCH)
    for step, num in ((3, 3), (4, 4), (5, 4), (6, 5)):  # a round may find nothing new
        now.moment += 0 if step == 5 else 20 if step == 3 else 4  # the first one has the time of a start
        view.write(step, {"score_mean": 0.5, "num_distinct": num, "surrogate_rank_correlation": 0.25})
    yield Phase.SEARCH
    view.write(9, {"score_mean": 0.6, "num_distinct": 10})
    view.enter(Phase.SAMPLER)
    view.stage(Phase.SAMPLER, 0, 8)
    for num, seconds in ((1, 30), (2, 2)):
        now.moment += seconds
        view.stage(Phase.SAMPLER, num, 8)
    view.write(11, {"loss": 2.5, "log_Z": 1.5, "predicted_score_mean": 0.625, "log_reward_mean": math.nan})
    yield Phase.SAMPLER
    view.stage(Phase.SAMPLER, 8, 8)
    view.enter(Phase.FINAL)
    view.stage("final stage, trainings", 0, 20, {})
    for num in (2, 4):
        now.moment += 6
        view.stage("final stage, trainings", num, 20, FINAL_VALUES)
    yield Phase.FINAL
    view.stage("final stage, trainings", 20, 20, FINAL_VALUES)
    view.enter(Phase.CERTIFICATE)  # off: without a row
    yield Phase.CERTIFICATE
    view.enter(Phase.REPORT)
    yield Phase.REPORT


@pytest.mark.parametrize("width", [40, 80, 120])
def test_live_panel_shows_each_phase_with_its_figures(width: int) -> None:
    output, now = io.StringIO(), FakeTime()
    console = Console(file=output, force_terminal=True, width=width, height=40, color_system=None)
    view, shown = LivePanel(console, RUN_LIMITS, now=now, seconds=0.0), dict[Phase, str]()
    for phase in go_through_phases(view, now):
        view.show({})
        view._live.refresh()
        shown[phase] = last_panel(output).replace("━", "").replace("╸", "").replace("╺", "")
        assert not re.search(r"(^| )-( |$)", shown[phase]), "no dash in place of a value"
        assert max(map(len, output.getvalue().rpartition("gflownet")[2].splitlines())) <= width
    view.close()
    times = ["0:00:28, 0:00:20 left", "0:00:32, 0:00:12 left", "0:00:12, 0:00:48 left"]
    times = times if width >= 64 else [each.partition(", ")[2] for each in times]
    search, sampler, final, certificate, report = (re.sub(" +", " ", text) for text in shown.values())
    assert f"search 5/10 {times[0]} training of the sampler 0/8 final stage 0/20 about 0:01:20 report" in search
    assert ("0:00:28 elapsed, at least 0:01:40 left" in search) == (width > 40)
    for words in ("mean score 0.500", "distinct architectures 5", "surrogate's rank correlation 0.25"):
        assert words in search
    assert "search done in 0:00:28 training of the" in sampler
    assert ("at least 0:00:35 left" in sampler) == (width > 40)
    assert (f"training of the sampler 2/8 {times[1]}" if width > 40 else times[1]) in sampler
    for words in ("loss 2.5", "log Z 1.50", "mean predicted score 0.625"):
        assert words in sampler
    assert "mean score 0" not in sampler
    assert (f"final stage, trainings 4/20 {times[2]} report" if width > 40 else times[2]) in final
    for words in ("candidates 3", "new seeds, at most 2", "best mean on new seeds 0.750"):
        assert words in final
    assert "search done in 0:00:28" in final, "the same as before"
    assert "loss" not in final
    assert "left" not in certificate, "all trainings are done, but not the phase"
    assert "final stage done in 0:00:12 report" in report


def last_panel(output: io.StringIO) -> str:
    """Return the text of the last panel in one line, without its frame."""
    return " ".join(output.getvalue().rpartition("gflownet")[2].replace("│", " ").split())


SHOWING = """
import pathlib, sys
from gflownet.config import WandbConfig
from gflownet.run.logging import MetricLogger
from gflownet.run.view import PlannedWork
options = {"wandb": WandbConfig(mode="disabled"), "config": {}, "planned": PlannedWork(num_steps=3), "print_every": 1}
with MetricLogger(pathlib.Path(sys.argv[1]), **options) as logger:
    for step in (1, 2, 3):
        logger.write(step, {"loss": 1 / step, "score_mean": 0.5})
        print("printed by a task")
"""


@pytest.mark.slow
def test_live_panel_on_pseudo_terminal(tmp_path: Path, checkout: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "90", "LINES": "30", "PYTHONUTF8": "1"}
    command = [sys.executable, "-c", SHOWING, str(tmp_path)]
    with subprocess.Popen(command, cwd=checkout, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        written = b""
        try:
            while chunk := os.read(ours, 65536):
                written += chunk
        except OSError:  # Linux: the other end of the terminal is closed
            pass
    os.close(ours)
    assert process.returncode == 0
    text = written.decode()
    assert "step 3/3" in text
    assert "\x1b[1A" in text, "redrawn in place"
    assert text.count("printed by a task") == 3
    assert text.rstrip().endswith("\x1b[?25h"), "the cursor is back"
