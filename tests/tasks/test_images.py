"""Images and signals of one's own: folders, their summary, numbers as targets, signals, predictions of raw files."""

import json
import os
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unicodedata import normalize

import numpy as np
import pytest
import torch

import gflownet
from gflownet.config import load_config, with_task_options
from gflownet.errors import UserError
from gflownet.evaluation.data.datasets import load_splits
from gflownet.evaluation.data.examples import Splits
from gflownet.evaluation.presentation import references_of
from tasks.images import ImagesConfig, ImagesTask
from tests.evaluation.test_tensor_task import network
from tests.tasks.test_table import run_folder

Image = pytest.importorskip("PIL.Image")


def make_task(path: Any, *overrides: str) -> ImagesTask:
    config = load_config("images", [f"task_options.data={path}", *overrides])
    return ImagesTask(with_task_options(config, ImagesConfig))


def labels_of(task: ImagesTask) -> Any:
    assert task.splits_in_use.arrays is not None
    return task.splits_in_use.arrays.target.labels


def load(path: Path, **options: Any) -> Splits:
    return load_splits(str(path), **{"key": "task_options.data", "seed": 0, "duplicates": "keep"} | options)


def all_images(path: Path, **options: Any) -> torch.Tensor:
    return torch.cat([part.inputs for part in load(path, **options)])


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
    splits = load(write_images(tmp_path / "a", colour=colour, ending=ending), duplicates="refuse")
    assert (splits.num_outputs, tuple(splits.train.example.shape)) == (2, (channels, 6, 8))
    for part in splits:
        assert torch.equal(part.targets, (part.inputs.mean((1, 2, 3)) * 255 > 50).long())


def test_class_folders_in_train_and_test(tmp_path):
    write_images(tmp_path / "train")
    write_images(tmp_path / "test", num=3)
    splits = load(tmp_path)
    assert [len(part) for part in splits] == [16, 4, 6]


def test_grey_and_coloured_images_of_several_sizes_are_resized(tmp_path):
    write_images(tmp_path)
    Image.fromarray(np.zeros((20, 20, 4), dtype=np.uint8)).save(tmp_path / "dog" / "large.png")
    message = "of one size, got 6 x 8 (cat/00.png), 20 x 20 (dog/large.png); task_options.size=32 resizes them"
    with pytest.raises(UserError, match=re.escape(message)):
        make_task(tmp_path)
    assert make_task(tmp_path, "task_options.size=5", "task_options.duplicates=keep").train.inputs.shape[1:] == (
        3,
        5,
        5,
    )


