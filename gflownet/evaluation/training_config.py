"""Options of the training of a candidate, besides its epochs, batch size and learning rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gflownet.options import AT_LEAST_ONE, NOT_NEGATIVE, Interval, option

Schedule = Literal["constant", "cosine", "one_cycle"]
OptimizerName = Literal["adam", "adamw", "sgd", "muon"]


@dataclass
class TrainingConfig:
    """Optimiser, schedule, loss and metric of a candidate's training."""

    optimizer: OptimizerName = option(
        "adam", "adam, adamw, sgd (Nesterov) or muon (matrices; AdamW for the other parameters)"
    )
    momentum: float = option(
        0.9, "momentum of sgd and muon, first beta of adam and adamw", Interval(0, 1, high_open=True)
    )
    weight_decay: float = option(0.0, "of matrices and kernels, not of norms and biases", NOT_NEGATIVE)
    schedule: Schedule = option(
        "constant", "learning rate: constant, cosine (falls to 0) or one_cycle (rises, then falls, as half cosines)"
    )
    warmup: float = option(
        0.2, "cosine, one_cycle: share of the steps in which the learning rate rises", Interval(0, 1, high_open=True)
    )
    label_smoothing: float = option(0.0, "cross-entropy: share of the target's weight", Interval(0, 1, high_open=True))
    clip: float = option(0.0, "largest norm of the gradient; 0: not clipped", NOT_NEGATIVE)
    average: float = option(
        0.0,
        "decay per step of an exponential average of the weights, which is scored in their place; 0: off",
        Interval(0, 1, high_open=True),
    )
    loss: str = option(
        "auto",
        "auto (cross_entropy for classes and tokens, mse for numbers), cross_entropy, mse, mae, huber, "
        "quantile or module:callable",
    )
    metric: str = option(
        "auto",
        "validation metric: auto (accuracy, bits for tokens, r2 for numbers), accuracy, confidence, "
        "accuracy_and_confidence, balanced_accuracy, f1, auc, likelihood, cross_entropy, log_loss, bits, perplexity, "
        "r2, mse, rmse, mae, quantile or module:callable",
    )
    test_metric: str = option(
        "auto", "metric of the test score, by the same names; auto: accuracy, bits or r2, or your own validation metric"
    )
    quantile: float = option(
        0.5, "of the loss and metric quantile, which predict it", Interval(0, 1, low_open=True, high_open=True)
    )
    class_weights: Literal["none", "balanced"] = option(
        "none", "of cross-entropy: balanced: every class has the same share of the loss"
    )
    augment: list[str] = option([], "random changes of training batches, some of crop, flip, noise and mixup")
    score_epochs: int = option(1, "last epochs over which the validation score is averaged", AT_LEAST_ONE)
