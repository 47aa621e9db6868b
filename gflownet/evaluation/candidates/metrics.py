"""Losses and validation metrics of candidates, by name or module:callable, and their scores in [0, 1].

B: batch, C: classes, T: positions, O: numbers that a model predicts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gflownet.errors import UserError
from gflownet.evaluation.config import TrainingConfig
from gflownet.evaluation.data.examples import IGNORED, Batch, labelled_classes
from gflownet.plugins import load_function
from gflownet.translation.table_columns import Target

# Outputs [B, ...] and targets [B, ...] to a loss, or to values whose mean over all predictions is the metric; a loss of
# weighted examples, and a metric of all predictions at once, get their weights [B] too.
Loss = Callable[..., Tensor]

_MAX_NATS = 700.0  # its exponential is a finite float
_SMALLEST = 1e-12  # value of a constant prediction below which it counts as perfect


# From the mean of the values, and that of the best constant prediction, to a metric in its unit. A metric has only the
# name: a task is pickled for its processes.
_UNITS: dict[str, Callable[[float, float], float]] = {
    "mean": lambda mean, constant: mean,
    "likelihood": lambda mean, constant: math.exp(-mean),
    "bits": lambda mean, constant: mean / math.log(2),
    "perplexity": lambda mean, constant: math.exp(min(mean, _MAX_NATS)),
    "r2": lambda mean, constant: 1 - mean / max(constant, _SMALLEST),
    "root": lambda mean, constant: math.sqrt(mean),
}


@dataclass(frozen=True)
class Metric:
    """A validation metric: a mean over all predictions, and its score."""

    name: str
    values: Loss
    unit: str = "mean"  # out of `_UNITS`
    smaller_is_better: bool = False
    is_relative: bool = False  # whether its unit or `score` compares with the best constant prediction
    is_whole: bool = False  # whether `values` is one value of all predictions at once, not a mean over batches
    quantile: float | None = None  # that a prediction estimates; None: the mean
    axis: int = -1  # of the classes in outputs [B, ...]
    units: Callable[[Tensor], Tensor] = torch.positive  # in which predicted and true numbers are compared

    def means(self, batches: Iterable[Batch]) -> list[float]:
        """Return the means of the values over all predictions of batches (outputs, targets and weights, if any).

        Of numbers [B, O] there are O, else one.
        """
        if self.is_whole:
            batches = [tuple(torch.cat(each).cpu() for each in zip(*batches, strict=True))]
        total, count = torch.zeros(1, dtype=torch.float64), 0.0
        for outputs, targets, *weights in batches:
            each = self.values(self.units(outputs), self.units(targets), *(weights if self.is_whole else ())).double()
            if each.ndim == 0:  # the mean of its batch
                each = each.expand(len(targets))
            each = each if each.ndim == 2 and targets.is_floating_point() else each.reshape(-1, 1)
            each, num = (each * weights[0][:, None], float(weights[0].sum())) if weights else (each, len(each))
            total, count = total + each.sum(0).cpu(), count + num
        return (total / count).tolist()

    def finish(self, mean: float, constant: float) -> float:
        """Return the metric in its unit, from the means of the values and of those of the best constant prediction."""
        return _UNITS[self.unit](mean, constant)

    def score(self, value: float, constant: float) -> float:
        """Return the score in [0, 1] of a metric; `constant` is the metric of the best constant prediction.

        Larger is better: the metric itself, limited to [0, 1]. Smaller is better: 1 / (1 + value / constant), which is
        1 for a perfect prediction and 1/2 for a constant one.
        """
        if not self.smaller_is_better:
            return min(1.0, max(0.0, value))
        return 1 / (1 + max(0.0, value) / max(constant, _SMALLEST))

    def value_of(self, score: float, constant: float) -> float:
        """Return the value of a score of a metric of which less is better; NaN for the score 0, of no finite one."""
        return (1 / score - 1) * max(constant, _SMALLEST) if score > 0 else math.nan


def cross_entropy(
    outputs: Tensor,
    targets: Tensor,
    *,
    label_smoothing: float = 0.0,
    weight: Tensor | None = None,
    axis: int = -1,
    reduction: str = "mean",
) -> Tensor:
    """Return the mean cross-entropy of logits [B, C], or with positions, in nats; `weight` [C] of the classes.

    Positions without a target, IGNORED, have no loss; `axis`: of the classes; `reduction`: as in torch.
    """
    if outputs.ndim > 2:
        outputs, targets = outputs.movedim(axis, -1).flatten(0, -2), targets.flatten()
    weight = None if weight is None else weight.to(outputs)
    return F.cross_entropy(outputs, targets, weight=weight, label_smoothing=label_smoothing, reduction=reduction)


def weighted(outputs: Tensor, targets: Tensor, weights: Tensor, *, loss: Loss, mean: float) -> Tensor:
    """Return the losses [B] times the weights [B] of mean `mean`. Raises UserError for a loss that is one per batch."""
    each = loss(outputs, targets)
    if each.shape[:1] != weights.shape:
        text = "expected one value per example, for the weights of the examples, got"
        raise UserError(f"evaluation.training.loss: {text} {list(each.shape) or 'their mean'}")
    return each.reshape(len(each), -1).mean(1) * weights / mean


def original_units(values: Tensor, *, target: Target, scale: float = 1.0) -> Tensor:
    """Return numbers [N, O] as the target has them, without its transform, divided by a scale."""
    numbers = values * values.new_tensor(target.deviation) + values.new_tensor(target.mean)
    return numbers.expm1().clamp(min=0) / scale


def balanced_weights(targets: Tensor, num_classes: int) -> Tensor:
    """Return a weight per class [C] with which every class has the same share of the loss."""
    counts = torch.bincount(labelled_classes(targets), minlength=num_classes)
    return counts.sum() / (num_classes * counts.clamp(min=1))


def at_positions(outputs: Tensor, targets: Tensor, *, values: Loss, axis: int) -> Tensor:
    """Return the values of all positions that have a target, of outputs with their classes along `axis`."""
    outputs, targets = outputs.movedim(axis, -1).flatten(0, -2), targets.flatten()
    has_target = targets != IGNORED
    return values(outputs[has_target], targets[has_target])


def _correct(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.argmax(dim=-1) == targets


def _nats(outputs: Tensor, targets: Tensor) -> Tensor:
    return -F.log_softmax(outputs, dim=-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)


def _confidence(outputs: Tensor, targets: Tensor) -> Tensor:
    return torch.exp(-_nats(outputs, targets))


def _accuracy_and_confidence(outputs: Tensor, targets: Tensor) -> Tensor:
    return (_correct(outputs, targets) + _confidence(outputs, targets)) / 2


def _squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square()


def _distances(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).abs()


def _pinball(outputs: Tensor, targets: Tensor, *, quantile: float = 0.5) -> Tensor:
    """Return the quantile loss of each number (Koenker and Bassett 1978)."""
    return torch.maximum(quantile * (targets - outputs), (quantile - 1) * (targets - outputs))


def _counts(outputs: Tensor, targets: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the weights [C] of the examples of each class, of those predicted as it, and of both."""
    num, classes, targets = outputs.shape[-1], outputs.argmax(dim=-1).flatten(), targets.flatten()
    weights = torch.ones_like(targets, dtype=torch.float64) if weights is None else weights.double()
    true, predicted = (torch.bincount(each, weights, minlength=num) for each in (targets, classes))
    return true, predicted, torch.bincount(targets, weights * (classes == targets), minlength=num)


