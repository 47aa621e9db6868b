"""Console: plain lines, live panel, tables of the report."""

from __future__ import annotations

import io
import math
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from gflownet.language.run import LOOK
from gflownet.records.status import Phase
from gflownet.run.view import FIGURES, STATUS_FIGURES, Limits, LivePanel, PlainLines, View, curve, make_view

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
    view = make_view(Console(file=output, width=40), limits=Limits(num_steps=20), print_every=5)
    assert isinstance(view, PlainLines)
    view.write(5, VALUES)
    line = output.getvalue()
    assert line.count("\n") == 1, "as wide as it is, a line is not wrapped"
    assert [f"{figure.short} {shown}" in line for figure, shown in zip(FIGURES, SHOWN, strict=True)] == [True] * len(
        SHOWN
    )
    assert line.startswith("step 5/20 | ")


STATUS = {
    "in_flight": 12,
    "busy_share": 0.968,
    "num_retried": 1_003,
    "num_timeout": 2,
    "num_crashed": 4,
    "num_out_of_memory": 5,
    "num_refused": 31,
}
SHOWN_STATUS = ("12", "97%", "1,003", "2", "4", "5", "31")


def test_plain_lines_show_status_that_is_not_0() -> None:
    output = io.StringIO()
    view = PlainLines(Console(file=output), Limits(num_steps=20), print_every=1)
    view.write(1, VALUES | STATUS)
    assert all(
        f"| {figure.short} {shown} |" in output.getvalue().replace("\n", " |")
        for figure, shown in zip(STATUS_FIGURES, SHOWN_STATUS, strict=True)
    )
    view.write(2, VALUES | dict.fromkeys(STATUS, 0) | {"num_timeout": 7})
    last = output.getvalue().splitlines()[-1]
    assert [figure.short for figure in STATUS_FIGURES if f"| {figure.short} " in last] == ["timeouts"]


def test_live_panel_shows_status_and_values_of_running_step() -> None:
    view, output, now = panel(80)
    view.write(1, VALUES | STATUS | {"surrogate_weight_forest": 0.75, "surrogate_weight_labels": 0.0})
    text = output.getvalue()
    assert re.search(r"surrogate: random forest +75%", text)
    assert "labels" not in text
    for figure, shown in zip(STATUS_FIGURES, SHOWN_STATUS, strict=True):
        assert re.search(rf"{re.escape(figure.label)} +{re.escape(shown)}", text), figure.label
    now.moment += 1
    view.show({"in_flight": 77, "num_crashed": 0})
    last = output.getvalue()[len(text) :]
    assert re.search(r"in flight +77", last)
    assert "crashed" not in last
    assert "step 1/20" in last
    view.close()


def test_plain_lines_print_every() -> None:
    output = io.StringIO()
    view = PlainLines(Console(file=output, width=40), Limits(num_steps=12), print_every=5)
    for step in range(1, 13):
        view.write(step, {"log_Z": math.nan})
    view.close()
    assert output.getvalue() == "step 5/12\nstep 10/12\nstep 12/12\n", "and no dash for what has no value"


def time_left(limits: Limits, now: FakeTime, steps: dict[int, dict[str, float]], **options: bool) -> str:
    """Return the time left in the line of the last of some steps, which take 10 seconds each."""
    output = io.StringIO()
    view = PlainLines(Console(file=output), limits, now=now, print_every=1, **options)
    for step, values in steps.items():
        now.moment += 10
        view.write(step, values)
    return output.getvalue().splitlines()[-1].rpartition(" | ")[2].removesuffix(" left")


@pytest.mark.parametrize(
    ("limits", "values", "left"),
    [
        (Limits(), {"num_distinct": 30, "seconds": 50.0}, "0:00:40"),  # 4 steps of 10 s
        (Limits(num_evaluations=130), {"num_distinct": 30, "seconds": 5.0}, "0:00:33"),  # 100 more of .333 s
        (Limits(seconds=350), {"num_distinct": 30, "seconds": 300.0}, "0:00:02"),
        (Limits(num_evaluations=10, seconds=350), {"num_distinct": 30, "seconds": 50.0}, ""),
        (Limits(seconds=350), {}, "0:00:40"),
    ],
)
def test_time_left_by_budget(limits: Limits, values: dict[str, float], left: str) -> None:
    line = time_left(replace(limits, num_steps=5), FakeTime(), {1: values})
    assert line == left if left else line.startswith("distinct")


