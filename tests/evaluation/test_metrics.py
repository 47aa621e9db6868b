"""Losses and metrics: values against torch and scikit-learn, and their scores in [0, 1]."""

import math
import re

import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    f1_score,
    jaccard_score,
    log_loss,
    mean_absolute_error,
    mean_pinball_loss,
    mean_squared_error,
    r2_score,
    roc_auc_score,
)

from gflownet.errors import UserError
from gflownet.evaluation.candidates.metrics import METRICS, balanced_weights, build_loss, build_metric
from gflownet.evaluation.candidates.trainer import build_measure
from gflownet.evaluation.config import TrainingConfig
from gflownet.evaluation.data.examples import IGNORED, Split

HERE = __name__


def numbers() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(90, 1, generator=generator, dtype=torch.float64)
    return outputs, outputs + torch.randn(90, 1, generator=generator, dtype=torch.float64)


def classes() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(90, 4, generator=generator, dtype=torch.float64), torch.randint(4, (90,), generator=generator)


def half(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return torch.tensor(0.5)


def distance(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - targets).abs()


distance.smaller_is_better = True  # type: ignore[attr-defined]


def measured(name: str, outputs: torch.Tensor, targets: torch.Tensor) -> tuple[float, float]:
    """Return value and score of a metric, relative to the training targets, which are the same."""
    split = Split(torch.zeros(len(targets), 1), targets)
    kind = {"is_classification": not targets.is_floating_point(), "is_text": targets.ndim > 1}
    metric = build_metric(name, **kind)
    measure = build_measure(metric, split, train=split, num_outputs=outputs.shape[-1])
    value = measure.value_of(zip(outputs.split(40), targets.split(40), strict=True))
    return value, measure.score(value)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("accuracy", lambda p, y: accuracy_score(y, p.argmax(1))),
        ("confidence", lambda p, y: p[torch.arange(90), y].mean()),
        ("accuracy_and_confidence", lambda p, y: ((p.argmax(1) == y).float() + p[torch.arange(90), y]).mean() / 2),
        ("likelihood", lambda p, y: math.exp(-log_loss(y, p))),
        ("balanced_accuracy", lambda p, y: balanced_accuracy_score(y, p.argmax(1))),
        ("f1", lambda p, y: f1_score(y, p.argmax(1), average="macro")),
        ("auc", lambda p, y: roc_auc_score(y, p, multi_class="ovr")),
        ("mean_iou", lambda p, y: jaccard_score(y, p.argmax(1), average="macro")),
        ("log_loss", lambda p, y: log_loss(y, p)),
        ("cross_entropy", lambda p, y: log_loss(y, p)),
        ("bits", lambda p, y: log_loss(y, p) / math.log(2)),
        ("perplexity", lambda p, y: math.exp(log_loss(y, p))),
    ],
)
def test_metric_of_classes(name, expected):
    logits, targets = classes()
    assert measured(name, logits, targets)[0] == pytest.approx(float(expected(logits.softmax(1), targets)), rel=1e-5)


