"""Models, tasks and saved trainings of scripts/bench_language.py and scripts/bench_language_regimes.py."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
import torch

from gflownet.errors import UserError
from gflownet.evaluation.byte_text import ByteText
from gflownet.evaluation.language_training import LanguageTraining
from gflownet.rhn.checkpoint import describe
from gflownet.rhn.config import RHNConfig, StackConfig, StackLayer
from gflownet.rhn.network import RecurrentStack
from scripts.bench_language import Plan, sides_of
from scripts.language_models import Form, from_search, narrow_state, rhn, rotated, transformer
from scripts.language_tasks import IGNORED, accuracy, permutation_task, recall_task, train
from scripts.language_trials import Results, Trial, Trials

FORMS = [
    rhn(5_000, RHNConfig(depth=2, rank=2, bottleneck=4)),
    narrow_state(5_000, state=6, depth=2),
    transformer(5_000, depth=2),
]


def test_sides_have_equal_parameters() -> None:
    for forms in sides_of(Plan.num_parameters, None).values():
        for form in forms:
            made = sum(parameter.numel() for parameter in form.make().parameters())
            assert made == form.num_parameters == pytest.approx(Plan.num_parameters, rel=0.01), form.name


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_models_do_not_read_later_tokens(form: Form) -> None:
    torch.manual_seed(0)
    model = form.make()
    tokens = torch.randint(256, (2, 12))
    changed = tokens.clone()
    changed[:, 7] = (changed[:, 7] + 1) % 256
    difference = (model(tokens)[0] - model(changed)[0]).detach().abs().amax((0, 2))
    assert difference.shape == (12,)
    assert float(difference[:7].max()) < 1e-5 < float(difference[7])


def test_rotated_products_depend_on_distances() -> None:
    """Queries and keys of equal content: their product is a function of the distance of their positions."""
    angles = torch.arange(6.0)[:, None] * torch.tensor([1.0, 0.1])
    query, key = (torch.randn(4, generator=torch.Generator().manual_seed(seed)).expand(6, 4) for seed in (0, 1))
    rotation = angles.cos(), angles.sin()
    products = rotated(query, rotation) @ rotated(key, rotation).T
    for distance in range(-5, 6):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    assert float(products[0].std()) > 0.01


def test_transpositions_compose_to_the_product() -> None:
    task = permutation_task(3, 8)
    tokens, targets = task.draw(4, 8, torch.Generator().manual_seed(0))
    swaps, classes = list(combinations(range(3), 2)), {}
    for row, wanted in zip(tokens.tolist(), targets.tolist(), strict=True):
        items = [0, 1, 2]
        for token, target in zip(row, wanted, strict=True):
            first, second = swaps[token]
            items[first], items[second] = items[second], items[first]
            assert classes.setdefault(target, tuple(items)) == tuple(items)
    assert len(classes) == len(set(classes.values())) > 3


def test_recall_targets_are_the_values_of_the_keys() -> None:
    tokens, targets = recall_task(6, 4).draw(5, 0, torch.Generator().manual_seed(0))
    assert tokens.shape == targets.shape == (5, 12)
    assert bool((targets[:, :8] == IGNORED).all())
    for row, wanted in zip(tokens.tolist(), targets.tolist(), strict=True):
        values = dict(zip(row[0:8:2], row[1:8:2], strict=True))
        assert len(values) == 4
        assert [values[key] for key in row[8:]] == wanted[8:]


def test_training_on_a_task_improves_accuracy() -> None:
    task = permutation_task(2, 4)
    torch.manual_seed(0)
    model = rhn(1_000, RHNConfig(vocabulary_size=2, depth=1, rank=2, bottleneck=4)).make()
    before = accuracy(model, task, 4)
    outcome = train(model, task, options=LanguageTraining(60, None, 16, 4, 0.03), seed=0)
    assert outcome.steps == 60
    assert before < 0.8 < 0.95 < outcome.accuracy[4]


@pytest.fixture
def trials(tmp_path: Path) -> Trials:
    part = torch.arange(400, dtype=torch.uint8) % 7
    training = LanguageTraining(num_steps=4, rows=2, sequence_length=8)
    return Trials("steps", ByteText(part, part, part), training, 32, Results(tmp_path / "trials.jsonl"))


def test_saved_trial_is_not_trained_again(trials: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    first = trials.train(FORMS[1], 0.01, 1, is_reported=True)
    assert first.steps == 4
    assert first.test is not None
    monkeypatch.setattr(Trials, "_trained", None)
    again = trials.train(FORMS[1], 0.01, 1, is_reported=True)
    assert again == first
    with pytest.raises(TypeError):  # another key
        replace(trials, budget="seconds").train(FORMS[1], 0.01, 1)


@pytest.mark.parametrize(
    ("bits", "tried", "best"),
    [
        ({1: 3, 2: 2, 4: 3}, {1, 2, 4}, 2),
        ({1: 3, 2: 2, 4: 1, 8: 2}, {1, 2, 4, 8}, 4),
        ({0.25: 0, 0.5: 1, 1: 2, 2: 3, 4: 4}, {0.25, 0.5, 1, 2, 4}, 0.25),  # two extensions at most
    ],
)
def test_best_rate_extends_the_grid(
    trials: Trials, monkeypatch: pytest.MonkeyPatch, bits: dict[float, float], tried: set[float], best: float
) -> None:
    seen = set()

    def score(_self: Trials, form: Form, rate: float, seed: int) -> Trial:
        seen.add(rate)
        return Trial(form.name, rate, seed, bits[rate], None, 1, 1.0)

    monkeypatch.setattr(Trials, "train", score)
    assert trials.best_rate(FORMS[0], [1, 2, 4], 0) == best
    assert seen == tried


def test_searched_stack_is_read_from_top_architectures(tmp_path: Path) -> None:
    model = RecurrentStack(StackConfig((StackLayer("gru"), StackLayer("lstm")), width=8))
    path = tmp_path / "top_architectures.json"
    path.write_text(json.dumps([{"words": "gru 8 > lstm 8", "language_model": describe(model)}]))
    form = from_search(path)
    assert (form.name, form.state_floats) == ("gru 8 > lstm 8", 24)
    assert [value.shape for value in form.make().parameters()] == [value.shape for value in model.parameters()]
    path.write_text(json.dumps([{"words": "graph"}]))
    with pytest.raises(UserError, match="rank 0 is not a language model"):
        from_search(path)