def _balanced_accuracy(outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    true, _, both = _counts(outputs, targets, weights)
    return (both / true)[true > 0].mean()


def _f1(outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    true, predicted, both = _counts(outputs, targets, weights)
    return (2 * both / (true + predicted))[true + predicted > 0].mean()


def _mean_iou(outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean over the classes of intersection over union (Everingham et al. 2010)."""
    true, predicted, both = _counts(outputs, targets, weights)
    return (both / (true + predicted - both))[true + predicted > 0].mean()


def _auc(outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean area under the ROC curve of each class against the others, by ranks (Mann and Whitney 1947)."""
    scores, targets = outputs.double().softmax(dim=-1).flatten(0, -2), targets.flatten()
    weights = torch.ones_like(targets, dtype=torch.float64) if weights is None else weights.double()
    areas = []
    for label in targets.unique():
        member, rest = (torch.where(each, weights, 0) for each in (targets == label, targets != label))
        values, places = scores[:, label].unique(return_inverse=True)
        below = torch.bincount(places, rest, minlength=len(values))
        below = (below.cumsum(0) - below / 2)[places]  # the weight of the others below, half of it where equal
        areas.append((member * below).sum() / (member.sum() * rest.sum()))
    return torch.stack(areas).mean().nan_to_num(0.5)


_LOSSES: dict[str, Loss] = {"mse": F.mse_loss, "mae": F.l1_loss, "huber": F.smooth_l1_loss, "quantile": _pinball}

# Metrics of targets that are numbers; the others are of classes.
_OF_NUMBERS = ("r2", "mse", "rmse", "mae", "quantile")
# Metrics on which a constant prediction of unbalanced classes scores no better than on balanced ones.
FOR_UNBALANCED = ("balanced_accuracy", "f1", "auc", "mean_iou")
METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", _correct),
        Metric("confidence", _confidence),  # mean probability of the true class
        Metric("accuracy_and_confidence", _accuracy_and_confidence),  # their mean
        Metric("likelihood", _nats, "likelihood"),  # geometric mean of the true class's probability
        Metric("balanced_accuracy", _balanced_accuracy, is_whole=True),
        Metric("f1", _f1, is_whole=True),
        Metric("auc", _auc, is_whole=True),
        Metric("mean_iou", _mean_iou, is_whole=True),
        Metric("cross_entropy", _nats, smaller_is_better=True, is_relative=True),
        Metric("log_loss", _nats, smaller_is_better=True, is_relative=True),  # the same by scikit-learn's name
        Metric("bits", _nats, "bits", smaller_is_better=True, is_relative=True),
        Metric("perplexity", _nats, "perplexity", smaller_is_better=True, is_relative=True),
        Metric("r2", _squares, "r2", is_relative=True),
        Metric("mse", _squares, smaller_is_better=True, is_relative=True),
        Metric("rmse", _squares, "root", smaller_is_better=True, is_relative=True),
        Metric("mae", _distances, smaller_is_better=True, is_relative=True),
        Metric("quantile", _pinball, smaller_is_better=True, is_relative=True, quantile=0.5),
    )
}


def build_loss(
    config: TrainingConfig,
    *,
    is_classification: bool,
    class_weights: Tensor | None = None,
    axis: int = -1,
    is_weighted: bool = False,
) -> Loss:
    """Return the training loss; `class_weights` [C] are those of evaluation.training.class_weights, if any.

    `axis`: of the classes. A module:function gets the outputs as the model returns them. `is_weighted`: whether
    the loss has a value per example, for `weighted`.

    Raises:
        UserError: an unknown name, a loss of other targets, or label smoothing with another loss than cross_entropy.
    """
    fitting = ("cross_entropy",) if is_classification else tuple(_LOSSES)
    name = config.loss if config.loss != "auto" else fitting[0]
    if name not in fitting and name in ("cross_entropy", *_LOSSES):
        raise _of_other_targets("loss", name, fitting, is_classification=is_classification)
    if name == "cross_entropy":
        options: dict[str, Any] = {"weight": class_weights, "reduction": "none" if is_weighted else "mean"}
        return partial(cross_entropy, label_smoothing=config.label_smoothing, axis=axis, **options)
    if config.label_smoothing and config.loss != "auto":
        raise UserError(
            f"evaluation.training.label_smoothing: expected 0 with the loss {name}, got {config.label_smoothing:g}"
        )
    if config.class_weights != "none":
        raise UserError(
            f"evaluation.training.class_weights: expected none with the loss {name}, got {config.class_weights}"
        )
    if name == "quantile":
        return partial(_pinball, quantile=config.quantile)
    if name in _LOSSES:
        return partial(_LOSSES[name], reduction="none") if is_weighted else _LOSSES[name]
    return load_function("evaluation.training.loss", name, names=("auto", "cross_entropy", *_LOSSES))


def build_metric(
    name: str, *, is_classification: bool, is_text: bool = False, quantile: float = 0.5, axis: int | None = None
) -> Metric:
    """Return the metric of evaluation.training.metric.

    Args:
        name: of a metric, or module:function of outputs as the model returns them and targets.
        is_classification: whether targets are classes or tokens.
        is_text: whether auto is bits per token.
        quantile: of the metric with this name.
        axis: of the classes of outputs with positions; None: outputs without.

    Raises:
        UserError: an unknown name, or a metric of other targets.
    """
    if name == "auto":
        name = "r2" if not is_classification else "bits" if is_text else "accuracy"
    if name in METRICS:
        fitting = [metric for metric in METRICS if (metric in _OF_NUMBERS) != is_classification]
        if name not in fitting:
            raise _of_other_targets("metric", name, fitting, is_classification=is_classification)
        metric = METRICS[name]
        if name == "quantile":
            return replace(metric, values=partial(_pinball, quantile=quantile), quantile=quantile)
        if axis is None:
            return metric
        return replace(metric, values=partial(at_positions, values=metric.values, axis=axis), axis=axis)
    values = load_function("evaluation.training.metric", name, names=("auto", *METRICS))
    is_cost = bool(getattr(values, "smaller_is_better", False))
    shown = name.partition(":")[2]
    return Metric(shown, values, smaller_is_better=is_cost, is_relative=is_cost, axis=-1 if axis is None else axis)


def _of_other_targets(option: str, name: str, fitting: Sequence[str], *, is_classification: bool) -> UserError:
    targets = f"targets that are {'classes' if is_classification else 'numbers'}"
    expected = f"{', '.join(fitting)} or module:function for {targets}"
    return UserError(f"evaluation.training.{option}: expected {expected}, got {name}")


def constant_prediction(
    targets: Tensor, num_outputs: int, *, quantile: float | None = None, weights: Tensor | None = None
) -> Tensor:
    """Return the best constant output [C] or [O]: log frequencies of classes, means or a quantile of numbers."""
    if targets.is_floating_point() and weights is not None:
        if quantile is None:
            return (targets * weights[:, None]).sum(0) / weights.sum()
        order = targets.argsort(0)
        below = weights[order].cumsum(0) < quantile * weights.sum()
        return targets.gather(0, order).gather(0, below.sum(0, keepdim=True))[0]
    if targets.is_floating_point():
        return targets.mean(dim=0) if quantile is None else targets.quantile(quantile, dim=0)
    shares = None if weights is None else weights / weights.mean()
    counts = torch.bincount(labelled_classes(targets), shares, minlength=num_outputs).float() + 1
    return (counts / counts.sum()).log()


def constant_outputs(constant: Tensor, targets: Tensor, *, axis: int = -1) -> Tensor:
    """Return the outputs of a constant prediction for targets, [B, C], [B, O] or with positions; classes on `axis`."""
    if targets.is_floating_point():
        return constant.expand(targets.shape)
    return constant.expand(*targets.shape, -1).movedim(-1, axis)