@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("name", ["accuracy", "mean_iou", "f1", "bits", "auc", "balanced_accuracy"])
def test_metric_at_positions_leaves_out_ignored_ones(name, axis):
    """Logits of images [N, C, H, W] or sequences [N, T, C]; the value is that of the labelled positions as rows."""
    logits, targets = classes()
    rows = measured(name, logits, targets)[0]
    ignored = torch.arange(100) % 10 == 9
    all_logits, all_targets = torch.full((100, 4), 1e3).double(), torch.full((100,), IGNORED)
    all_logits[~ignored], all_targets[~ignored] = logits, targets
    sizes = (5, 4, 5) if axis == 1 else (5, 20)
    outputs, expected = all_logits.reshape(*sizes, 4).movedim(-1, axis), all_targets.reshape(sizes)
    split = Split(torch.zeros(5, 1), expected)
    metric = build_metric(name, is_classification=True, axis=outputs.ndim - 1 if axis < 0 else axis)
    measure = build_measure(metric, split, train=split, num_outputs=4)
    assert measure.value_of(zip(outputs.split(2), expected.split(2), strict=True)) == pytest.approx(rows)
    wrong = expected.roll(1, -1)  # targets one position further
    assert measure.value_of([(outputs, wrong)]) != pytest.approx(rows, rel=1e-3)


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.2}, {"class_weights": "balanced"}])
def test_cross_entropy_at_positions_equals_that_of_torch(options):
    generator = torch.Generator().manual_seed(0)
    outputs, targets = torch.randn(6, 3, 4, 5, generator=generator), torch.randint(3, (6, 4, 5), generator=generator)
    targets[:, 1] = IGNORED
    weights = balanced_weights(targets, 3) if "class_weights" in options else None
    if weights is not None:
        counts = torch.bincount(targets[targets >= 0])
        torch.testing.assert_close(weights, counts.sum() / (3 * counts))
    loss = build_loss(TrainingConfig(**options), is_classification=True, class_weights=weights, axis=1)
    smoothing = options.get("label_smoothing", 0.0)
    expected = F.cross_entropy(outputs, targets, weight=weights, label_smoothing=smoothing)
    torch.testing.assert_close(loss(outputs, targets), expected)


def test_metric_of_numbers():
    outputs, targets = numbers()
    mse = mean_squared_error(targets, outputs)
    expected = {"r2": r2_score(targets, outputs), "mse": mse, "rmse": math.sqrt(mse)}
    expected["mae"] = mean_absolute_error(targets, outputs)
    assert {name: measured(name, outputs, targets)[0] for name in expected} == pytest.approx(expected)


@pytest.mark.parametrize("metric", ["balanced_accuracy", "f1", "auc"])
def test_metric_of_two_unbalanced_classes(metric):
    generator = torch.Generator().manual_seed(0)
    targets = (torch.rand(90, generator=generator) < 0.2).long()
    logits = torch.randn(90, 2, generator=generator).round(decimals=1)  # with ties
    expected = {
        "balanced_accuracy": balanced_accuracy_score(targets, logits.argmax(1)),
        "f1": f1_score(targets, logits.argmax(1), average="macro"),
        "auc": roc_auc_score(targets, logits.double().softmax(1)[:, 1]),
    }
    assert measured(metric, logits, targets)[0] == pytest.approx(expected[metric])
    constant = torch.tensor([[1.0, 0.0]]).expand(90, 2)
    assert measured(metric, constant, targets)[0] <= 0.5 < measured("accuracy", constant, targets)[0]


def test_class_that_does_not_occur_has_no_part_in_a_metric():
    targets = torch.tensor([0, 0, 1])
    logits = torch.eye(3)[[0, 0, 1]] * 9
    assert [measured(name, logits, targets)[0] for name in ("balanced_accuracy", "f1", "auc")] == [1, 1, 1]


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9])
def test_quantile_loss_and_metric(quantile):
    outputs, targets = numbers()
    split = Split(torch.zeros(len(targets), 1), targets)
    metric = build_metric("quantile", is_classification=False, quantile=quantile)
    measure = build_measure(metric, split, train=split, num_outputs=1)
    expected = mean_pinball_loss(targets, outputs, alpha=quantile)
    assert measure.value_of([(outputs, targets)]) == pytest.approx(expected)
    loss = build_loss(TrainingConfig(loss="quantile", quantile=quantile), is_classification=False)
    assert float(loss(outputs, targets).mean()) == pytest.approx(expected)
    constant = targets.quantile(quantile).expand_as(targets)
    assert measure.score(measure.value_of([(constant, targets)])) == pytest.approx(0.5)
    assert measure.score(measure.value_of([(constant + 0.5, targets)])) < 0.5


def test_balanced_class_weights_equal_repeated_examples():
    logits, targets = classes()
    targets[:60] = 0
    weights = balanced_weights(targets, 4)
    loss = build_loss(TrainingConfig(class_weights="balanced"), is_classification=True, class_weights=weights)
    by_class = [F.cross_entropy(logits[targets == c], targets[targets == c]) for c in range(4)]
    assert float(loss(logits, targets)) == pytest.approx(float(torch.stack(by_class).mean()))
    assert float(loss(logits, targets)) != pytest.approx(float(F.cross_entropy(logits, targets)))


