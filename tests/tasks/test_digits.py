"""The digits: real data, a fixed stratified split, scores that separate architectures."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from gflownet.evaluation.candidates.supervised import Splits
from gflownet.evaluation.tasks import TASKS
from tests.evaluation.candidates import config_with


def digits_splits(*overrides: str) -> Splits:
    return TASKS.load("digits")(config_with(*overrides)).splits()  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def splits() -> Splits:
    return digits_splits()


def parts(splits: Splits):
    return splits.train, splits.validation, splits.test


def test_split_is_60_20_20_of_all_images(splits):
    sizes = [len(part.inputs) for part in parts(splits)]
    assert sum(sizes) == 1797
    assert [size / 1797 for size in sizes] == pytest.approx([0.6, 0.2, 0.2], abs=0.003)
    images = torch.cat([part.inputs for part in parts(splits)]).numpy() * 16
    expected, _ = load_digits(return_X_y=True)
    assert np.array_equal(images[np.lexsort(images.T)], expected[np.lexsort(expected.T)])


def test_split_is_stratified(splits):
    for part, share in zip(parts(splits), (0.6, 0.2, 0.2), strict=True):
        counts = torch.bincount(part.targets, minlength=10)
        assert torch.all((counts - share * 179.7).abs() < 4)


def test_images_keep_their_digits(splits):
    images, digits = load_digits(return_X_y=True)
    known = {image.tobytes(): digit for image, digit in zip(images.astype(np.float32), digits, strict=True)}
    for part in parts(splits):
        assert [known[image.tobytes()] for image in (part.inputs * 16).numpy()] == part.targets.tolist()
        assert (part.inputs.dtype, part.targets.dtype) == (torch.float32, torch.int64)
    assert (float(splits.train.inputs.min()), float(splits.train.inputs.max())) == (0.0, 1.0)


def test_reference_is_a_good_classifier():
    """Accuracies of 0.96 to 0.98; the validation score is scaled by the number of parameters as for any candidate."""
    config = config_with("evaluation.size_weight=0.1", "evaluation.target_parameters=15020")
    reference = TASKS.load("digits")(config).reference(seeds=[0])
    assert reference is not None
    assert reference.num_parameters == 64 * 100 + 100 + 100 * 10 + 10 == 15020 / 2
    assert 0.95 < reference.validation[0] / 2**0.1 < 1
    assert 0.95 < reference.test[0] < 1
