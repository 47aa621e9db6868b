"""Classification of images: scikit-learn's digits, 5,000 images of MNIST, or images from files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gflownet.evaluation.datasets import load_splits, standardised
from gflownet.evaluation.examples import Splits
from gflownet.evaluation.tensor_task import TensorTask
from gflownet.options import option


@dataclass
class ImagesConfig:
    """The images."""

    data: str = option(
        "digits",
        "digits (1,797 of 8 x 8), mnist5k (5,000 of 28 x 28, extra [data]), a path (npz, IDX file or folder) or "
        "module:callable",
    )
    data_test: str = option("", "path of a file with test images; empty: a fifth of the data, or as the data has them")
    normalise: Literal["none", "channel"] = option(
        "none", "channel: mean 0 and deviation 1 of each channel over the training images"
    )


class ImagesTask(TensorTask):
    """Classify images [C, H, W], by default in a stratified 60/20/20 split by `evaluation.split_seed`."""

    Config = ImagesConfig

    def data(self) -> Splits:
        options = self.config.task_options
        splits = load_splits(
            options.data, key="task_options.data", seed=self.config.evaluation.split_seed, test=options.data_test
        )
        return standardised(splits, per_channel=True) if options.normalise == "channel" else splits
