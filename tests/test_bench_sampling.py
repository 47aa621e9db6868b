"""scripts/bench_sampling.py at its smallest sizes."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

from scripts import bench_sampling
from scripts.bench_sampling import profile_rows, side_by_side_rows
from scripts.peers.process import PeerError
from scripts.sampling_sides import Ours, fixed_length


@pytest.fixture(autouse=True)
def frozen() -> Iterator[None]:
    """Exclude the objects of the test session from the collections before every turn."""
    gc.freeze()
    yield
    gc.unfreeze()


def test_profile_shares_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    rows = profile_rows((2,), max_nodes=3, num_rounds=1)
    assert 0 < rows[0].value < rows[1].value < 100
    lines = capsys.readouterr().out.strip().splitlines()[1:]
    assert len(lines) == 11, "every watched function was called"
    assert sum(float(line.split()[-2]) for line in lines) == pytest.approx(100, abs=0.5)


def test_our_side_trains_only_in_training_turns() -> None:
    ours = Ours(fixed_length(3, 4), batch=2)

    def weights() -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in ours.policy.parameters()]

    before = weights()
    assert ours.sample().num_trajectories == 2
    assert all(map(torch.equal, before, weights()))
    assert ours.train().num_states == 10  # 4 actions and Stop
    assert not all(map(torch.equal, before, weights()))


def test_side_by_side_without_torchgfn(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def not_installed(*_: object, **__: object) -> None:
        raise PeerError("torchgfn is not installed")

    monkeypatch.setattr(bench_sampling, "torchgfn_sides", not_installed)
    rows = side_by_side_rows(max_nodes=3, num_actions=4, batch=2, num_rounds=1)
    assert [row.goal for row in rows if "networkx twin: sample" in row.name] == ["", "", ">= 30", ""]
    assert not [row for row in rows if "torchgfn" in row.name]
    assert capsys.readouterr().out == "skipped: rows of torchgfn: torchgfn is not installed\n"
