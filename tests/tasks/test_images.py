"""Images and signals of one's own: class folders, numbers as targets, signals."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gflownet.config import load_config, with_task_options
from gflownet.errors import UserError
from gflownet.evaluation.data.datasets import load_splits
from tasks.images import ImagesConfig, ImagesTask
from tests.evaluation.test_tensor_task import network

Image = pytest.importorskip("PIL.Image")


def make_task(path: Any, *overrides: str) -> ImagesTask:
    config = load_config("images", [f"task_options.data={path}", *overrides])
    return ImagesTask(with_task_options(config, ImagesConfig))


def write_images(folder: Path, num: int = 10, *, colour: bool = False, side: int = 6, ending: str = "png") -> Path:
    """Write images of two classes, each of one brightness."""
    for number, name in enumerate(("cat", "dog")):
        (folder / name).mkdir(parents=True)
        for k in range(num):
            pixels = np.full((side, side + 2, 3) if colour else (side, side + 2), 100 * number + k, dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{k:02}.{ending}")
    (folder / "cat" / "notes.txt").write_text("no image")
    return folder


@pytest.mark.parametrize(("colour", "ending", "channels"), [(False, "png", 1), (True, "png", 3), (True, "jpg", 3)])
def test_class_folders(tmp_path, colour, ending, channels):
    splits = load_splits(str(write_images(tmp_path / "a", colour=colour, ending=ending)), key="data", seed=0)
    assert (splits.num_outputs, tuple(splits.train.example.shape)) == (2, (channels, 6, 8))
    for part in splits:
        assert torch.equal(part.targets, (part.inputs.mean((1, 2, 3)) * 255 > 50).long())


def test_class_folders_in_train_and_test(tmp_path):
    write_images(tmp_path / "train")
    write_images(tmp_path / "test", num=3)
    splits = load_splits(str(tmp_path), key="data", seed=0, duplicates="keep")
    assert [len(part) for part in splits] == [16, 4, 6]


def test_grey_and_coloured_images_of_several_sizes_are_resized(tmp_path):
    write_images(tmp_path)
    Image.fromarray(np.zeros((20, 20, 4), dtype=np.uint8)).save(tmp_path / "dog" / "large.png")
    message = "large.png: expected images of one size, got 6 x 8 and 20 x 20; task_options.size=32 resizes them"
    with pytest.raises(UserError, match=re.escape(message)):
        make_task(tmp_path)
    assert make_task(tmp_path, "task_options.size=5", "task_options.duplicates=keep").train.inputs.shape[1:] == (
        3,
        5,
        5,
    )


def test_damaged_image_raises(tmp_path):
    (write_images(tmp_path) / "cat" / "zz.png").write_text("no image")
    with pytest.raises(UserError, match=r"^task_options.data: .*: zz.png: expected an image, got Unidentified"):
        make_task(tmp_path)


def test_image_of_16_bits_raises(tmp_path):
    Image.fromarray(np.full((6, 8), 40_000, dtype=np.uint16)).save(write_images(tmp_path) / "cat" / "zz.png")
    with pytest.raises(UserError, match=r"zz.png: .*more than 8 bits per pixel \(I;16\), which an npz file takes$"):
        make_task(tmp_path)


def test_missing_pillow_names_the_extra(tmp_path, monkeypatch):
    write_images(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UserError, match=r"expected the package pillow, got none: pip install 'gflownet\[images\]'$"):
        make_task(tmp_path)


def test_numbers_of_images_train_with_the_shipped_config(tmp_path):
    images = np.random.default_rng(0).normal(size=(60, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "a.npz", x=images, y=images.mean((1, 2)) * 100)
    task = make_task(tmp_path / "a.npz")
    assert task.config.evaluation.training.label_smoothing > 0
    assert float(task.train.targets.std(0, correction=0)) == pytest.approx(1)
    assert task.evaluate(network(1, (1, 8, 8)), seed=0).value > 0.2
    assert next(reference.name for reference in task.references(seeds=[0])) == "scikit-learn RandomForest"


@pytest.mark.parametrize("shape", [(60, 12), (60, 1, 12), (60, 3, 12)])
def test_signals(tmp_path, shape):
    np.savez(tmp_path / "a.npz", x=np.random.default_rng(0).normal(size=shape), y=np.arange(60) % 2)
    task = make_task(tmp_path / "a.npz", "task_options.layout=signal")
    assert str(task.input_shape) == f"signal [{1 if len(shape) == 2 else shape[1]}, 12]"


def test_channels_of_signals_keep_their_values(monkeypatch):
    signals = np.random.default_rng(0).normal(size=(60, 3, 12)).astype(np.float32)
    monkeypatch.setitem(sys.modules, "signals", SimpleNamespace(load=lambda: (signals, np.arange(60) % 2)))
    train = make_task("signals:load", "task_options.layout=signal").train
    assert train.example.shape == (3, 12)
    assert any(np.array_equal(train.example.numpy(), each) for each in signals)
