"""Command line of gflownet.train: flags, help, errors and exit status."""

from __future__ import annotations

import os
import re
import shlex
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from gflownet import train
from gflownet.config import DEFAULT_CONFIG, OPTIONS, config_names, load_config, to_yaml
from gflownet.errors import UserError
from gflownet.evaluation.executors import machine
from gflownet.evaluation.tasks import TASKS
from gflownet.run.parser import Command, help_text, parse
from gflownet.terminal.arguments import MAX_WIDTH
from tests.benchmark_tables import table_options
from tests.tiny_run import TINY_RUN, TINY_TASKS

INVALID = [
    (["model.num_layer=3"], "did you mean model.num_layers?"),
    (["--model.num_layer=3"], "did you mean model.num_layers?"),
    (["--seed"], "--seed: expected a value, for example --seed=VALUE"),
    (["--config", "digit"], "did you mean digits?"),
    (["task=os:system"], "error: task: expected a subclass of GFNTask, got 'os:system'"),
    (["task=digits", "task_options.nonsense=1"], "error: task_options"),
    ([f"log_dir={'x' * 300}"], f"error: {'x' * 300}: cannot be opened or changed (File name too long)"),
]


@pytest.mark.parametrize(("arguments", "words"), INVALID)
def test_invalid_arguments_exit_2_with_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert words in printed.err


OWN_TASK = """
from gflownet import GFNTask, Score


class CountTask(GFNTask):
    is_cheap = True

    def evaluate(self, graph, *, seed):
        return Score(0.5)


def helper():
    pass
"""
# (arguments, end of the line, arguments with the hint of the line in place of the mistake).
MISTAKES = [
    ("beta=64", "got beta=64; did you mean cond.temperature.dist_params=[64]?", "{hint}"),
    ("epochs=3", "got epochs=3; did you mean evaluation.num_epochs?", "{hint}=3"),
    ("batch_size=32", "got batch_size=32; did you mean evaluation.batch_size?", "{hint}=32"),
    ("opt.lr=0.1", "got opt.lr=0.1; did you mean opt.learning_rate?", "{hint}=0.1"),
    ("--steps 10", " or KEY=VALUE; did you mean num_training_steps?", "--{hint} 10"),
    ("algo.method=TB", " or module:Class, got 'TB'; did you mean tb?", "algo.method={hint}"),
    ("mnist1d", "mnist1d: expected KEY=VALUE; did you mean --config mnist1d?", "{hint}"),
    ("configs/digits.yaml", "expected KEY=VALUE; did you mean --config digits?", "{hint}"),
    ("config=mnist1d", "got config='mnist1d'; did you mean --config mnist1d?", "{hint}"),
    ("env=choices", ", env.allow_recurrent, ...), got 'choices'; did you mean env.name=choices?", "{hint}"),
    ("budget=100", "budget.flops), got 100; did you mean budget.evaluations=100?", "{hint}"),
    ("seed", "seed: expected KEY=VALUE, for example seed=0", "{hint}"),
    ("quickly", "quickly: expected KEY=VALUE, for example seed=0", "{hint}"),
    (
        "task=counting:CuontTask",
        "task: expected a subclass of GFNTask, got 'counting:CuontTask', which counting.py does not define; "
        "did you mean counting:CountTask?",
        "task={hint}",
    ),
    ("task=counting:helper", "got 'counting:helper'; did you mean counting:CountTask?", "task={hint}"),
    ("task=couting:CountTask", "(No module named 'couting'); did you mean counting:CountTask?", "task={hint}"),
    ("task=moved:CountTask", "(No module named 'moved'); did you mean rooms.moved:CountTask?", "task={hint}"),
    ("task=counting.CountTask", "got 'counting.CountTask'; did you mean counting:CountTask?", "task={hint}"),
    ("task=rooms/moved.py:CountTask", "'rooms/moved.py:CountTask'; did you mean rooms.moved:CountTask?", "task={hint}"),
]


