"""Classes or numbers of images, signals, sequences and tokens, of whole examples or of each pixel or position."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor, nn

from gflownet.errors import UserError
from gflownet.evaluation.candidates.references import (
    classifier_or_regressor,
    estimator_method,
    methods_at_positions,
    model_method,
)
from gflownet.evaluation.candidates.tensor_task import TensorTask
from gflownet.evaluation.data.checks import with_shaped_targets
from gflownet.evaluation.data.datasets import splits_of, standardised, with_standard_targets
from gflownet.evaluation.data.examples import IGNORED, Split, Splits
from gflownet.evaluation.presentation import ReferenceMethod
from gflownet.options import NOT_NEGATIVE, option
from gflownet.translation.array_inputs import ArrayInputs

_LENET_SIZE = (28, 28)
_TABLE = re.compile(r"\.(?:csv|tsv|txt|parquet)(?:\.gz)?$")
_CHANNELS = (1, 3, 4)  # grey, RGB and RGBA


@dataclass
class ImagesConfig:
    """The images."""

    data: str = option(
        "digits",
        "digits (1,797 of 8 x 8), mnist5k (5,000 of 28 x 28, extra [data]), a path (npz, IDX file, folder of IDX, of "
        "class folders of images, sounds or scans, or of images and masks) or module:callable",
    )
    data_test: str = option("", "path of test images; empty: those of the data, or a fifth of them")
    kind: Literal["auto", "classes", "numbers"] = option(
        "auto", "the targets are classes or numbers; auto: integers and texts are classes"
    )
    layout: Literal["image", "signal", "sequence", "tokens", "volume"] = option(
        "image",
        "of arrays: image, signal ([N, C, T] or [N, T]), sequence ([N, T, D]), tokens (whole numbers [N, T]) or volume "
        "([N, C, D, H, W] or [N, D, H, W])",
    )
    per: Literal["auto", "example", "position"] = option(
        "auto",
        "one target per example, or per pixel or position; auto: classes with axes and numbers with two or more axes "
        "are those of positions",
    )
    ignored: int = option(IGNORED, "class of pixels or positions without a target, such as 255")
    size: int = option(0, "height and width to which the images of a folder are resized; 0: as they are", NOT_NEGATIVE)
    alpha: str = option("white", "colour behind transparent pixels, by name or #rrggbb; keep: a fourth channel")
    group: str = option(
        "",
        "examples of one group, such as a patient, stay in one split: FILE.csv of file and group or a pattern as "
        "'(patient\\d+)_' for a folder, an array of an npz file (groups by default)",
    )
    duplicates: Literal["refuse", "together", "keep"] = option(
        "refuse", "examples of one split that are in another: refuse more than 5 %, together in one split, or keep"
    )
    normalise: Literal["none", "channel"] = option(
        "none", "channel: mean 0 and deviation 1 of each channel over the training images"
    )


class ImagesTask(TensorTask):
    """Predict a class or numbers from images [C, H, W], signals or volumes, by default in a 60/20/20 split."""

    Config = ImagesConfig

    def data(self) -> Splits:
        options = self.config.task_options
        if options.layout in ("sequence", "tokens") and _TABLE.search(options.data):
            expected = f"FILE.npz or module:callable with task_options.layout={options.layout}"
            raise UserError(f"task_options.data: expected {expected}, got {options.data}")
        splits = splits_of(self.config)
        if options.layout in ("image", "signal", "volume"):
            changed = {"signal": as_signals, "volume": as_volumes}.get(options.layout)
            splits = as_images(changed(splits) if changed else splits, source=options.data)
        else:
            splits = as_sequences(splits, layout=options.layout, source=options.data)
            if options.normalise != "none":
                raise UserError(f"task_options.normalise: expected none for {options.layout}, got {options.normalise}")
        splits = with_shaped_targets(splits, key="task_options.data", per=options.per)
        splits = with_standard_targets(splits)
        return standardised(splits, per_channel=True) if options.normalise == "channel" else splits

    def reference_methods(self) -> Sequence[ReferenceMethod]:
        """Return scikit-learn's RandomForest and MLP and, for images of 28 x 28, LeNet-5.

        For targets of positions: the best constant prediction, and a linear layer at each position.
        """
        if self.output_shape.positions:
            return methods_at_positions(self)
        forest = classifier_or_regressor(self, "ensemble.RandomForestClassifier", "ensemble.RandomForestRegressor")
        mlp = classifier_or_regressor(self, "neural_network.MLPClassifier", "neural_network.MLPRegressor")
        methods = [
            estimator_method(self, "scikit-learn RandomForest", forest),
            estimator_method(self, "scikit-learn MLP", mlp),
        ]
        channels, *size = self.input_shape.sizes
        if tuple(size) == _LENET_SIZE:
            methods.append(model_method(self, "LeNet-5", lenet5, channels, self.num_outputs))
        return methods


def as_images(splits: Splits, *, source: str) -> Splits:
    """Return splits of images [C, H, W]; in memory [H, W] get a channel, [H, W, C] are transposed, with a line.

    Raises:
        UserError: vectors or tokens, or images with their channels on the last axis in a Dataset.
    """
    if isinstance(splits.train, Split) and splits.train.example.ndim == 2 and splits.layout is None:
        splits = splits.changed(_with_channel)
    example = splits.train.example
    shape = list(example.shape)
    is_last = splits.layout is None and len(shape) in (3, 4) and _ends_with_channels(example)
    if is_last and isinstance(splits.train, Split):
        return _with_channels_first(splits, "images" if len(shape) == 3 else "volumes")
    if (len(shape) < 3 and splits.layout is None) or not example.is_floating_point():
        kind = "numbers" if example.is_floating_point() else "tokens"
        raise UserError(
            f"task_options.data: expected images [C, H, W], got {kind} {shape} from {source}; task=table "
            "trains on tables, task_options.layout=signal on signals"
        )
    if is_last:
        raise UserError(
            f"task_options.data: expected images [C, H, W], got {shape} from {source}; for [H, W, C] "
            "move the channels to axis 1, such as x.transpose(0, 3, 1, 2)"
        )
    if source.endswith(".npz") and splits.layout is None and len(shape) == 3 and shape[0] == 1 and shape[1] != shape[2]:
        words = f"grey images of {shape[1]} x {shape[2]}; task_options.layout=signal reads {shape[1:]} as a signal"
        return replace(splits, summary=(*splits.summary, words))
    return splits


def as_signals(splits: Splits) -> Splits:
    """Return splits of vectors [T] and of images [1, C, T] as signals [1, T] and [C, T]; others stay."""
    if not isinstance(splits.train, Split) or splits.train.example.ndim not in (1, 3):
        return replace(splits, layout="signal")
    splits = splits.changed(_without_channel if splits.train.example.ndim == 3 else _with_channel, layout="signal")
    arrays = splits.arrays if splits.columns is None else ArrayInputs(splits.columns.target)
    about = set() if splits.columns is None else {*splits.columns.summary()}
    channels, size = splits.train.example.shape
    words = f"signals of {channels} x {size} values" + "; for [N, T, C], x.transpose(0, 2, 1)" * (channels > size)
    summary = (*(line for line in splits.summary if line not in about), words)
    return replace(splits, columns=None, arrays=arrays, summary=summary)


def as_sequences(splits: Splits, *, layout: str, source: str) -> Splits:
    """Return splits of sequences [T, D] or tokens [T]; images [1, T, D] of a file are sequences."""
    if isinstance(splits.train, Split) and splits.train.example.ndim == 3 and layout == "sequence":
        splits = splits.changed(_without_channel)
    example, is_tokens = splits.train.example, layout == "tokens"
    if example.ndim != 2 - is_tokens or example.is_floating_point() == is_tokens:
        expected = "whole numbers [N, T]" if is_tokens else "numbers [N, T, D]"
        raise UserError(
            f"task_options.data: expected {expected} with task_options.layout={layout}, got {example.dtype} "
            f"{['N', *example.shape]} from {source}"
        )
    return replace(splits, layout=layout)


def as_volumes(splits: Splits) -> Splits:
    """Return splits of examples [D, H, W] in memory as volumes [1, D, H, W], and of [D, H, W, C] as [C, D, H, W]."""
    example = splits.train.example
    if isinstance(splits.train, Split) and example.ndim == 3:
        splits = splits.changed(_with_channel)
    elif isinstance(splits.train, Split) and example.ndim == 4 and _ends_with_channels(example):
        splits = _with_channels_first(splits, "volumes")
    return replace(splits, layout="volume")


def _ends_with_channels(example: Tensor) -> bool:
    return example.shape[-1] in _CHANNELS and example.shape[0] > max(_CHANNELS)


def _with_channels_first(splits: Splits, noun: str) -> Splits:
    summary = (*splits.summary, f"{noun} {list(splits.train.example.shape)}: the last axis is that of channels")
    return splits.changed(lambda part: replace(part, inputs=part.inputs.movedim(-1, 1).contiguous()), summary=summary)


def _with_channel(part: Split) -> Split:
    return replace(part, inputs=part.inputs[:, None])


def _without_channel(part: Split) -> Split:
    return replace(part, inputs=part.inputs[:, 0])


def lenet5(channels: int, num_classes: int) -> nn.Module:
    """Return LeNet-5 with ReLU and max pooling for images of 28 x 28 (LeCun et al. 1998): 61,706 parameters."""
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, num_classes),
    )
