"""Labelled examples from files: IDX (the format of MNIST), npz, CSV, folders of images by pillow (extra [images])."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from gflownet.errors import UserError
from gflownet.evaluation.labelled_arrays import LabelledArrays, labelled
from gflownet.evaluation.table_files import Reading, read_table
from gflownet.files import read_bytes

ENDINGS = (".png", ".jpg", ".jpeg")
_GREY = ("1", "L")


def is_image_folder(folder: Path) -> bool:
    """Return whether a folder holds folders of images, or such a folder with the name train."""
    return any(_files(folder)) or any(_files(folder / "train"))


def read_images(folder: Path, *, where: str, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images [N, C, H, W] as bytes, grey or RGB, and their classes [N]; `size` 0: they are not resized.

    Raises:
        UserError: pillow is missing, a damaged file, or images of different sizes without `size`.
    """
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise UserError(f"{where}: expected the package pillow, got none: pip install 'gflownet[images]'") from None
    images, classes = [], []
    for path in _files(folder):
        try:
            with Image.open(path) as image:
                if image.mode[0] in "IF":
                    raise OSError(f"more than 8 bits per pixel ({image.mode}), which an npz file takes")
                image = image.convert("L" if image.mode in _GREY else "RGB")
                images.append(np.asarray(image.resize((size, size)) if size else image))
        except OSError as error:
            raise UserError(f"{where}: {path.name}: expected an image, got {type(error).__name__}: {error}") from None
        (height, width), other = images[0].shape[:2], images[-1].shape[:2]
        if other != (height, width):
            got = f"{height} x {width} and {other[0]} x {other[1]}"
            raise UserError(
                f"{where}: {path.name}: expected images of one size, got {got}; task_options.size=32 resizes them"
            )
        classes.append(path.parent.name)
    has_colours = any(image.ndim == 3 for image in images)
    arrays = [image if image.ndim == 3 else image[..., None].repeat(3 if has_colours else 1, 2) for image in images]
    return np.stack(arrays).transpose(0, 3, 1, 2), np.array(classes)


def _files(folder: Path) -> Iterator[Path]:
    """Yield the images of the folders of a folder, sorted."""
    return (path for path in sorted(folder.glob("*/*")) if path.suffix.lower() in ENDINGS)


# Type codes of the IDX format (LeCun, Cortes and Burges 1998).
_IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_IDX_TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
_IDX_TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
# Names of the arrays of an npz file, by the part of the data.
_NPZ_PAIRS = (("x_train", "y_train"), ("x", "y"), ("inputs", "targets"), ("images", "labels"))
_NPZ_TEST_PAIRS = (("x_test", "y_test"),)
# `labelled` with the options of a file.
Labels = Callable[..., LabelledArrays]


def read_file(
    path: str, *, key: str, reading: Reading | None = None, train: LabelledArrays | None = None
) -> LabelledArrays:
    """Return the examples of a CSV, Parquet or npz file, an IDX file of images, or a folder of IDX or image files.

    Args:
        path: its ending names the format: .csv, .tsv, .parquet, .npz, idx3-ubyte; .gz is unpacked.
        key: option that names it, for errors.
        reading: options of files; None: the defaults.
        train: training examples of which these are the test examples: columns, classes and scale are theirs.

    Raises:
        UserError: a missing or damaged file, missing columns or arrays, or values that are no numbers.
    """
    file = Path(path)
    if not file.exists():
        raise UserError(f"{key}: no such file: {path}")
    name, reading = file.name.removesuffix(".gz"), reading or Reading()
    labels = partial(labelled, kind=reading.kind, where=f"{key}: {path}")
    try:
        if file.is_dir() and is_image_folder(file):
            return _image_folder(file, labels, where=f"{key}: {path}", size=reading.size, train=train)
        if file.is_dir():
            return _idx_folder(file, labels, key=key, train=train)
        if name.endswith((".csv", ".tsv", ".txt", ".parquet")):
            return read_table(file, key=key, reading=reading, train=train)
        if name.endswith(".npz"):
            return _npz(file, labels, key=key, train=train)
        if "idx" in name:
            return _idx_pair(file, labels, key=key, train=train)
    except UserError:
        raise
    except Exception as error:  # a damaged file: readers raise errors of many kinds
        text = " ".join(str(error).split())
        raise UserError(f"{key}: {path}: expected a readable file, got {type(error).__name__}: {text}") from None
    raise UserError(
        f"{key}: expected a file .csv, .parquet, .npz or idx3-ubyte, or a folder of idx or image files, got {path}"
    )