@pytest.mark.parametrize(("arguments", "line", "pasted"), MISTAKES)
def test_hint_of_a_common_mistake_works_when_pasted(
    arguments: str,
    line: str,
    pasted: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "rooms").mkdir()
    (tmp_path / "counting.py").write_text(OWN_TASK)
    (tmp_path / "rooms" / "moved.py").write_text(OWN_TASK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("counting", "rooms", "rooms.moved"):
        monkeypatch.setitem(sys.modules, name, sys)  # so that the end of the test removes what it imports
        monkeypatch.delitem(sys.modules, name)
    assert train.main(arguments.split()) == 2
    error = capsys.readouterr().err.rstrip()
    assert error.endswith(line), error
    hint = re.search(r"(?:did you mean|for example) (.+?)\??$", error)
    assert hint is not None
    right = shlex.split(pasted.format(hint=hint[1]))
    assert train.main([*right, "--print-config"]) == 0
    if hint[1].endswith("CountTask"):
        assert TASKS.load(hint[1]).__name__ == "CountTask"


@pytest.mark.parametrize("has_cuda", [False, True])
def test_policy_and_candidates_without_a_gpu_name_one_cause(
    has_cuda: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "_has_cuda", lambda: has_cuda)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    causes = set()
    for option in ("device=cuda:0", "evaluation.device=cuda"):
        options = ["task=digits", "evaluation.executor=pool", f"log_dir={tmp_path / 'run'}", "wandb.mode=disabled"]
        assert train.main([option, *options]) == 2
        causes.add(capsys.readouterr().err.rstrip().rpartition(": ")[2])
    without_cuda = f"torch {version('torch')} is built without CUDA"
    assert causes == {"CUDA_VISIBLE_DEVICES hides all" if has_cuda else without_cuda}


# One of each environment that no other test of the fast suite runs (tests/finished_runs.py, tests/test_final_stage.py).
FAST_CONFIGS = {"bit_sequences", "catalogue", "coloured_graphs", "hypergrid", "structure_learning", "tensor_program"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in FAST_CONFIGS)) for name in config_names()]
)
def test_shipped_config_runs(name: str, tmp_path: Path) -> None:
    options = [*TINY_RUN, *TINY_TASKS.get(name, ()), *table_options(name, tmp_path)]
    assert train.main(["--config", name, f"log_dir={tmp_path / 'run'}", *options]) == 0
    assert (tmp_path / "run" / "top_architectures.json").exists()


def test_print_config_prints_merged_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main(["seed=3", "--print-config", "--config=digits_small", "task_options.x=${oc.env:NOT_SET}"]) == 0
    printed = capsys.readouterr().out
    assert printed == to_yaml(load_config("digits_small", ["seed=3", "task_options.x=${oc.env:NOT_SET}"]))
    assert "${oc.env:NOT_SET}" in printed


