"""Images, signals and sequences of a user as inputs of a model, and its outputs as classes or numbers; stored as JSON.

N: examples, C: channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any

import numpy as np

from gflownet.operations.tensor_shape import Layout
from gflownet.translation.image_files import read_picture
from gflownet.translation.table_columns import Target


@dataclass(frozen=True)
class ArrayInputs:
    """How files or arrays become inputs of a model, as fitted on the training examples."""

    target: Target
    scale: float | None = None  # by which integers are divided
    shape: Sequence[int] = ()  # of an input of the model, [C, H, W] or [C, T]
    size: int = 0  # height and width to which images of files are resized; 0: as they are
    alpha: str = "white"  # see `read_picture`
    mean: Sequence[float] = ()  # [C] of the training examples; empty: inputs are not standardised
    deviation: Sequence[float] = ()  # [C], 0 for a constant channel
    layout: str = ""  # of the inputs, see `Layout`; empty: channels are the first axis
    output: Sequence[int] = ()  # shape of an output with positions, in the layout of the inputs; empty: a vector

    def encoded(self, examples: Any) -> np.ndarray:
        """Return inputs [N, *shape], float32, of paths of images, images of pillow, or arrays as in the data.

        Tokens are int64.

        Raises:
            ValueError: arrays of another shape, or a file that is no image.
        """
        examples = [examples] if _is_picture(examples) else examples
        if not isinstance(examples, np.ndarray):
            options: Any = {"size": self.size, "alpha": self.alpha, "channels": self.shape[0]}
            pictures = (read_picture(each, **options)[0] if _is_picture(each) else each for each in examples)
            examples = np.stack([np.asarray(each) for each in pictures])
        got, (channels, *sizes) = examples.shape[1:], self.shape
        if self.layout in (Layout.SEQUENCE, Layout.TOKENS):
            pass
        elif got == (*sizes, channels) != tuple(self.shape):
            examples = np.moveaxis(examples, -1, 1)
        elif channels == 1 and got == tuple(sizes):
            examples = examples[:, None]
        if examples.shape[1:] != tuple(self.shape) or examples.dtype.kind not in "biuf":
            raise ValueError(f"expected inputs {list(self.shape)}, got {list(got)} of {examples.dtype}")
        if self.layout == Layout.TOKENS:
            return examples.astype(np.int64)
        inputs = examples / self.scale if self.scale and examples.dtype.kind in "iu" else examples
        inputs = inputs.astype(np.float32)
        if not self.mean:
            return inputs
        mean, deviation = (
            np.array(each, dtype=np.float32).reshape(-1, *[1] * len(sizes)) for each in (self.mean, self.deviation)
        )
        return (inputs - mean) / np.where(deviation > 0, deviation, np.float32("inf"))

    def predictions(self, outputs: np.ndarray) -> np.ndarray:
        """Return the classes [N] of logits [N, O], or the numbers [N] or [N, O] in the units of the data.

        Of outputs with positions: [N, *positions], of several numbers at each [N, *shape of an output].
        """
        if not self.output:
            return self.target.predictions(outputs)
        axis = outputs.ndim - 1 if self.layout in (Layout.SEQUENCE, Layout.TOKENS) else 1
        rows = np.moveaxis(outputs, axis, -1)
        predicted = self.target.predictions(rows.reshape(-1, rows.shape[-1]))
        predicted = predicted.reshape(*rows.shape[:-1], *predicted.shape[1:])
        return predicted if predicted.ndim < outputs.ndim else np.moveaxis(predicted, -1, axis)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON data of which `from_dict` makes the same."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Any) -> ArrayInputs:
        """Return the inputs of JSON data. Raises ValueError for other data."""
        try:
            return cls(**{**data, "target": Target(**data["target"])})
        except (KeyError, TypeError) as error:
            raise ValueError(f"expected the inputs of a model, got {type(error).__name__}: {error}") from None


def _is_picture(example: Any) -> bool:
    return isinstance(example, str | PathLike) or type(example).__module__.startswith("PIL.")
