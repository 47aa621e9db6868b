"""Operations without weights of matrices: identity and others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gflownet.graphs.operation import Example, Operation, single_input
from gflownet.graphs.tensor_shape import Shape


class Identity(Operation):
    """The input itself: a node that only merges and activates."""

    examples = (Example((Shape.of(3),)), Example((Shape.of((5, 3)),)))

    @classmethod
    def infer_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        return single_input(inputs)

    @classmethod
    def call(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> str:
        return "{input}"
