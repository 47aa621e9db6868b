"""Augmentation of training batches: shapes, labels, determinism and what is refused."""

import re

import pytest
import torch

from gflownet.errors import UserError
from gflownet.evaluation.candidates.metrics import cross_entropy
from gflownet.evaluation.data.examples import (
    AUGMENTATIONS,
    IGNORED,
    Batch,
    Split,
    Splits,
    augmented,
    check_augmentation,
    output_shape,
)


def batch_of(*shape: int) -> Batch:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(32, *shape, generator=generator) + 3, torch.randint(4, (32,), generator=generator)


def changed(batch: Batch, *names: str, seed: int = 1) -> Batch:
    return augmented(batch, names, num_outputs=4, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", AUGMENTATIONS)
@pytest.mark.parametrize("shape", [(2, 8, 9), (3, 16)])
def test_batches_are_changed_by_the_generator_alone(name, shape):
    batch = batch_of(*shape)
    copy = batch[0].clone()
    inputs, _ = changed(batch, name)
    assert inputs.shape == batch[0].shape
    assert torch.equal(batch[0], copy)
    assert not torch.equal(inputs, copy)
    torch.manual_seed(5)
    assert torch.equal(changed(batch, name)[0], inputs)
    assert not torch.equal(changed(batch, name, seed=2)[0], inputs)
    assert torch.equal(changed(batch)[0], copy)


def test_flip_mirrors_the_last_axis_of_some_examples():
    batch = batch_of(1, 4, 5)
    inputs, targets = changed(batch, "flip")
    is_same = (inputs == batch[0]).flatten(1).all(1)
    assert 0 < is_same.sum() < 32
    assert torch.equal(inputs[~is_same], batch[0][~is_same].flip(-1))
    assert torch.equal(targets, batch[1])


def test_crop_shifts_each_example_and_fills_with_zeros():
    batch = batch_of(1, 8, 8)
    inputs, _ = changed(batch, "crop")
    for before, after in zip(batch[0][:, 0], inputs[:, 0], strict=True):
        shifts = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1) if torch.equal(after, shifted(before, a, b))]
        assert len(shifts) == 1


@pytest.mark.parametrize("names", [("flip",), ("crop",), ("crop", "flip")])
@pytest.mark.parametrize("sizes", [(1, 6, 8), (2, 9)])
def test_targets_of_positions_move_with_their_inputs(names, sizes):
    """An input holds its own target plus 1: it is 0 where a crop has no target."""
    targets = torch.randint(5, (32, *sizes[1:]), generator=torch.Generator().manual_seed(2))
    inputs = (targets + 1.0).unsqueeze(1).expand(-1, sizes[0], *sizes[1:])
    moved, classes = changed((inputs, targets), *names)
    assert not torch.equal(classes, targets)
    assert torch.equal(moved[:, 0], torch.where(classes == IGNORED, 0, classes + 1.0))
    assert bool((classes == IGNORED).any()) == ("crop" in names)
    if names == ("flip",):
        numbers, _ = changed((inputs, inputs * 2), *names)
        assert torch.equal(changed((inputs, inputs * 2), *names)[1], numbers * 2)


def shifted(image: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    padded = torch.nn.functional.pad(image, (1, 1, 1, 1))
    return padded[1 + rows : 9 + rows, 1 + columns : 9 + columns]


def test_mixup_mixes_inputs_and_targets_by_one_share():
    batch = batch_of(2, 3)
    inputs, targets = changed(batch, "mixup")
    torch.testing.assert_close(targets.sum(1), torch.ones(32))
    one_hot = torch.nn.functional.one_hot(batch[1], 4).float()
    logits = torch.randn(32, 4)
    assert float(cross_entropy(logits, one_hot)) == pytest.approx(float(cross_entropy(logits, batch[1])))
    share = float((inputs[0] - batch[0][1:]).abs().flatten(1).sum(1).min())  # of another example, not of zeros
    assert share > 0
    numbers = (batch[0], batch[0].flatten(1).mean(1, keepdim=True))
    mixed, means = changed(numbers, "mixup")
    torch.testing.assert_close(means, mixed.flatten(1).mean(1, keepdim=True))


IMAGES, CLASSES = torch.zeros(3, 1, 4, 4), torch.zeros(3).long()


@pytest.mark.parametrize(
    ("names", "inputs", "targets", "loss", "message"),
    [
        (["rotate"], IMAGES, CLASSES, "auto", "expected some of crop, flip, noise, mixup, got 'rotate'"),
        (["crop"], torch.zeros(3, 4), CLASSES, "auto", "expected some of noise, mixup, got 'crop'"),
        (["noise"], torch.zeros(3, 4).long(), CLASSES, "auto", "expected none for tokens, got 'noise'"),
        (["mixup"], torch.zeros(3, 4), CLASSES, "a:b", "expected some of noise, got 'mixup'"),
        (["mixup"], IMAGES, torch.zeros(3, 4, 4).long(), "auto", "expected some of noise, flip, crop, got 'mixup'"),
        (["crop"], IMAGES, torch.zeros(3, 1, 4, 4), "auto", "expected some of noise, flip, got 'crop'"),
        (["flip"], IMAGES, torch.zeros(3, 2, 2).long(), "auto", "expected some of noise, got 'flip'"),
    ],
)
def test_augmentation_that_does_not_fit_raises(names, inputs, targets, loss, message):
    with pytest.raises(UserError, match=re.escape(f"evaluation.training.augment: {message}")):
        check_augmentation(
            names, Split(inputs, targets), loss=loss, output=output_shape(Splits(*[Split(inputs, targets)] * 3))
        )