def test_larger_is_better_scores_are_limited():
    outputs, targets = numbers()
    assert measured("r2", -5 * targets, targets)[1] == 0
    assert measured("r2", targets, targets)[1] == 1
    assert measured("r2", outputs, targets)[1] == pytest.approx(r2_score(targets, outputs))


@pytest.mark.parametrize("name", ["mse", "rmse", "mae", f"{HERE}:distance"])
def test_smaller_is_better_scores_one_half_for_a_constant(name):
    outputs, targets = numbers()
    constant = targets.mean(0).expand_as(targets)
    scores = [measured(name, prediction, targets)[1] for prediction in (targets, outputs, constant, -9 * targets)]
    assert scores == sorted(scores, reverse=True)
    assert (scores[0], scores[2]) == pytest.approx((1, 0.5))


def test_tokens_have_one_value_per_position():
    generator = torch.Generator().manual_seed(0)
    logits, tokens = torch.randn(90, 3, 5, generator=generator), torch.randint(5, (90, 3), generator=generator)
    value, score = measured("auto", logits, tokens)
    nats = F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
    assert value == pytest.approx(float(nats) / math.log(2), rel=1e-5)
    assert 0 < score < 0.5
    loss = build_loss(TrainingConfig(), is_classification=True)
    assert float(loss(logits, tokens)) == pytest.approx(float(nats), rel=1e-5)


def test_user_metric_and_loss_are_loaded():
    outputs, targets = numbers()
    assert measured(f"{HERE}:half", outputs, targets) == (0.5, 0.5)
    assert build_loss(TrainingConfig(loss=f"{HERE}:distance"), is_classification=False) is distance


@pytest.mark.parametrize(
    ("key", "name", "is_classification", "message"),
    [
        ("loss", "mse", True, "loss: expected cross_entropy or module:function for targets that are classes, got mse"),
        ("loss", "cross_entropy", False, "loss: expected mse, mae, huber, quantile or module:function for targets"),
        ("metric", "perplexity", False, "metric: expected r2, mse, rmse, mae, quantile or module:function for targets"),
        ("metric", "r2", True, "metric: expected accuracy, .*, perplexity or module:function .*, got r2"),
    ],
)
def test_loss_or_metric_of_other_targets_raises(key, name, is_classification, message):
    def build() -> None:
        if key == "loss":
            build_loss(TrainingConfig(loss=name), is_classification=is_classification)
        else:
            build_metric(name, is_classification=is_classification)

    with pytest.raises(UserError, match=f"^evaluation.training.{message}"):
        build()


def test_value_that_is_not_finite_scores_zero():
    split = Split(torch.zeros(2, 1), torch.zeros(2, 1))
    measure = build_measure(METRICS["rmse"], split, train=split, num_outputs=1)
    assert measure.score(measure.value_of([(torch.full((2, 1), torch.nan), split.targets)])) == 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"loss": "mze"}, "evaluation.training.loss: expected one of auto, cross_entropy, mse, mae, huber, quantile"),
        ({"loss": "mse", "label_smoothing": 0.1}, "label_smoothing: expected 0 with the loss mse, got 0.1"),
        ({"class_weights": "balanced"}, "class_weights: expected none with the loss mse, got balanced"),
    ],
)
def test_wrong_loss_raises(values, message):
    with pytest.raises(UserError, match=re.escape(message)):
        build_loss(TrainingConfig(**values), is_classification=values.get("loss") == "mze")


def test_label_smoothing_of_numbers_is_left_out():
    loss = build_loss(TrainingConfig(label_smoothing=0.2), is_classification=False)  # of configs/images.yaml
    assert loss is F.mse_loss


def test_wrong_metric_raises():
    with pytest.raises(UserError, match=r"metric: expected one of auto, .*, got 'acuracy'; did you mean accuracy"):
        build_metric("acuracy", is_classification=True)
