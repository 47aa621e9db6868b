"""Training steps without finite loss: skipped, written, and the end of the run after some in a row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from gflownet.records.status import RunState, read_status
from gflownet.run.folder import RunFolder
from tests.small_run import break_losses, run
from tests.tiny_run import metric_rows


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("options", [(), pytest.param(("num_workers=1",), marks=pytest.mark.slow)])
def test_policy_that_cannot_be_sampled_ends_the_run(options, tmp_path, capsys):
    assert run(tmp_path, "opt.learning_rate=1e30", "checkpoint_every=1", *options) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(
        r"error: after step \d: graph 0: expected numbers as logits, got nan or inf; resume=true continues from step "
        rf"0: lower opt.learning_rate \(now 1e\+30\) or opt.clip_grad_param \(now 10\); batches: {tmp_path}/skipped\n",
        error,
    )
    status = read_status(tmp_path)
    assert status is not None
    assert status.state is RunState.FAILED
    (batch,) = (tmp_path / "skipped").iterdir()
    content = torch.load(batch, weights_only=True)
    assert len(content["optional_log_reward"]) == len(content["terminal"]["num_nodes"]) > 0
    assert run(tmp_path, "opt.learning_rate=1e-3", "num_training_steps=2", "resume=true", *options) == 0
    assert [row["step"] for row in metric_rows(tmp_path)] == [1, 2]
    assert not [row for row in metric_rows(tmp_path) if "skipped" in row]


def test_steps_are_skipped_until_too_many_in_a_row(finished_runs, tmp_path, monkeypatch, capsys):
    options = ("checkpoint_every=1",)
    monkeypatch.setattr("gflownet.run.failures._MAX_SKIPPED", 2)
    break_losses(monkeypatch, {3, 5, 6})
    monkeypatch.setattr("gflownet.run.failures.MAX_BATCHES", 2)
    assert run(tmp_path / "run", *options) == 2
    out, error = capsys.readouterr()
    assert "step 3: expected a finite loss, got nan; the step is skipped" in out
    assert error.startswith("error: step 6: expected a finite loss, got nan; resume=true continues from step 2: lower ")
    rows = metric_rows(tmp_path / "run")
    assert [row["step"] for row in rows if "skipped" in row] == [3, 5]
    assert names(tmp_path / "run" / "skipped") == [f"step_{step:08d}.pt" for step in (3, 5)]
    # Step 3 and 5 gave no checkpoints, and the state after step 4 no finite loss.
    assert names(tmp_path / "run" / "checkpoints") == ["step_00000002.pt", "step_00000004.pt.diverged"]
    monkeypatch.undo()
    assert run(tmp_path / "run", *options, "resume=true") == 0
    assert metric_rows(tmp_path / "run") == metric_rows(finished_runs("toy"))
    with RunFolder(tmp_path / "run", resume=False, overwrite=True):
        assert not (tmp_path / "run" / "skipped").exists()