def test_time_left_counts_steps_and_evaluations_of_this_process() -> None:
    now = FakeTime()
    steps = {101: dict[str, float](), 102: {}, 103: {}}
    assert time_left(Limits(num_steps=105), now, steps, is_resumed=True) == "0:00:20"
    evaluated = {101: {"num_distinct": 100.0}, 102: {"num_distinct": 120.0}}
    assert time_left(Limits(num_evaluations=220), now, evaluated, is_resumed=True) == "0:00:50"
    assert time_left(Limits(num_steps=105), now, {106: {}}) == "step 106/106", "more steps than expected"


def test_plain_lines_of_a_stage_have_a_minimum_interval() -> None:
    output, now = io.StringIO(), FakeTime()
    view = PlainLines(Console(file=output), Limits(num_steps=20), now=now, print_every=5)
    view.stage("final stage", 2, 12)  # 2 of an earlier process
    for done in range(3, 13):
        now.moment += 4
        view.stage("final stage", done, 12)
    assert output.getvalue().splitlines() == [
        "final stage: 5 of 12 (42%) | time 0:00:12 | 0:00:28 left",
        "final stage: 8 of 12 (67%) | time 0:00:24 | 0:00:16 left",
        "final stage: 11 of 12 (92%) | time 0:00:36 | 0:00:04 left",
    ]
    view.stage("certificate", 0, 3)
    assert "certificate" not in output.getvalue()
    now.moment += 12
    view.stage("certificate", 3, 3, {"num_finalists": 3, "final_score_best": 0.75})
    assert output.getvalue().splitlines()[-1] == (
        "certificate: 3 of 3 (100%) | candidates 3 | best mean 0.750 | time 0:00:12"
    ), "its facts, and no time left where other work may follow"


@pytest.mark.parametrize("width", [40, 80, 120])
def test_live_panel_shows_a_stage(width: int) -> None:
    view, output, now = panel(width)
    view.write(1, VALUES)
    view.enter(Phase.TRAINING)
    view.stage("final stage", 0, 12)
    now.moment += 10
    view.stage("final stage", 5, 12)
    view.close()
    last = output.getvalue().rpartition("gflownet")[2]
    assert "final stage 5/12" in last
    assert "0:00:14 left" in last
    assert ("0:00:10, 0:00:14" in last) == (width >= 64)
    assert max(len(line) for line in last.splitlines()) <= width


def test_quiet_view_shows_nothing() -> None:
    for is_terminal in (False, True):
        output = io.StringIO()
        console = Console(file=output, force_terminal=is_terminal)
        view = make_view(console, limits=Limits(num_steps=20), print_every=1, is_quiet=True)
        view.write(1, VALUES)
        view.show(VALUES)
        view.stage("final stage", 1, 2)
        view.close()
        assert output.getvalue() == ""


def panel(width: int) -> tuple[LivePanel, io.StringIO, FakeTime]:
    output, now = io.StringIO(), FakeTime()
    console = Console(file=output, force_terminal=True, width=width, height=30, color_system=None)
    return LivePanel(console, Limits(num_steps=20), now=now), output, now


@pytest.mark.parametrize("width", [40, 80, 120])
def test_live_panel_contains_all_metrics(width: int) -> None:
    view, output, now = panel(width)
    view.write(1, {**VALUES, "score_mean": 0.5})
    now.moment += 10
    view.write(2, VALUES)
    view.close()
    last = output.getvalue().rpartition("gflownet")[2]
    for figure, shown in zip(FIGURES, SHOWN, strict=True):
        assert re.search(rf"{re.escape(figure.label)} +{re.escape(shown)}", last), figure.label
    assert "step 2/20" in last
    assert "0:01:30 left" in last
    assert "▁█" in last
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
    view = make_view(Console(file=io.StringIO(), force_terminal=True), limits=Limits(num_steps=20), print_every=1)
    view.close()
    assert type(view) is kind


