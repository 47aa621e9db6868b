"""The parts of scripts/language_search.py: networks of equal sizes, the best of several trainings, the figure."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch
from torch import nn

from gflownet.evaluation.byte_text import ByteText
from gflownet.evaluation.language_training import LanguageTraining
from gflownet.rhn.stack_config import StackConfig
from scripts.bench import FALLS_SHORT, HOLDS
from scripts.language.figure import PANEL, draw, panels
from scripts.language.models import PlainRecurrent, Transformer, plain, rhn, size_of, transformer
from scripts.language.search import outcome, search
from scripts.language.trials import Bench, Point
from scripts.language_search import main

CYCLE = torch.tensor([65, 66, 65, 67], dtype=torch.uint8).repeat(100)


def bench(num_steps: int) -> Bench:
    training = LanguageTraining(num_steps=num_steps, rows=4, sequence_length=8)
    return Bench(ByteText(CYCLE, CYCLE, CYCLE[1:]), training, num_bytes=64, num_bytes_between=16)


def test_no_network_has_fewer_parameters_than_asked_for_and_none_many_more() -> None:
    for budget in (20_000, 97_000):
        makes = [plain(cell, layers, budget) for cell in (nn.LSTM, nn.GRU) for layers in (1, 2)]
        for make in (*makes, transformer(64, budget)):
            assert budget <= size_of(make) < 1.15 * budget  # a transformer's width is a multiple of its heads
            assert size_of(make) == sum(parameter.numel() for parameter in make().parameters())
        assert size_of(rhn(2, budget)) == pytest.approx(budget, rel=0.01)


def test_what_is_compared_sees_the_past_alone() -> None:
    tokens = torch.randint(256, (2, 8), generator=torch.Generator().manual_seed(0))
    other = tokens.clone()
    other[:, 5:] += 1
    for model in (PlainRecurrent(nn.GRU, 2, 8), PlainRecurrent(nn.LSTM, 1, 8), Transformer(8, 8)):
        one, two = model(tokens)[0], model(other % 256)[0]
        torch.testing.assert_close(one[:, :5], two[:, :5])
        assert not torch.allclose(one[:, 5:], two[:, 5:])
        assert not torch.allclose(model(tokens.flip(1))[0][:, -1], one[:, 0])  # the same byte after others


def test_the_best_of_models_and_learning_rates_is_found() -> None:
    makes = [plain(nn.GRU, 1, 3_000), plain(nn.GRU, 1, 6_000)]
    make, trial = bench(20).best(makes, learning_rates=(0.02, 1e-6), seed=0)
    assert trial.learning_rate == 0.02
    each = [bench(20).train(made, learning_rate=0.02, seed=0).validation for made in makes]
    assert trial.validation == min(each)
    assert size_of(make) == size_of(makes[each.index(min(each))])


def test_a_training_is_followed_along_and_a_diverged_one_knows_nothing() -> None:
    make = plain(nn.GRU, 1, 3_000)
    trial = bench(7).train(make, learning_rate=0.02, seed=0, every=3)
    assert [point.step for point in trial.points] == [3, 6, 7]
    assert trial.last.bits == trial.validation < 8
    assert [p.seconds for p in trial.points] == sorted(p.seconds for p in trial.points)

    def broken() -> nn.Module:
        model = PlainRecurrent(nn.GRU, 1, 4)
        nn.init.constant_(model.embedding, float("nan"))
        return model

    diverged = bench(7).train(broken, learning_rate=0.02, seed=0)
    assert (diverged.validation, diverged.test, diverged.last.step) == (8, 8, 0)


def test_curves_are_drawn_where_their_numbers_are() -> None:
    lines = {"RHN": [Point(10, 1.0, 4.0), Point(20, 2.0, 3.0)], "a < b": [Point(20, 0.5, 3.5)]}
    both = panels(lines, lines)
    root = ElementTree.fromstring(draw(both, title="bits & bytes"))
    polylines = [e.get("points") or "" for e in root.iter() if e.tag.endswith("polyline")]
    assert len(polylines) == 4
    points = [tuple(map(float, point.split(","))) for point in polylines[0].split()]
    assert [x for x, _ in points] == [PANEL[0] / 2, PANEL[0]]
    low, high = both[0].upwards
    assert points[1][1] == pytest.approx(PANEL[1] * (1 - (3.0 - low) / (high - low)), abs=0.1)
    texts = [e.text for e in root.iter() if e.tag.endswith("text")]
    assert {"RHN: 3.000", "a < b: 3.500", "bits & bytes", "steps"} <= set(texts)


@pytest.mark.filterwarnings("ignore")
def test_a_search_returns_what_it_found_best_first(tmp_path: Path) -> None:
    overrides = ["num_training_steps=2", "task_options.num_steps=2", "task_options.num_parameters=20000"]
    overrides += ["task_options.megabytes=0.2", "task_options.validation_bytes=64", "replay.use=false", "num_threads=1"]
    search(tmp_path / "run", seconds=600, overrides=overrides)
    result = outcome(tmp_path / "run", num_best=3)
    found = result.found
    assert 3 <= result.num_stacks <= 8
    assert result.seconds > 0
    assert [each.bits for each in found] == sorted(each.bits for each in found)
    assert len(found) == 3
    assert all(isinstance(each.config, StackConfig) and "cell[1]=" in str(each) for each in found)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_options_beside_quick_write_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/test_scripts.py runs `--quick` alone."""
    for option in ("--figure", "--save"):
        monkeypatch.setattr(sys, "argv", ["language_search.py", "--quick", option, str(tmp_path / option[2:])])
        assert main() in (HOLDS, FALLS_SHORT)
    ElementTree.parse(tmp_path / "figure")
    assert {"model.json", "model.safetensors"} <= {path.name for path in (tmp_path / "save").iterdir()}
