"""Folders of images and masks: forms of masks and folders, classes, ignored pixels, numbers, skipped files."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gflownet.errors import UserError
from tasks.images import ImagesTask
from tests.tasks.test_images import Image, labels_of, make_task, save

NUM = 10
COLOURS = np.array([[0, 0, 0], [128, 0, 0], [0, 128, 0]], dtype=np.uint8)


def of_palette(classes: np.ndarray) -> Any:
    mask = Image.fromarray(classes).convert("P")
    mask.putdata(classes.ravel().tolist())
    mask.putpalette(COLOURS.ravel().tolist() + [7] * (765 - COLOURS.size) + [224, 224, 192])
    return mask


def classes_of_images() -> Iterator[np.ndarray]:
    """Yield masks [12, 16] of background and, in turn, a square of class 1 and 2."""
    for number in range(NUM):
        classes = np.zeros((12, 16), dtype=np.uint8)
        classes[number % 7 :][:5, number % 9 :][:, :5] = 1 + number % 2
        yield classes


def write(
    folder: Path, form: Callable[[np.ndarray], Any], image: str = "images/{k}.png", mask: str = "masks/{k}.png"
) -> Path:
    """Write images whose grey values are 100 times the class, with a little noise, and their masks."""
    for k, classes in enumerate(classes_of_images()):
        names = {"k": k, "split": "train" if k < 6 else "val" if k < 8 else "test"}
        save(folder / image.format(**names), 100 * classes + np.uint8(k))
        save(folder / mask.format(**names), form(classes))
    return folder


def classes_are(task: ImagesTask, expected: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    """Return whether the targets of all splits are a function of the grey values divided by 100."""
    return all(
        torch.equal(part.targets, expected((part.inputs[:, 0] * 255 / 100).long())) for part in task.splits_in_use
    )


@pytest.mark.parametrize(
    ("form", "labels"),
    [
        (lambda classes: classes, (0, 1, 2)),
        (of_palette, (0, 1, 2)),
        (lambda classes: 127 * classes.astype(np.uint16) * 100, (0, 12_700, 25_400)),
        (lambda classes: classes.astype(np.float32), (0, 1, 2)),
        (lambda classes: np.stack([127 * classes] * 3, -1), (0, 127, 254)),
        (lambda classes: COLOURS[classes], ("#000000", "#008000", "#800000")),
        (lambda classes: np.dstack([COLOURS[classes], 0 * classes + 255]), ("#000000", "#008000", "#800000")),
        (lambda classes: Image.fromarray(COLOURS[classes]).quantize(), ("#000000", "#008000", "#800000")),
    ],
    ids=["grey", "palette", "16 bits", "floats", "grey as RGB", "RGB", "RGBA", "palettes that differ"],
)
def test_forms_of_masks(tmp_path, form, labels):
    task = make_task(write(tmp_path, form, mask="masks/{k}.tif" if labels == (0, 1, 2) else "masks/{k}.png"))
    assert tuple(sorted(labels_of(task))) == labels
    numbers = torch.tensor(
        [labels_of(task).index(labels[place]) for place in ((0, 2, 1) if labels[1] == "#008000" else (0, 1, 2))]
    )
    assert classes_are(task, lambda classes: numbers[classes])
    assert task.summary[0] == "10 images with a mask read (train: 10); left out: none"
    assert task.summary[-1].startswith("targets: one of 3 classes at each of 12 x 16 positions; ")


@pytest.mark.parametrize(
    ("image", "mask"),
    [
        ("{split}/images/{k}.png", "{split}/masks/{k}.gif"),
        ("images/{split}/{k}.png", "annotations/{split}/{k}.png"),
        ("JPEGImages/{k}.png", "SegmentationClass/{k}.png"),
        ("imgs/car_{k}.png", "masks/car_{k}_mask.gif"),
        ("images/images/p{k}/x.png", "masks/masks/p{k}/x.png"),
    ],
)
def test_folders_of_masks(tmp_path, image, mask):
    task = make_task(write(tmp_path, lambda classes: classes, image, mask))
    assert [len(part) for part in task.splits_in_use] == [6, 2, 2]
    assert classes_are(task, lambda classes: classes)


@pytest.mark.parametrize("white", [255, True])
def test_masks_of_0_and_255(tmp_path, white):
    task = make_task(write(tmp_path, lambda classes: (classes > 0) if white is True else np.uint8(255) * (classes > 0)))
    assert labels_of(task) == (0, 255)
    assert classes_are(task, lambda classes: classes.clamp(max=1))
    assert task.summary[1] == "classes of the masks: 0, 255"


def with_border(classes: np.ndarray) -> np.ndarray:
    return np.where(np.arange(16) < 2, 255, classes).astype(np.uint8)


def test_255_next_to_counted_classes_has_no_class(tmp_path):
    write(tmp_path, lambda classes: of_palette(with_border(classes)))
    task = make_task(tmp_path)
    assert labels_of(task) == (0, 1, 2)
    border = torch.arange(16) < 2
    assert classes_are(task, lambda classes: classes.masked_fill(border, -100))
    words = "; pixels of 255 have no class, task_options.kind=classes takes 255 as one"
    assert task.summary[1] == f"classes of the masks: 0, 1, 2{words}"
    assert labels_of(make_task(tmp_path, "task_options.kind=classes")) == (0, 1, 2, 255)
    assert labels_of(make_task(tmp_path, "task_options.ignored=2")) == (0, 1)


def test_masks_as_test_data_have_the_classes_of_training(tmp_path):
    train, test = write(tmp_path / "a", lambda classes: classes), write(tmp_path / "b", with_border)
    options = ("task_options.duplicates=keep", f"task_options.data_test={test}")
    task = make_task(train, *options)
    assert [len(part) for part in task.splits_in_use] == [8, 2, 10]
    assert set(task.test_split.targets.unique().tolist()) == {-100, 0, 1, 2}
    save(test / "masks" / "3.png", 9 + next(classes_of_images()))
    message = r"classes of the training masks \(0, 1, 2\), got 10, 9 in that of images/3.png"
    with pytest.raises(UserError, match=message):
        make_task(train, *options)


def test_summary_of_masks_names_what_is_left_out(tmp_path):
    write(tmp_path, lambda classes: classes)
    save(tmp_path / "masks" / "1.png", np.zeros((6, 8), dtype=np.uint8))
    (tmp_path / "masks" / "2.png").rename(tmp_path / "masks" / "other.png")
    save(tmp_path / "overlays" / "3.png", 7)
    save(tmp_path / "masks" / "4.jpg", np.zeros((12, 16), dtype=np.uint8))
    save(tmp_path / "masks" / "5.tif", np.full((12, 16), 0.5, dtype=np.float32))
    (tmp_path / "masks" / "5.png").unlink()
    (tmp_path / "masks" / "6.png").write_text("no image")
    line = make_task(tmp_path).summary[0]
    assert line.startswith("5 images with a mask read (train: 5); left out: ")
    for reason in (
        "1 in other folders (overlays/3.png)",
        "1 with the name of another mask (masks/4.png)",
        "1 without a mask (images/2.png)",
        "1 without an image (masks/other.png)",
        "4 damaged (images/1.png: ValueError expected a mask of 12 x 16 as its image, got 6 x 8",
        "images/4.png: ValueError expected a mask in a format without losses such as PNG, got JPEG",
        "images/5.png: ValueError expected whole numbers",
        "images/6.png: UnidentifiedImageError",
    ):
        assert reason in line


def test_masks_are_resized_without_new_values(tmp_path):
    write(tmp_path, lambda classes: (100 * classes)[::2, ::2])
    with pytest.raises(UserError, match="expected images and masks that can be read, got none for training"):
        make_task(tmp_path)
    task = make_task(tmp_path, "task_options.size=6")
    assert str(task.output_shape) == "image [3, 6, 6]"
    assert labels_of(task) == (0, 100, 200)


def test_masks_as_numbers(tmp_path):
    task = make_task(write(tmp_path, lambda classes: COLOURS[classes]), "task_options.kind=numbers")
    assert str(task.output_shape) == "image [3, 12, 16]"
    assert "targets: 3 numbers at each of 12 x 16 positions" in task.summary
    red = (task.train.inputs[:, 0] * 255 / 100).long() == 1
    assert bool((task.train.targets[:, 0][red] > task.train.targets[:, 0][~red].max()).all())


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (lambda classes: classes * 0, "expected different targets, got only 0"),
        (lambda classes: np.arange(192).reshape(12, 16).astype(np.uint16) * 9 % 311, "at most 256 classes, got"),
    ],
)
def test_masks_that_do_not_fit_raise(tmp_path, form, message):
    if "256" in message:
        for k in range(NUM):
            save(tmp_path / "images" / f"{k}.png", np.full((20, 20), k, dtype=np.uint8))
            save(tmp_path / "masks" / f"{k}.png", np.arange(400, dtype=np.uint16).reshape(20, 20))
    else:
        write(tmp_path, form)
    with pytest.raises(UserError, match=re.escape(message)):
        make_task(tmp_path)