PHASES = (Phase.SEARCH, Phase.SAMPLER, Phase.FINAL, Phase.REPORT)
RUN_LIMITS = Limits(num_evaluations=10, num_after=20, num_sampler_steps=8, phases=PHASES)
FINAL_VALUES = {"num_finalists": 3, "num_new_seeds": 2, "final_score_best": 0.75, "seconds": 21.0}


def go_through_phases(view: View, now: FakeTime) -> Iterator[Phase]:
    """Show a run of a search method, and yield in the middle of each phase."""
    view.enter(Phase.SEARCH)
    for step in (3, 4, 5):  # several rounds may find nothing new
        now.moment += 10 / 3
        view.write(step, {"score_mean": 0.5, "num_distinct": 5, "surrogate_rank_correlation": 0.25})
    yield Phase.SEARCH
    view.write(9, {"score_mean": 0.6, "num_distinct": 10})
    view.enter(Phase.SAMPLER)
    view.stage(Phase.SAMPLER, 0, 8)
    now.moment += 4
    view.stage(Phase.SAMPLER, 2, 8)
    view.write(11, {"loss": 2.5, "log_Z": 1.5, "predicted_score_mean": 0.625, "log_reward_mean": math.nan})
    yield Phase.SAMPLER
    view.stage(Phase.SAMPLER, 8, 8)
    view.enter(Phase.FINAL)
    view.stage("final stage, trainings", 0, 20, {})
    now.moment += 12
    view.stage("final stage, trainings", 4, 20, FINAL_VALUES)
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
    view, shown = LivePanel(console, RUN_LIMITS, now=now), dict[Phase, str]()
    for phase in go_through_phases(view, now):
        view.show({})
        view._live.refresh()
        shown[phase] = last_panel(output).replace("━", "").replace("╸", "").replace("╺", "")
        assert not re.search(r"(^| )-( |$)", shown[phase]), "no dash in place of a value"
        assert max(map(len, output.getvalue().rpartition("gflownet")[2].splitlines())) <= width
    view.close()
    times = ["0:00:10, 0:00:10 left", "0:00:04, 0:00:12 left", "0:00:12, 0:00:48 left"]
    times = times if width >= 64 else [each.partition(", ")[2] for each in times]
    search, sampler, final, certificate, report = (re.sub(" +", " ", text) for text in shown.values())
    assert f"search 5/10 {times[0]} training of the sampler 0/8 final stage 0/20 about 0:00:40 report" in search
    for words in ("mean score 0.500", "distinct architectures 5", "surrogate's rank correlation 0.25"):
        assert words in search
    assert "search done in 0:00:10 training of the" in sampler
    assert (f"training of the sampler 2/8 {times[1]}" if width > 40 else times[1]) in sampler
    for words in ("loss 2.5", "log Z 1.50", "mean predicted score 0.625"):
        assert words in sampler
    assert "mean score 0" not in sampler
    assert (f"final stage, trainings 4/20 {times[2]} report" if width > 40 else times[2]) in final
    for words in ("candidates 3", "new seeds, at most 2", "best mean on new seeds 0.750"):
        assert words in final
    assert "search done in 0:00:10" in final, "the same as before"
    assert "loss" not in final
    assert "left" not in certificate, "all trainings are done, but not the phase"
    assert "final stage done in 0:00:12 report" in report


def test_plain_lines_of_each_phase() -> None:
    output, now = io.StringIO(), FakeTime()
    view = PlainLines(Console(file=output), RUN_LIMITS, now=now, print_every=1)
    assert list(go_through_phases(view, now))[-1] is Phase.REPORT
    assert output.getvalue().splitlines()[2:] == [
        "step 5 | search 5/10 | mean 0.500 | distinct 5 | rank correlation 0.25 | 0:00:10 left",
        "step 9 | search 10/10 | mean 0.600 | distinct 10",
        "step 11 | training of the sampler 2/8 | loss 2.5 | log Z 1.50 | predicted 0.625 | 0:00:12 left",
        "final stage, trainings: 4 of 20 (20%) | candidates 3 | new seeds 2 | best mean 0.750 | time 0:00:12 | "
        "0:00:48 left",
    ]