def save(path: Path, pixels: Any, **options: Any) -> Path:
    """Write an image of 6 x 8 of one value, or of pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((6, 8), pixels, dtype=np.uint8) if np.ndim(pixels) == 0 else pixels
    (pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)).save(path, **options)
    return path


def test_summary_of_a_folder_names_what_is_left_out(tmp_path):
    folder = write_images(tmp_path)
    endings = ("webp", "tif", "bmp", "gif", "ppm", "tga", "JPEG", "jp2")
    for k, ending in enumerate(endings):
        save(folder / "eel ß" / "nested" / f"{k}.{ending}", 20 + k)
    frames = [Image.new("L", (8, 6), k) for k in (50, 200)]
    frames[0].save(folder / "eel ß" / "moving.gif", save_all=True, append_images=frames[1:])
    for hidden in (".ipynb_checkpoints/x.png", ".git/a/b.png", "cat/._01.png", "__MACOSX/cat/01.png"):
        save(folder / hidden, 0)
    (folder / "cat" / "zz.png").write_text("no image")
    content = (folder / "dog" / "00.png").read_bytes()
    (folder / "dog" / "cut.png").write_bytes(content[: len(content) // 2])
    (folder / "empty").mkdir()
    save(folder / "above.png", 0)
    splits = load(folder)
    line, *_ = splits.summary
    assert line.startswith(
        "29 images read (train: 29; cat: 10, dog: 10, eel ß: 9); 1 first of several frames; left out: "
    )
    for reason in (
        "4 hidden (.git, .ipynb_checkpoints, __MACOSX, cat/._01.png)",
        "1 without the ending of an image (cat/notes.txt)",
        "1 in no class folder (above.png)",
        "1 without images (empty)",
        "2 damaged (cat/zz.png: UnidentifiedImageError cannot identify",
        "dog/cut.png: ",
    ):
        assert reason in line
    assert splits.arrays is not None
    assert splits.arrays.target.labels == ("cat", "dog", "eel ß")
    eels = torch.cat([part.inputs[part.targets == 2] for part in splits])[:, 0, 3, 4] * 255
    torch.testing.assert_close(eels.sort().values, torch.tensor([*range(20, 28), 50.0]), atol=2, rtol=0)


def test_orientation_of_exif_is_applied(tmp_path):
    upright = np.zeros((6, 8), dtype=np.uint8)
    upright[:3] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    for k in range(6):
        save(tmp_path / "a" / f"{k}.jpg", np.rot90(upright, 1).copy(), exif=exif, quality=95)
        save(tmp_path / "b" / f"{k}.png", upright)
    images = all_images(tmp_path)
    torch.testing.assert_close(images, torch.from_numpy(upright / 255).float().expand_as(images), atol=0.02, rtol=0)
    assert "6 turned upright by EXIF; left out: none" in load(tmp_path).summary[0]


@pytest.mark.parametrize(
    ("alpha", "expected"),
    [("white", [[255] * 3, [0] * 3]), ("#ff0000", [[255, 0, 0], [0] * 3]), ("keep", [[0] * 4, [0, 0, 0, 255]])],
)
def test_alpha_is_composed_on_a_colour(tmp_path, alpha, expected):
    drawing = np.zeros((6, 8, 4), dtype=np.uint8)
    drawing[2:, :, 3] = 255
    palette = Image.fromarray(drawing).quantize()
    for k in range(6):
        save(tmp_path / "a" / f"{k}.png", drawing)
        save(tmp_path / "b" / f"{k}.png", palette)
    images = all_images(tmp_path, alpha=alpha) * 255
    assert images.shape[1] == len(expected[0])
    assert torch.equal(images[:, :, 0, 0], torch.tensor(expected[0]).float().expand(12, -1))
    assert torch.equal(images[:, :, 3, 0], torch.tensor(expected[1]).float().expand(12, -1))


def test_unknown_colour_raises(tmp_path):
    with pytest.raises(UserError, match=r"^task_options.alpha: expected a colour such as white or .*, got 'whit'$"):
        make_task(write_images(tmp_path), "task_options.alpha=whit")


def test_grey_drawing_on_alpha_stays_grey(tmp_path):
    for k in range(6):
        save(tmp_path / "a" / f"{k}.png", Image.new("LA", (8, 6), (90, 0)))
        save(tmp_path / "b" / f"{k}.png", 7)
    assert {float(image[0, 0, 0]) for image in all_images(tmp_path) * 255} == {255.0, 7.0}


def test_16_bits_and_floats_are_scaled(tmp_path):
    deep, unit = np.full((6, 8), 40_000, dtype=np.uint16), np.full((6, 8), 0.25, dtype=np.float32)
    for k in range(6):
        save(tmp_path / "a" / f"{k}.png", deep)
        save(tmp_path / "b" / f"{k}.tif", unit if k % 2 else deep)
    save(tmp_path / "b" / "celsius.tif", unit * 100)
    images, (line, *_) = all_images(tmp_path), load(tmp_path).summary
    assert images[:, 0, 0, 0].unique().tolist() == pytest.approx([0.25, 40_000 / 65_535])
    assert "1 damaged (b/celsius.tif: ValueError expected values from 0 to 1, got 25 to 25; an npz file takes" in line
    resized = all_images(tmp_path, size=4)
    assert (tuple(resized.shape[1:]), float(resized.max())) == ((1, 4, 4), pytest.approx(40_000 / 65_535))


def test_cmyk_and_palettes_become_rgb(tmp_path):
    for k in range(6):
        save(tmp_path / "a" / f"{k}.tif", Image.new("CMYK", (8, 6), (0, 255, 255, 0)))
        save(tmp_path / "b" / f"{k}.png", Image.new("RGB", (8, 6), (0, 0, 255)).quantize())
        save(tmp_path / "c" / f"{k}.png", 51)
    pixels = {tuple(image[:, 0, 0].round().int().tolist()) for image in all_images(tmp_path) * 255}
    assert pixels == {(255, 0, 0), (0, 0, 255), (51, 51, 51)}


@pytest.mark.parametrize("form", ["{0}/{1}", "{1}/{0}"])
def test_folders_of_splits(tmp_path, form):
    for split, num in {"Train": 10, "valid": 4, "test": 3}.items():
        for value, name in enumerate(("cat", "dog")):
            for k in range(num):
                save(tmp_path / form.format(split, name) / f"{k}.png", 100 * value + k)
    splits = load(tmp_path)
    assert [len(part) for part in splits] == [20, 8, 6]
    for part in splits:
        assert torch.equal(part.targets, (part.inputs.mean((1, 2, 3)) * 255 > 50).long())
    assert splits.summary[0].startswith("34 images read (")
    shutil.rmtree(tmp_path / "test", ignore_errors=True)
    if form == "{0}/{1}":  # tests are a fifth of the training images
        assert [len(part) for part in load(tmp_path)] == [16, 8, 4]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ((), "expected images in a folder per class, or folders images and masks, also in train, val and test, or IDX"),
        (("a.png", "b.png"), "got none for training"),
        (("test/cat/a.png", "val/cat/a.png"), "got none for training"),
        (("train/cat/a.png", "train/dog/a.png", "val/fox/a.png"), "the classes cat, dog, got some of fox"),
        (("cat/a.png", "dog/damaged.png"), "expected images of the classes cat, dog, got none that can be read of dog"),
        (tuple(f"cat/{k}.png" for k in range(9)), "expected different targets, got only cat"),
        (tuple(f"{name}/a.png" for name in "ab"), "expected at least 5 examples, got 2"),
    ],
)
def test_folders_that_do_not_fit_raise_after_their_summary(tmp_path, files, message):
    for name in files:
        save(tmp_path / name, 7)
        if "damaged" in name:
            (tmp_path / name).write_bytes(b"")
    with pytest.raises(UserError, match=re.escape(message)) as raised:
        load(tmp_path)
    assert re.match(r"\d+ images? read|0 images read", raised.value.summary[0])
    assert "\n" not in str(raised.value)


def test_links_are_followed_and_loops_are_not(tmp_path):
    write_images(tmp_path / "store")
    (tmp_path / "data").mkdir()
    for name in ("cat", "dog"):
        os.symlink(tmp_path / "store" / name, tmp_path / "data" / name)
    os.symlink(tmp_path / "data", tmp_path / "store" / "cat" / "loop")
    os.symlink(tmp_path / "nowhere.png", tmp_path / "data" / "dog" / "gone.png")
    splits = load(tmp_path / "data")
    assert splits.summary[0].startswith(
        "20 images read (train: 20; cat: 10, dog: 10); left out: 1 linked twice (cat/loop), "
    )
    assert splits.summary[0].endswith(
        ", 1 damaged (dog/gone.png: FileNotFoundError [Errno 2] No such file or directory:)"
    )


def test_classes_are_in_the_order_of_numbers_and_equal_in_both_forms_of_unicode(tmp_path):
    names = ("10", "9", "K\u00fche", "1_2", "01")
    for k in range(3):
        for place, name in enumerate(names):
            save(tmp_path / "train" / name / f"{k}.png", 20 * place + k)
            save(tmp_path / "test" / normalize("NFD", name) / f"{k}.png", 20 * place + k)
    splits = load(tmp_path)
    assert splits.arrays is not None
    assert splits.arrays.target.labels == ("01", "9", "10", "1_2", "K\u00fche")
    assert splits.test.targets.unique().tolist() == [0, 1, 2, 3, 4]


def test_images_that_do_not_fit_into_memory_raise(tmp_path, monkeypatch):
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=1000))
    with pytest.raises(UserError, match=r"fit into memory, got 20 of 6 x 8 \(0 GB\); task_options.size=64 resizes"):
        load(write_images(tmp_path))


def test_test_folder_has_the_classes_and_channels_of_the_training_folder(tmp_path):
    train, test = write_images(tmp_path / "a"), write_images(tmp_path / "b", num=2, colour=True)
    splits = load(train, test=str(test))
    assert [len(part) for part in splits] == [16, 4, 4]
    assert splits.test.inputs.shape[1:] == (1, 6, 8)
    assert "2 images read" not in splits.summary[0]
    save(test / "fox" / "a.png", 7)
    with pytest.raises(UserError, match=r"^task_options.data_test: .*classes cat, dog, got some of fox$"):
        load(train, test=str(test))


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
    assert next(reference.name for reference in references_of(task, seeds=[0])) == "scikit-learn RandomForest"


@pytest.mark.parametrize("shape", [(60, 12), (60, 1, 12), (60, 3, 12)])
def test_signals(tmp_path, shape):
    np.savez(tmp_path / "a.npz", x=np.random.default_rng(0).normal(size=shape), y=np.arange(60) % 2)
    task = make_task(tmp_path / "a.npz", "task_options.layout=signal")
    assert str(task.input_shape) == f"signal [{1 if len(shape) == 2 else shape[1]}, 12]"


@pytest.mark.parametrize(
    ("shape", "options"), [((60, 4, 5, 6), ["task_options.layout=volume"]), ((60, 2, 4, 5, 6), [])]
)
def test_volumes(tmp_path, shape, options):
    np.savez(tmp_path / "a.npz", x=np.random.default_rng(0).normal(size=shape), y=np.arange(60) % 2)
    task = make_task(tmp_path / "a.npz", "evaluation.memory_format=auto", *options)
    assert str(task.input_shape) == f"volume [{1 if len(shape) == 4 else 2}, 4, 5, 6]"
    assert task.config.evaluation.memory_format == "contiguous"
    assert not any("layout=" in line for line in task.summary)
    with pytest.raises(
        UserError, match=r"evaluation.memory_format: expected contiguous for volume .*, got channels_last"
    ):
        make_task(tmp_path / "a.npz", "evaluation.memory_format=channels_last", *options)


def test_volumes_with_their_channels_on_the_last_axis(tmp_path):
    values = np.random.default_rng(0).normal(size=(60, 5, 6, 7, 1)).astype("f4")
    np.savez(tmp_path / "a.npz", x=values, y=np.arange(60) % 2)
    task = make_task(tmp_path / "a.npz")
    assert str(task.input_shape) == "volume [1, 5, 6, 7]"
    assert "volumes [5, 6, 7, 1]: the last axis is that of channels" in task.summary


def test_targets_per_voxel(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "a.npz", x=rng.normal(size=(60, 4, 5, 6)), y=rng.integers(0, 3, (60, 4, 5, 6)))
    task = make_task(tmp_path / "a.npz", "task_options.layout=volume", "evaluation.num_epochs=1")
    assert str(task.output_shape) == "volume [3, 4, 5, 6]"
    assert next(reversed(references_of(task, seeds=[0]))).name.startswith("linear at each position")


def test_channels_of_signals_keep_their_values(monkeypatch):
    signals = np.random.default_rng(0).normal(size=(60, 3, 12)).astype(np.float32)
    monkeypatch.setitem(sys.modules, "signals", SimpleNamespace(load=lambda: (signals, np.arange(60) % 2)))
    train = make_task("signals:load", "task_options.layout=signal").train
    assert train.example.shape == (3, 12)
    assert any(np.array_equal(train.example.numpy(), each) for each in signals)


def medmnist(path: Path, *, colour: bool = True) -> Path:
    rng, shape = np.random.default_rng(0), (8, 8, 3) if colour else (8, 8)
    arrays = {}
    for split, num in {"train": 40, "val": 12, "test": 10}.items():
        arrays[f"{split}_labels"] = (np.arange(num) % 2).astype(np.uint8)[:, None]
        noise = rng.integers(0, 60, (num, *shape))
        arrays[f"{split}_images"] = (noise + 150 * (np.arange(num) % 2).reshape(-1, *[1] * len(shape))).astype(np.uint8)
    np.savez(path, **arrays)
    return path


def test_npz_of_medmnist_keeps_its_splits(tmp_path):
    task = make_task(medmnist(tmp_path / "a.npz"))
    assert [len(part) for part in task.splits_in_use] == [40, 12, 10]
    assert str(task.input_shape) == "image [3, 8, 8]"
    for part in task.splits_in_use:
        assert torch.equal(part.targets, (part.inputs.mean((1, 2, 3)) * 255 > 100).long())
    assert task.summary == (
        "arrays read: train_images and train_labels [40, 8, 8, 3], val_images and val_labels [12, 8, 8, 3], "
        "test_images and test_labels [10, 8, 8, 3]; left out: none",
        "splits, stratified by class:",
        "  training    40 rows, classes 0: 20, 1: 20",
        *task.summary[3:5],
        "images [8, 8, 3]: the last axis is that of channels",
    )
    assert str(make_task(medmnist(tmp_path / "b.npz", colour=False)).input_shape) == "image [1, 8, 8]"


def write_ucr(folder: Path, *, first: float = 1, ending: str = ".tsv") -> Path:
    """Write two files as in the UCR archive, of two classes with another mean each."""
    rng = np.random.default_rng(0)
    for part, num in {"TRAIN": 40, "TEST": 20}.items():
        classes = np.arange(num) % 2
        rows = np.c_[classes + first, rng.normal(size=(num, 12)) + 5 * classes[:, None]]
        np.savetxt(folder / f"Gun_{part}{ending}", rows, delimiter="\t", fmt="%.7e" if ending == ".txt" else "%g")
    return folder / f"Gun_TRAIN{ending}"


@pytest.mark.parametrize("ending", [".tsv", ".txt"])
def test_signals_of_the_ucr_archive(tmp_path, ending):
    task = make_task(write_ucr(tmp_path, ending=ending))
    assert [len(part) for part in task.splits_in_use] == [32, 8, 20]
    assert str(task.input_shape) == "signal [1, 12]"
    for part in task.splits_in_use:
        assert torch.equal(part.targets, (part.inputs.mean((1, 2)) > 2.5).long())
    assert labels_of(task) == (1, 2)
    assert "Gun_TRAIN.tsv: 40 signals of 12 values read, the first column is the target; left out: none" in (
        line.replace(".txt", ".tsv") for line in task.summary
    )
    assert "targets 1.0, 2.0 are classes; task_options.kind=numbers takes them as numbers" in task.summary
    assert make_task(tmp_path / f"Gun_TRAIN{ending}", "task_options.kind=numbers").train.targets.is_floating_point()


def test_whole_numbers_of_signals_are_classes(tmp_path):
    signals = np.random.default_rng(0).normal(size=(60, 12))
    np.savez(tmp_path / "a.npz", x=signals, y=np.arange(60) % 3 + 1.0, fs=np.array(8))
    task = make_task(tmp_path / "a.npz", "task_options.layout=signal")
    assert (task.num_outputs, labels_of(task)) == (3, (1, 2, 3))
    assert task.summary[0] == "arrays read: x and y [60, 12]; left out: fs"
    assert task.summary[1].startswith("targets 1.0, 2.0, 3.0 are classes; ")
    np.savez(tmp_path / "a.npz", x=signals, y=np.arange(60) % 3 + 0.5)
    assert make_task(tmp_path / "a.npz", "task_options.layout=signal").train.targets.is_floating_point()


@pytest.mark.parametrize(
    ("targets", "labels"), [(np.arange(60) % 3 + 1, (1, 2, 3)), (np.eye(3, dtype="f4")[np.arange(60) % 3], ())]
)
def test_one_hot_floats_and_classes_counted_from_one(tmp_path, targets, labels):
    np.savez(tmp_path / "a.npz", X=np.random.default_rng(0).normal(size=(60, 3, 12)), y=targets)
    task = make_task(tmp_path / "a.npz")
    assert (task.num_outputs, labels_of(task)) == (3, labels)
    assert task.train.targets.bincount().tolist() == [12] * 3
    assert task.summary[-1] == "grey images of 3 x 12; task_options.layout=signal reads [3, 12] as a signal"
    signals = make_task(tmp_path / "a.npz", "task_options.layout=signal")
    assert signals.summary[-1] == "signals of 3 x 12 values"


def test_loaded_model_predicts_classes_of_files_and_arrays(tmp_path):
    folder = write_images(tmp_path / "data", num=20, colour=True)
    task = make_task(
        folder, "task_options.normalise=channel", "evaluation.num_epochs=6", "task_options.duplicates=keep"
    )
    model: Any = gflownet.load(run_folder(tmp_path, task, network(2, (3, 6, 8))))
    assert list(model.class_names) == ["cat", "dog"]
    paths = sorted(folder.glob("*/*.png"))
    pixels = np.stack([np.asarray(Image.open(path)) for path in paths])
    expected = [path.parent.name for path in paths]
    assert np.mean(model.predict(paths) == expected) > 0.9
    for same in (map(str, paths), map(Image.open, paths), pixels, pixels.transpose(0, 3, 1, 2), pixels / 255):
        assert np.array_equal(model.predict(same), model.predict(paths))
    inputs = torch.from_numpy(model.arrays.encoded(paths))
    (brightest,) = (part for part in inputs if torch.equal(part, inputs[-1]))
    assert any(torch.equal(brightest, each) for part in task.splits_in_use for each in part.inputs)
    assert list(model.predict(paths[-1])) == [model.predict(paths)[-1]]
    with pytest.raises(ValueError, match=r"^expected inputs \[3, 6, 8\], got \[3, 9, 9\] of uint8$"):
        model.predict(np.zeros((2, 3, 9, 9), dtype=np.uint8))


def test_loaded_model_predicts_numbers_in_the_units_of_the_data(tmp_path):
    images = np.random.default_rng(0).random((80, 6, 6)).astype(np.float32)
    targets = 1000 + 500 * images.mean((1, 2))
    np.savez(tmp_path / "a.npz", x=images, y=targets)
    task = make_task(tmp_path / "a.npz", "evaluation.num_epochs=2")
    model: Any = gflownet.load(run_folder(tmp_path, task, network(1)))
    assert list(model.class_names) == []
    assert 1000 < model.predict(images).mean() < 1500


@pytest.mark.slow
def test_classes_of_digits_are_numbers(finished_runs):
    folder = finished_runs("images")
    entry = json.loads((folder / "top_architectures.json").read_text())[0]
    assert entry["arrays"]["target"]["labels"] == list(range(10))
    model: Any = gflownet.load(folder)
    assert list(model.class_names) == list(range(10)) == list(gflownet.load(folder, set=True).class_names)
    images = torch.rand(3, 1, 8, 8)
    assert model.predict(images).tolist() == model(images).argmax(1).tolist()


@pytest.mark.parametrize("names", [("training_set", "test_set"), ("seg_train", "seg_test"), ("TRAIN", "Testing")])
def test_names_of_split_folders(tmp_path, names):
    for name in names:
        write_images(tmp_path / name, num=5)
    assert [len(part) for part in load(tmp_path)] == [8, 2, 10]


def test_class_with_the_name_of_a_split(tmp_path):
    for place, name in enumerate(("bus", "train")):
        for k in range(6):
            save(tmp_path / name / f"{k}.png", 100 * place + k)
    line, *_ = load(tmp_path).summary
    assert line == "12 images read (train: 12; bus: 6, train: 6); left out: none"
