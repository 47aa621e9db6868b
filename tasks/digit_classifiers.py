"""Scikit-learn classifiers of handwritten digits as an example of task=choices: the kind of model and its settings."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC

_SPLIT_SEED = 0


def score(choices: Mapping[str, Any], seed: int) -> float:
    """Return the validation accuracy of the classifier that the choices describe."""
    inputs, targets = splits()[1]
    return float(fitted(choices, seed).score(inputs, targets))


def test(choices: Mapping[str, Any], seed: int) -> float:
    """Return the test accuracy of the classifier that the choices describe."""
    inputs, targets = splits()[2]
    return float(fitted(choices, seed).score(inputs, targets))


def fitted(choices: Mapping[str, Any], seed: int) -> ClassifierMixin:
    """Return the trained classifier."""
    model: Any = build(choices, seed)
    inputs, targets = splits()[0]
    return model.fit(inputs, targets)


def build(choices: Mapping[str, Any], seed: int) -> ClassifierMixin:
    """Return the classifier; each kind of model has its own settings."""
    if choices["model"] == "neighbours":
        return KNeighborsClassifier(choices["neighbours.k"], weights=choices["neighbours.weights"])
    if choices["model"] == "forest":
        return RandomForestClassifier(choices["forest.trees"], max_depth=choices["forest.depth"], random_state=seed)
    degree = choices.get("svm.degree", 3)  # of the polynomial kernel
    return SVC(C=choices["svm.c"], kernel=choices["svm.kernel"], degree=degree, gamma="scale")


@cache
def splits() -> list[tuple[np.ndarray, np.ndarray]]:
    """Return inputs and targets of 60 % training, 20 % validation and 20 % test examples."""
    inputs, targets = map(np.asarray, load_digits(return_X_y=True))
    train, rest = train_test_split(range(len(targets)), test_size=0.4, stratify=targets, random_state=_SPLIT_SEED)
    validation, held_out = train_test_split(rest, test_size=0.5, stratify=targets[rest], random_state=_SPLIT_SEED)
    return [(inputs[part], targets[part]) for part in (train, validation, held_out)]