TRAINED = {
    "bits_per_byte": 2.5,
    "learning_rate": 0.002,
    "tokens_per_second": 1234.5,
    "validation": 2.25,
    "best": 2.125,
    "seconds": 4.0,
}


def test_plain_lines_of_a_training() -> None:
    output, now = io.StringIO(), FakeTime()
    view = PlainLines(Console(file=output), Limits(seconds=10), LOOK, now=now, print_every=10)
    now.moment += 4
    view.write(3, {**TRAINED, "validation_bits_per_byte": 2.25})
    view.write(4, TRAINED)
    view.write(10, TRAINED)
    view.show_text("sample after step 10", "one\n\x1b[2Jtwo")
    assert output.getvalue().splitlines() == [
        "step 3 | bits per byte 2.500 | validation 2.250 | rate 0.002 | 1,234 tokens/s | 0:00:06 left",
        "step 10 | bits per byte 2.500 | rate 0.002 | 1,234 tokens/s | 0:00:06 left",
        "sample after step 10:",
        "    one",
        r"    \x1b[2Jtwo",
    ]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_live_panel_of_a_training(width: int) -> None:
    output, now = io.StringIO(), FakeTime()
    console = Console(file=output, force_terminal=True, width=width, height=40, color_system=None)
    limits = Limits(seconds=10, phases=(Phase.TRAINING, Phase.FINAL))
    view = LivePanel(console, limits, LOOK, now=now)
    now.moment += 4
    for step, bits in enumerate((4.0, 2.5), 1):
        view.write(step, {**TRAINED, "bits_per_byte": bits})
    view.show_text("sample after step 2", "\x1b[2J" + "long " * 40 + "\nsecond" * 20)
    view.close()
    last = output.getvalue().rpartition("language model")[2]
    for words in ("step 2", "0:00:06 left", "best validation", "2.125", "▁█", "sample after step 2:", r"\x1b[2Jlong"):
        assert words in last, words
    assert last.count("second") == 7
    assert max(map(len, last.splitlines())) <= width


def last_panel(output: io.StringIO) -> str:
    """Return the text of the last panel in one line, without its frame."""
    return " ".join(output.getvalue().rpartition("gflownet")[2].replace("│", " ").split())


@pytest.mark.parametrize(
    ("scores", "marks"),
    [
        ([], ""),
        ([0.5], "▁"),
        ([0.5, 0.5], "▁▁"),
        ([0.0, 0.5, 1.0], "▁▅█"),
        ([0.0, float("nan"), 1.0], "▁█"),
        ([float("nan")], ""),
    ],
)
def test_curve_range(scores: list[float], marks: str) -> None:
    assert curve(scores) == marks


def test_curve_of_many_scores() -> None:
    marks = curve([float(i) for i in range(3205)])
    assert len(marks) == 32
    assert list(marks) == sorted(marks)
    assert set(marks) == set("▁▂▃▄▅▆▇█")


def test_live_panel_in_ascii() -> None:
    written = io.BytesIO()
    file = io.TextIOWrapper(written, encoding="ascii")
    view = LivePanel(Console(file=file, force_terminal=True, width=80, color_system=None), Limits(num_steps=2))
    view.write(1, VALUES)
    view.write(2, VALUES)
    view.close()
    assert "step 2/2" in written.getvalue().decode("ascii")


SHOWING = """
import pathlib, sys
from gflownet.config import WandbConfig
from gflownet.run.logging import MetricLogger
from gflownet.run.view import Limits
options = {"wandb": WandbConfig(mode="disabled"), "config": {}, "limits": Limits(num_steps=3), "print_every": 1}
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
