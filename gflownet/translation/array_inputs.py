"""Images, signals and sequences of a user as inputs of a model, and its outputs as classes or numbers; stored as JSON.

N: examples, C: channels, T: length of a signal, L: of the longest one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any

import numpy as np

from gflownet.errors import UserError
from gflownet.operations.tensor_shape import Layout
from gflownet.translation.example_files import read_example
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
    rate: int = 0  # samples per second of sounds; 0: the inputs are no sounds
    is_padded: bool = False  # signals of several lengths: see `padded`

    def encoded(self, examples: Any) -> np.ndarray:
        """Return inputs [N, *shape], float32, of paths of files, images of pillow, or arrays as in the data.

        Tokens are int64. Signals of several lengths are padded.

        Raises:
            ValueError: arrays of another shape, longer signals, sounds of another rate, or a file that is no example.
        """
        examples = [examples] if _is_file(examples) else examples
        if not isinstance(examples, np.ndarray) or self.is_padded:
            arrays = [self._read(each) if _is_file(each) else np.asarray(each) for each in examples]
            examples = padded(arrays, self.shape[-1]) if self.is_padded else np.stack(arrays)
        if self.rate and examples.dtype.kind != "f":
            raise ValueError(f"expected sounds as files or as floats from -1 to 1, got {examples.dtype}")
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
        inputs, mask = (inputs - mean) / np.where(deviation > 0, deviation, np.float32("inf")), inputs[:, -1:]
        return inputs * mask if self.is_padded else inputs

    def _read(self, source: Any) -> np.ndarray:
        """Return a file as an array. Raises ValueError for a sound of another rate."""
        example = read_example(source, size=self.size, alpha=self.alpha, channels=self.shape[0])
        if self.rate != example.rate:
            raise ValueError(f"{source}: expected a sound at {self.rate:,} Hz as in training, got {example.rate:,} Hz")
        return example.values

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


def padded(signals: Sequence[np.ndarray], length: int = 0) -> np.ndarray:
    """Return signals [C, T] or [T] of several lengths as [N, C + 1, L] float32, with zeros after their ends.

    The last channel is their mask: 1 where a signal has values, 0 in its padding.

    Args:
        signals: of one number of channels.
        length: L; 0: that of the longest.

    Raises:
        UserError: a longer signal, other numbers of channels, an empty signal, or integers.
    """
    signals = [each[None] if each.ndim == 1 else each for each in signals]
    longest, channels = max(each.shape[-1] for each in signals), sorted({each.shape[0] for each in signals})
    if length and longest > length:
        raise UserError(f"expected signals of at most {length:,} values, as long as in training, got {longest:,}")
    if len(channels) > 1 or any(each.ndim != 2 or not each.size for each in signals):
        got = f"those of {' and '.join(map(str, channels))}" if len(channels) > 1 else "others or empty ones"
        raise UserError(f"expected signals [C, T] or [T] of one number of channels, got {got}")
    if kinds := {each.dtype.name for each in signals if each.dtype.kind != "f"}:
        raise UserError(f"expected signals of several lengths as floats, got {min(kinds)}; x.astype(np.float32)")
    inputs = np.zeros((len(signals), channels[0] + 1, length or longest), dtype=np.float32)
    for row, signal in zip(inputs, signals, strict=True):
        row[:-1, : signal.shape[1]], row[-1, : signal.shape[1]] = signal, 1
    return inputs


def _is_file(example: Any) -> bool:
    return isinstance(example, str | PathLike) or type(example).__module__.startswith("PIL.")
