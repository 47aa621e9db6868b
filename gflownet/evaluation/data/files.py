"""Labelled examples from files: IDX (the format of MNIST), npz, CSV, folders of images by pillow (extra [images])."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gflownet.errors import UserError
from gflownet.evaluation.data.labelled_arrays import LabelledArrays, labelled
from gflownet.evaluation.data.table_files import Reading, read_table
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
_NPZ_TEST = ("x_test", "y_test")


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
    reading = reading or Reading()
    where = f"{key}: {path}"
    try:
        if not file.is_dir() and file.name.removesuffix(".gz").endswith((".csv", ".tsv", ".txt", ".data", ".parquet")):
            return read_table(file, key=key, reading=reading, train=train)
        examples, *tested = _pairs(file, key=key, size=reading.size)
        arrays = _labelled(*examples, where=where, kind=reading.kind, train=train)
        tests = [_labelled(*each, where=where, kind=reading.kind, train=arrays) for each in tested]
        return replace(arrays, test=tests[0]) if tests else arrays
    except UserError:
        raise
    except Exception as error:  # a damaged file: readers raise errors of many kinds
        text = " ".join(str(error).split())
        raise UserError(f"{where}: expected a readable file, got {type(error).__name__}: {text}") from None


def _labelled(inputs: np.ndarray, targets: np.ndarray, **options: Any) -> LabelledArrays:
    """Return arrays as examples, by the options of `labelled`; images without a channel get one."""
    arrays = labelled(inputs, targets, **options)
    is_grey = arrays.inputs.ndim == 3 and np.issubdtype(arrays.inputs.dtype, np.floating)
    return replace(arrays, inputs=arrays.inputs[:, None]) if is_grey else arrays


def _pairs(file: Path, *, key: str, size: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the inputs and targets of the examples, and those of the test examples if there are any."""
    if file.is_dir() and is_image_folder(file):
        parts = [part for part in (file / "train", file / "test") if is_image_folder(part)]
        return [read_images(part, where=f"{key}: {file}", size=size) for part in parts or [file]]
    if file.is_dir():
        return _idx_folder(file, key=key)
    name = file.name.removesuffix(".gz")
    if name.endswith(".npz"):
        return _npz(file, key=key)
    if "idx" not in name:
        raise UserError(
            f"{key}: expected a file .csv, .parquet, .npz or idx3-ubyte, or a folder of idx or image files, got {file}"
        )
    classes = file.with_name(file.name.replace("images", "labels").replace("idx3", "idx1"))
    if classes == file or not classes.is_file():
        raise UserError(f"{key}: {file}: expected labels in {classes.name}, got no such file")
    return [(_idx(file, key=key), _idx(classes, key=key))]


def _idx_folder(folder: Path, *, key: str) -> list[tuple[np.ndarray, np.ndarray]]:
    files = {path.name.removesuffix(".gz"): path for path in sorted(folder.iterdir(), reverse=True) if path.is_file()}
    if not files.keys() >= set(_IDX_TRAIN):
        raise UserError(f"{key}: {folder}: expected the files {' and '.join(_IDX_TRAIN)}, with or without .gz")
    pairs = (_IDX_TRAIN, _IDX_TEST) if files.keys() >= set(_IDX_TEST) else (_IDX_TRAIN,)
    return [(_idx(files[images], key=key), _idx(files[classes], key=key)) for images, classes in pairs]


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


def _npz(path: Path, *, key: str) -> list[tuple[np.ndarray, np.ndarray]]:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        names = set(arrays.files)
        pair = next((pair for pair in _NPZ_PAIRS if names >= set(pair)), None)
        if pair is None:
            expected = ", ".join(" and ".join(pair) for pair in _NPZ_PAIRS)
            raise UserError(f"{key}: {path}: expected the arrays {expected}, got {', '.join(sorted(names)) or 'none'}")
        pairs = (pair, _NPZ_TEST) if names >= set(_NPZ_TEST) else (pair,)
        return [(arrays[inputs], arrays[targets]) for inputs, targets in pairs]
