"""Resumed trainings: during a sample and a test, with other options, longer; every stage: tests/run/test_stages.py."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gflownet.evaluation.candidates.language import LanguageSteps, Step, bits_per_byte_of, streamed_loss
from gflownet.language.__main__ import main
from gflownet.language.text import encode, read_text
from gflownet.rhn.checkpoint import load_language_model
from gflownet.rhn.network import RecurrentNetwork
from gflownet.rhn.serving import Sampled, Stream
from gflownet.rhn.text_codec import BYTES
from tests.finished_runs import CopiedRun, FinishedRuns
from tests.language.tiny import assert_equal_runs, differences, last_state, metric_rows, train


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


def test_resume_trains_longer_without_naming_the_files(copied_run: CopiedRun) -> None:
    run = copied_run("language")
    assert last_state(run)["steps"]["step"] == 20
    assert main([f"log_dir={run}", "resume=true", "steps=26"]) == 0
    assert len(metric_rows(run)) == 26
    assert last_state(run)["steps"]["step"] == 26
