"""load: one line from a run's result to a module."""

import json

import pytest
import torch

from gflownet.translation import load
from tests.translation.graphs import chain


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "top_architectures.json"
    entries = [
        {"rank": 0, "graph": chain(3, 3, 2), "projection": "always", "validation_score": 0.9},
        {"rank": 1, "graph": chain(3, 4, 2), "projection": "auto", "validation_score": 0.8},
    ]
    path.write_text(json.dumps(entries))
    return path


def test_an_architecture_is_loaded_with_the_projection_it_was_scored_with(path):
    best = load(path)
    assert best(torch.zeros(5, 3)).shape == (5, 2)
    assert "proj_0_1.weight" in best.state_dict()
    assert load(path, rank=1).plan.sizes[1] == 4
    assert load(path, config={"projection": "auto", "dtype": torch.float64}).bias_1.dtype == torch.float64
    assert "proj_0_1.weight" not in load(path, config={"projection": "auto"}).state_dict()


def test_an_unknown_rank_and_another_file_are_refused(path, tmp_path):
    with pytest.raises(ValueError, match=r"expected a rank out of \[0, 1\], got 7"):
        load(path, rank=7)
    other = tmp_path / "other.json"
    other.write_text('{"rank": 0}')
    with pytest.raises(ValueError, match="expected a JSON list"):
        load(other)
