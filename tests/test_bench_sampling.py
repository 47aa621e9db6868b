"""The sampling benchmark at its smallest: every part runs, and shares of a pass add up."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

from gflownet.policy.graph_transformer import GraphTransformerPolicy
from scripts.peers.environment import PeerError
from scripts.sampling import growth, peer_settings, shares, side_by_side
from scripts.sampling.peer_settings import Setting, fixed_length
from scripts.sampling.sides import Ours


@pytest.fixture(autouse=True)
def frozen() -> Iterator[None]:
    """Keep the many objects of a test session from the collections before every turn."""
    gc.freeze()
    yield
    gc.unfreeze()


def test_shares_of_a_sampling_pass(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(shares, "BATCHES", (2,))
    monkeypatch.setattr(shares, "fixed_length", lambda max_nodes, num_actions: fixed_length(3, 4))
    rows = shares.measure(num_rounds=1)
    assert len(rows) == 2
    assert 0 < rows[0].value < rows[1].value < 100
    lines = capsys.readouterr().out.strip().splitlines()[1:]
    assert len(lines) == 11, "every watched function took part"
    assert sum(float(line.split()[-2]) for line in lines) == pytest.approx(100, abs=0.5)


def test_speeds_at_a_setting() -> None:
    env = fixed_length(3, 4)
    settings = (Setting(env, batch=2), Setting(env, batch=2, policy=GraphTransformerPolicy, is_trained=False))
    rows = peer_settings.measure(settings, num_rounds=1)
    assert [row.unit for row in rows] == ["trajectories/CPU-s", "steps/CPU-s", "trajectories/CPU-s"]
    assert all(row.value > 0 and not row.goal for row in rows)


def test_training_side_trains_and_sampling_side_does_not() -> None:
    ours = Ours(fixed_length(3, 4), batch=2)

    def weights() -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in ours.policy.parameters()]

    before = weights()
    assert ours.sample().num_trajectories == 2
    assert all(map(torch.equal, before, weights()))
    assert ours.train().num_states == 10  # 4 actions and Stop
    assert not all(map(torch.equal, before, weights()))


def test_ratios_are_against_what_ran_beside(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise PeerError("torchgfn is not installed")

    monkeypatch.setattr(side_by_side, "find_environment", refuse)
    monkeypatch.setattr(side_by_side, "BATCH", 2)
    monkeypatch.setattr(side_by_side, "MAX_NODES", 3)
    monkeypatch.setattr(side_by_side, "NUM_ACTIONS", 4)
    rows = side_by_side.measure(num_rounds=1)
    assert [row.goal for row in rows if "networkx twin: sample" in row.name] == ["", "", ">= 30", ""]
    assert not [row for row in rows if "torchgfn" in row.name]
    assert capsys.readouterr().out == "skipped: rows of torchgfn: torchgfn is not installed\n"


def test_growth_skips_what_would_take_too_long(capsys: pytest.CaptureFixture[str]) -> None:
    plan = growth.Plan((1,), (2, 4), num_rounds=1, most_seconds=0, most_seconds_again=0)
    rows = growth.measure(plan)
    assert [row.name.rpartition(" ")[2] for row in rows] == ["2", "2"]
    assert capsys.readouterr().out.count("skipped: ") == 2