def _image_folder(
    folder: Path, labels: Labels, *, where: str, size: int, train: LabelledArrays | None
) -> LabelledArrays:
    """Return the images of class folders, or of class folders in train and test."""
    parts = [part for part in (folder / "train", folder / "test") if is_image_folder(part)]
    first, *tests = [read_images(part, where=where, size=size) for part in parts or [folder]]
    arrays = labels(*first, train=train)
    return replace(arrays, test=labels(*tests[0], train=arrays)) if tests else arrays


def _idx_folder(folder: Path, labels: Labels, *, key: str, train: LabelledArrays | None) -> LabelledArrays:
    images, test = ([_idx_path(folder, name) for name in names] for names in (_IDX_TRAIN, _IDX_TEST))
    if None in images:
        raise UserError(f"{key}: {folder}: expected the files {' and '.join(_IDX_TRAIN)}, with or without .gz")
    arrays = _of_file(labels, *(_idx(path, key=key) for path in images if path is not None), train=train)
    if None in test:
        return arrays
    tested = _of_file(labels, *(_idx(path, key=key) for path in test if path is not None), train=arrays)
    return replace(arrays, test=tested)


def _idx_path(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _idx_pair(images: Path, labels: Labels, *, key: str, train: LabelledArrays | None) -> LabelledArrays:
    classes = images.with_name(images.name.replace("images", "labels").replace("idx3", "idx1"))
    if classes == images or not classes.is_file():
        raise UserError(f"{key}: {images}: expected labels in {classes.name}, got no such file")
    return _of_file(labels, _idx(images, key=key), _idx(classes, key=key), train=train)


def _idx(path: Path, *, key: str) -> np.ndarray:
    content = read_bytes(path)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _IDX_TYPES:
        raise UserError(f"{key}: {path}: expected an IDX file, got another format")
    start = 4 + 4 * content[3]
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", content[3], 4)) if len(content) >= start else ()
    kind = np.dtype(_IDX_TYPES[content[2]])
    expected = start + kind.itemsize * int(np.prod(shape, dtype=np.int64))
    if not shape or len(content) != expected:
        raise UserError(f"{key}: {path}: expected {expected} bytes for the shape {list(shape)}, got {len(content)}")
    return np.frombuffer(content, kind, offset=start).reshape(shape).astype(kind.newbyteorder("="))


def _npz(path: Path, labels: Labels, *, key: str, train: LabelledArrays | None) -> LabelledArrays:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        names = set(arrays.files)
        pair = next((pair for pair in _NPZ_PAIRS if names >= set(pair)), None)
        if pair is None:
            expected = ", ".join(" and ".join(pair) for pair in _NPZ_PAIRS)
            raise UserError(f"{key}: {path}: expected the arrays {expected}, got {', '.join(sorted(names)) or 'none'}")
        result = _of_file(labels, arrays[pair[0]], arrays[pair[1]], train=train)
        tested = next((pair for pair in _NPZ_TEST_PAIRS if names >= set(pair)), None)
        if tested is None:
            return result
        return replace(result, test=_of_file(labels, arrays[tested[0]], arrays[tested[1]], train=result))


def _of_file(
    labels: Labels, inputs: np.ndarray, targets: np.ndarray, *, train: LabelledArrays | None
) -> LabelledArrays:
    """Return the arrays of a file as examples; images without a channel get one."""
    arrays = labels(inputs, targets, train=train)
    is_grey = arrays.inputs.ndim == 3 and np.issubdtype(arrays.inputs.dtype, np.floating)
    return replace(arrays, inputs=arrays.inputs[:, None]) if is_grey else arrays