def test_print_config_uses_config_named_after_task(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, source in (([], DEFAULT_CONFIG), (["task=digits"], "digits"), (["--config=exact"], "exact")):
        assert train.main([*arguments, "--print-config"]) == 0
        assert capsys.readouterr().out == to_yaml(load_config(source))
    assert train.main(["task=a.b:C", "--print-config"]) == 0
    assert capsys.readouterr().out == to_yaml(load_config(None, ["task=a.b:C"]))


def test_help_lists_every_option_with_type_and_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    text = help_text()
    words = " ".join(text.split())
    for option in OPTIONS.values():
        match = re.search(rf"  {re.escape(option.key)} +(\S+) = (.*)\n", text)
        assert match is not None, option.key
        assert match[1] == option.type_name
        assert option.help in words
    assert "replay.use bool = true train on replayed" in words
    assert "final.num_random int|null = null" in words
    assert "env.output_sizes list[int] = [2, 4, 8, 16, 32]" in words
    assert max(map(len, text.splitlines())) <= MAX_WIDTH


def test_parse_mixes_flags_and_overrides() -> None:
    assert parse(["a=1", "--config", "x", "b=-2", "--print-config"]) == Command("x", ("a=1", "b=-2"), print_config=True)
    assert parse(["--config=y=z.yaml"]) == Command("y=z.yaml")
    assert parse(["-h"]) == Command(help=True)


@pytest.mark.parametrize(
    ("arguments", "overrides"),
    [
        (["--seed=3", "--opt.learning_rate=1e-05"], ("seed=3", "opt.learning_rate=1e-05")),
        (["seed=1", "--seed=2", "seed=3"], ("seed=1", "seed=2", "seed=3")),
        (["--wandb.mode", "offline", "--env.max_edges", "-1"], ("wandb.mode=offline", "env.max_edges=-1")),
        (["--replay.use=True", "--final.epochs=None"], ("replay.use=True", "final.epochs=null")),
        (["--env.activations=['relu', 'tanh']"], ("env.activations=['relu', 'tanh']",)),
        (["--task_options.classes", "3"], ("task_options.classes=3",)),
        (["--algo={'method': 'subtb'}"], ("algo={'method': 'subtb'}",)),
        (["-q"], ("console=quiet",)),
        (["--verbose", "console=normal"], ("console=normal", "console=verbose")),
    ],
)
def test_parse_accepts_overrides_of_sweeps(arguments: list[str], overrides: tuple[str, ...]) -> None:
    assert parse(arguments).overrides == overrides
    load_config(None, parse(arguments).overrides)


def test_parse_space_is_refused_where_the_value_is_missing() -> None:
    for arguments in (["--certify"], ["--certify", "seed=3"], ["--certify", "--seed=3"]):
        with pytest.raises(UserError, match="--certify: expected a value"):
            parse(arguments)
    assert parse(["--log_dir", "a=b"]).overrides == ("log_dir=a=b",)
    with pytest.raises(UserError, match="at most one of --quiet and --verbose"):
        parse(["-q", "-v"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--config"], "--config: expected the name or the path of a config, got nothing"),
        (["--config="], "--config: expected the name or the path of a config, got nothing"),
        (["--num_layers", "3"], r"--num_layers: expected one of --config, .* did you mean model.num_layers\?"),
        (["-x"], "-x: expected one of --config"),
    ],
)
def test_parse_unknown_flag_raises_with_example(arguments: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse(arguments)


class StoppedTrainer:
    """Trainer whose run returns a signal number or raises an error."""

    outcome: int | BaseException | None = None

    def __init__(self, config: object) -> None:
        self.config = config

    def run(self) -> int | None:
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


@pytest.mark.parametrize(
    ("outcome", "status"), [(None, 0), (2, 130), (15, 143), (KeyboardInterrupt(), 130), (UserError("log_dir: x"), 2)]
)
def test_exit_status_matches_outcome_of_run(
    outcome: int | BaseException | None, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gflownet.run.trainer

    monkeypatch.setattr(gflownet.run.trainer, "GFNTrainer", StoppedTrainer)
    monkeypatch.setattr(StoppedTrainer, "outcome", outcome)
    assert train.main([]) == status


def test_unexpected_error_keeps_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    import gflownet.run.trainer

    monkeypatch.setattr(gflownet.run.trainer, "GFNTrainer", lambda config: int("no number"))
    with pytest.raises(ValueError, match="no number"):
        train.main([])
    monkeypatch.setattr(gflownet.run.trainer, "GFNTrainer", StoppedTrainer)
    monkeypatch.setattr(StoppedTrainer, "outcome", ValueError("in a run"))
    with pytest.raises(ValueError, match="in a run"):
        train.main([])


class BrokenPipeTrainer:
    def __init__(self, config: Any) -> None:
        self.config = config

    def run(self) -> None:
        raise BrokenPipeError(32, "Broken pipe")


def test_broken_pipe_exits_141_only_if_stdout_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    import gflownet.run.trainer

    monkeypatch.setattr(gflownet.run.trainer, "GFNTrainer", BrokenPipeTrainer)
    with pytest.raises(BrokenPipeError):
        train.main([])
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        with pytest.raises(BrokenPipeError):
            train.main([])
        os.close(reading)
        assert train.main([]) == 141
        stdout.write("discarded")


@pytest.mark.parametrize("argument", ["foo=bar", "task=nope"])
def test_help_with_wrong_argument_is_printed(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main(["--help", argument]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("usage: ")
    assert printed.err.startswith("error: ")
