"""Images of a folder with one folder per class, read by pillow (extra [images])."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gflownet.errors import UserError

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
