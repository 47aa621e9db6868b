"""The script that counts evaluations until a hidden program is found: both sides score each program once."""

import importlib
from types import ModuleType

import pytest

from gflownet.evaluation.task import Score


@pytest.fixture
def script(monkeypatch, checkout) -> ModuleType:
    monkeypatch.syspath_prepend(str(checkout / "scripts"))
    return importlib.import_module("scripts.recover_contractions")


def test_random_programs_are_counted_once_until_one_is_exact(script, tmp_path):
    config = script.run_config(script.Hidden("t[i,j] = A[i,j]", "tanh", 4), tmp_path, seed=0)
    found = script.random_search(config, num_scored=2_000)
    assert found.found is not None
    assert 0 < found.num_scored < 2_000
    again = script.random_search(config, num_scored=2_000)
    assert (again.num_scored, again.found) == (found.num_scored, found.found)
    assert script.random_search(config, num_scored=2).num_scored == 2


def test_the_search_stops_at_the_program_or_gives_up(script, tmp_path):
    config = script.run_config(script.Hidden("t[i,j] = A[i,j]", "tanh", 4), tmp_path, seed=0)
    found = script.search(config, tmp_path, num_steps=40)
    assert found.found is not None
    config = script.run_config(script.HIDDEN["batched bilinear form"], tmp_path / "other", seed=0)
    (tmp_path / "other").mkdir()
    gave_up = script.search(config, tmp_path / "other", num_steps=2)
    assert gave_up.found is None
    assert 0 < gave_up.num_scored <= 2 * config.algo.num_from_policy


def test_counting_stops_at_the_first_exact_program(script):
    class Task:
        def evaluate(self, graph, *, seed):
            return Score(1.0, metrics={"exact": float(graph == "right")})

    counter = script.Counter(Task())
    for graph in ("wrong", "right", "right"):
        counter.evaluate(graph, seed=0)
    assert (counter.found, counter.num_until, counter.num_scored) == ("right", 2, 3)
