"""Resumed trainings: during a sample and a test, with other options, longer; every stage: tests/run/test_stages.py."""

from __future__ import annotations

import itertools
import math
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gflownet.evaluation.language_training import LanguageSteps, Step, bits_per_byte_of, streamed_loss
from gflownet.language.__main__ import main
from gflownet.language.text import encode, read_text
from gflownet.rhn.checkpoint import load_language_model
from gflownet.rhn.config import StackConfig, StackLayer
from gflownet.rhn.network import RecurrentNetwork, RecurrentStack
from gflownet.rhn.serving import Sampled, Stream
from gflownet.rhn.text_codec import BYTES
from tests.finished_runs import CopiedRun, FinishedRuns
from tests.language.tiny import assert_equal_runs, differences, last_state, metric_rows, train

PATIENCE = 120.0  # seconds


@pytest.fixture(scope="module")
def uninterrupted(finished_runs: FinishedRuns) -> Path:
    return finished_runs("language")


def during_step(number: int, react: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Call a function before a step."""
    take = LanguageSteps.take

    def taken(self: LanguageSteps, done: float) -> Step:
        if self.step + 1 == number:
            react()
        return take(self, done)

    monkeypatch.setattr(LanguageSteps, "take", taken)


def test_signal_ends_a_sample_and_resume_is_exact(
    uninterrupted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers: list[int] = []

    class Counted(Stream):
        def _run(self) -> Iterator[Sampled]:
            for number, sampled in enumerate(super()._run()):
                numbers.append(number)
                if len(numbers) == 9:  # the third token of the second sample
                    os.kill(os.getpid(), signal.SIGTERM)
                yield sampled

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gflownet.language.run.Stream", Counted)
        assert train(tmp_path) == 128 + signal.SIGTERM
    run = tmp_path / "run"
    assert f"stopped after step 10; to continue: gflownet language log_dir={run} resume=true" in capsys.readouterr().out
    assert numbers == [0, 1, 2, 3, 4, 5, 0, 1, 2]
    assert len(metric_rows(tmp_path / "run")) == 10
    assert len((tmp_path / "run" / "samples.jsonl").read_bytes().splitlines()) == 1
    assert train(tmp_path, "resume=true") == 0
    assert "continuing after step 10" in capsys.readouterr().out
    assert_equal_runs(tmp_path / "run", uninterrupted)


def test_signal_ends_the_test_and_resume_repeats_it(
    uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(folder: Path) -> RecurrentNetwork:
        os.kill(os.getpid(), signal.SIGINT)
        return load_language_model(folder)

    monkeypatch.setattr("gflownet.language.run.load_language_model", load)
    assert train(tmp_path) == 128 + signal.SIGINT
    assert "stopped after step 20; to continue:" in capsys.readouterr().out
    monkeypatch.undo()
    assert train(tmp_path, "resume=true") == 0
    assert re.search(r"bits per byte: test \d", capsys.readouterr().out)
    assert_equal_runs(tmp_path / "run", uninterrupted)


def test_stopped_loss_ends_at_the_next_pass() -> None:
    asked: list[bool] = []
    model = RecurrentStack(StackConfig((StackLayer("gru"),), width=4))

    def is_stopped() -> bool:
        asked.append(True)
        return len(asked) == 2

    loss = streamed_loss(model, torch.zeros(1001, dtype=torch.uint8), num_tokens=1000, is_stopped=is_stopped)
    assert math.isnan(loss)
    assert len(asked) == 2


def fail() -> None:
    raise RuntimeError("power cut")


def test_resume_with_other_options_keeps_the_weights_of_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A killed process kept weights of steps after its last checkpoint; the resumed run does not improve on them."""
    options = ("steps=60", "checkpoint_every=32", "learning_rate=0.02", "schedule=constant", "sample.every=0")
    with pytest.MonkeyPatch.context() as patch:
        during_step(56, fail, patch)
        with pytest.raises(RuntimeError, match="power cut"):
            train(tmp_path, *options, model="gru.yaml")
    later = (tmp_path / "run" / "model" / "model.safetensors").read_bytes()
    assert train(tmp_path, *options, "resume=true", "steps=36", "learning_rate=5", model="gru.yaml") == 0
    assert "(weights of step 30)" in capsys.readouterr().out
    assert (tmp_path / "run" / "model" / "model.safetensors").read_bytes() != later
    state, kept = last_state(tmp_path / "run"), load_language_model(tmp_path / "run" / "model").state_dict()
    assert state["best_step"] == 30
    assert differences(dict(kept), dict(state["kept"])) == []
    text = read_text([str(tmp_path / "text.txt")], megabytes=1, run_folder=tmp_path / "run")
    validation = encode(text.validation, BYTES)
    loss = streamed_loss(load_language_model(tmp_path / "run" / "model"), validation.tokens, num_tokens=200)
    bits = bits_per_byte_of(loss, num_tokens=len(validation.tokens), num_bytes=validation.num_bytes)
    assert bits == pytest.approx(state["best"], abs=1e-4)


def test_difference_of_one_bit_is_seen(uninterrupted: Path) -> None:
    """Negative control of the comparison."""
    one, other = last_state(uninterrupted), last_state(uninterrupted)
    state: dict[int, Any] = other["steps"]["optimisers"][0]["state"]
    state[0]["exp_avg"].view(-1)[0] += 1e-7
    assert differences(one, other) == [".steps.optimisers[0].state.0.exp_avg"]


def test_resume_trains_longer_without_naming_the_files(copied_run: CopiedRun) -> None:
    run = copied_run("language")
    assert last_state(run)["steps"]["step"] == 20
    assert main([f"log_dir={run}", "resume=true", "steps=26"]) == 0
    assert len(metric_rows(run)) == 26
    assert last_state(run)["steps"]["step"] == 26


def test_seconds_end_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock on which every step takes at least 0.1 seconds."""
    ticks = itertools.count()
    monkeypatch.setattr("gflownet.language.run.time", SimpleNamespace(monotonic=lambda: next(ticks) / 10))
    assert train(tmp_path, "seconds=2", "steps=1", model="gru.yaml") == 0
    rows = metric_rows(tmp_path / "run")
    assert 1 < len(rows) <= 20
    assert "validation_bits_per_byte" in rows[-1]
