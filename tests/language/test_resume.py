"""Resumed trainings with other options, and longer ones; every stage: tests/run/test_stages.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gflownet.evaluation.candidates.language import LanguageSteps, Step, bits_per_byte_of, streamed_loss
from gflownet.language.__main__ import main
from gflownet.language.text import encode, read_text
from gflownet.rhn.checkpoint import load_language_model
from gflownet.rhn.text_codec import BYTES
from tests.finished_runs import CopiedRun
from tests.language.tiny import differences, last_state, metric_rows, train


def during_step(number: int, react: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Call a function before a step."""
    take = LanguageSteps.take

    def taken(self: LanguageSteps, done: float) -> Step:
        if self.step + 1 == number:
            react()
        return take(self, done)

    monkeypatch.setattr(LanguageSteps, "take", taken)


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
