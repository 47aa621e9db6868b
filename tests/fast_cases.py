"""Parametrised cases that are not marked slow."""

from collections.abc import Container, Iterable
from typing import Any

import pytest


def slow_except(fast: Container[Any], cases: Iterable[Any]) -> list[Any]:
    """Return the cases, with those that are not among the fast ones marked slow."""
    return [case if case in fast else pytest.param(case, marks=pytest.mark.slow) for case in cases]
