"""Image files: of a folder by split and class or mask, and one as an array, by pillow (extra [images])."""

from __future__ import annotations

import os
import re
import warnings
from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext
from os import PathLike
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np

from gflownet.errors import UserError

# Words for the splits in names of folders, arrays and files, in lower case.
SPLITS = {
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("val", "valid", "validation"), "validation"),
    **dict.fromkeys(("train", "training"), "train"),
}
_SPLIT_FOLDER = re.compile(rf"(?:.*[_ -])?({'|'.join(SPLITS)})(?:[_ -]?(?:set|data|images))?")
_OTHER = "without the ending of an image"
_HIDDEN = {"__MACOSX", "__pycache__", "@eaDir", "$RECYCLE.BIN"}  # folders of other programs; those with a dot are, too
# Folders of images and of masks, in lower case, and what their files may have at the end of their names.
_IMAGES = {"images", "image", "imgs", "img", "jpegimages", "inputs"}
_MASKS = {"masks", "mask", "labels", "annotations", "segmentationclass", "gt", "targets"}
_ENDS = re.compile(r"[_-](?:image|img|masks?|labels?|seg|segmentation|gt)$", re.IGNORECASE)
COLOURS = 2**26  # of a code of a mask: the colour, red first, or above 2**24 a value of more than 8 bits
_GREY_COLOUR = 0x010101
KEEP_ALPHA = "keep"
_ORIENTATION = 0x0112  # EXIF tag, 1 for an upright image
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_GREY = ("1", "L", "LA", "La")
_DEEP = 65535.0  # largest value of 16 bits
_PROPORTIONS = 0.02  # largest difference of width / height of an image and its mask that are resized


def image_files(folder: Path) -> tuple[list[tuple[str, str, str]], dict[str, list[str]]]:
    """Return split, class and name of the image files below a folder, and the names of others by reason.

    A class is a folder, in folders of splits or around them; without such folders, all are training images.

    Raises:
        UserError: pillow is missing.
    """
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise UserError("expected the package pillow, got none: pip install 'gflownet[images]'") from None
    formats = Image.registered_extensions()
    endings = {ending for ending, name in formats.items() if name in Image.OPEN or name == "MPO"}  # read as JPEG
    left_out, seen = defaultdict[str, list[str]](list), {folder.resolve()}
    folders, images = list[tuple[str, ...]](), list[tuple[str, ...]]()
    for top, below, names in os.walk(folder, followlinks=True):
        place, parts = Path(top), Path(top).relative_to(folder).parts
        loops = {each for each in below if (place / each).resolve() in seen}
        hidden = {each for each in (*below, *names) if each.startswith(".") or each in _HIDDEN}
        others = {each for each in names if Path(each).suffix.lower() not in endings} - hidden
        below[:] = sorted({*below} - hidden - loops)
        seen |= {(place / each).resolve() for each in below}
        folders += [(*parts, each) for each in below]
        images += [(*parts, each) for each in names if each not in hidden | others]
        for reason, found in {"hidden": hidden, "linked twice": loops - hidden, _OTHER: others}.items():
            left_out[reason] += ["/".join((*parts, each)) for each in sorted(found)]
    outer, inner = ([len(each) > 2 and bool(_split_of(each[level])) for each in images] for level in (0, 1))
    level = 0 if any(outer) else 1 if images and all(inner) else None
    files = []
    for parts in sorted(images, key=lambda parts: (len(parts), parts)):
        name, split = "/".join(parts), "train" if level is None else _split_of(parts[level])
        path = (folder / name).resolve()
        if not split or len(parts) < (3 if level == 0 else 2):
            left_out["in no class folder" + " of a split" * (level == 0)].append(name)
        elif path in seen:
            left_out["linked twice"].append(name)
        else:
            files.append((split, normalize("NFC", parts[level == 0]), name))
            seen.add(path)
    used, depth = {parts[:depth] for parts in images for depth in (1, 2)}, 2 if level == 0 else 1
    left_out["without images"] += ["/".join(parts) for parts in folders if len(parts) == depth and parts not in used]
    return files, {reason: names for reason, names in left_out.items() if names}


def with_masks(
    files: list[tuple[str, str, str]], left_out: dict[str, list[str]]
) -> tuple[list[tuple[str, str, str]], dict[str, str]]:
    """Return the images that have a mask, and its name by theirs; without folders of both, all files and none."""
    images, masks = ([each for each in files if each[1].lower() in names] for names in (_IMAGES, _MASKS))
    if not (images and masks):
        return files, {}
    mask_of = dict[tuple[str, ...], str]()
    twice = [name for _, label, name in masks if mask_of.setdefault(_pair_of(name, label), name) != name]
    pairs = {name: mask_of.get(_pair_of(name, label), "") for _, label, name in images}
    for reason, names in {
        "in other folders": [name for _, label, name in files if label.lower() not in _IMAGES | _MASKS],
        "with the name of another mask": twice,
        "without a mask": [name for name, mask in pairs.items() if not mask],
        "without an image": sorted({*mask_of.values()} - {*pairs.values()}),
    }.items():
        left_out |= {reason: names} if names else {}
    return [each for each in images if pairs[each[2]]], pairs


def _pair_of(name: str, label: str) -> tuple[str, ...]:
    """Return the part of a name that an image and its mask share."""
    *folders, last = (normalize("NFC", part) for part in Path(name).with_suffix("").parts)
    return (*(each for place, each in enumerate(folders) if place > 1 or each != label), _ENDS.sub("", last))


def read_mask(path: Path, *, image: Path, size: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return the codes [K] of the pixels of a mask, sorted, and for each pixel [H, W] the place of its code.

    A code is COLOURS times the grey value or the place in the palette, -1 for a colour without one, plus the colour.

    Args:
        path: of the mask.
        image: its image, upright as large as the mask, or with `size` of the same proportions.
        size: height and width to which it is resized without new values; 0: as it is.

    Raises:
        Exception: of many types, for a damaged file; ValueError for another size, JPEG, or values that are not whole.
    """
    from PIL import Image

    with Image.open(image) as picture, Image.open(path) as mask:
        (width, height), turned = picture.size, picture.getexif().get(_ORIENTATION, 1) > 4
        width, height = (height, width) if turned else (width, height)
        (columns, rows), tolerance = mask.size, _PROPORTIONS * width * height if size else 0
        if (not size and mask.size != (width, height)) or abs(width * rows - height * columns) > tolerance:
            raise ValueError(f"expected a mask of {height} x {width} as its image, got {rows} x {columns}")
        if mask.format in ("JPEG", "MPO"):
            raise ValueError("expected a mask in a format without losses such as PNG, got JPEG")
        mask = mask.convert("L") if mask.mode in _GREY else mask
        mask = mask.resize((size, size), Image.Resampling.NEAREST) if size else mask
        has_values = mask.mode in ("L", "P") or mask.mode[0] in "IF"
        values = np.asarray(mask).astype(np.int64) if has_values else np.full(mask.size[::-1], -1)
        if has_values and (values != np.asarray(mask)).any():
            raise ValueError("expected whole numbers")
        if mask.mode == "P" or not has_values:
            colours = np.asarray(mask.convert("RGB")).astype(np.int64) @ [2**16, 2**8, 1]
        else:
            colours = np.where(values < 2**8, values * _GREY_COLOUR, 2**24 + values)
    codes, places = np.unique(values * COLOURS + colours, return_inverse=True)
    return codes, places.reshape(values.shape).astype(np.min_scalar_type(len(codes)))


def names_of_codes(codes: np.ndarray) -> list[str]:
    """Return a text for each code [K] of the masks of a folder: its grey value, its place in the palette or its colour.

    Places of palettes that differ between masks, or in which a colour has several, count by their colours.
    """
    values, colours = np.divmod(codes, COLOURS)
    has_places = values.min() >= 0 and len(np.unique(values)) == len(codes) == len(np.unique(colours))
    if has_places or not (colours % _GREY_COLOUR).any():
        return [str(each) for each in (values if has_places else colours // _GREY_COLOUR).tolist()]
    return [f"#{colour:06x}" for colour in colours.tolist()]


def _split_of(folder: str) -> str:
    """Return the split that the name of a folder has, such as train, test_set or seg_train; empty: none."""
    match = _SPLIT_FOLDER.fullmatch(folder.lower())
    return SPLITS[match[1]] if match else ""


def read_picture(
    source: Any, *, size: int = 0, alpha: str = "white", channels: int = 0
) -> tuple[np.ndarray, Sequence[str]]:
    """Return an image [C, H, W], upright, float32 from 0 to 1, and what was changed, in words.

    Args:
        source: a path, or an image of pillow.
        size: height and width to which it is resized; 0: as it is.
        alpha: colour behind transparent pixels, by name or #rrggbb; keep: a fourth channel.
        channels: 1 (grey), 3 (RGB) or 4 (RGBA); 0: as in the file.

    Raises:
        UserError: an unknown colour.
        Exception: of many types, for a damaged file.
    """
    from PIL import Image, ImageColor, ImageOps

    try:
        colour = ImageColor.getrgb("white" if alpha == KEEP_ALPHA else alpha)
    except ValueError:
        raise UserError(f"alpha: expected a colour such as white or #808080, or {KEEP_ALPHA}, got {alpha!r}") from None
    channels = channels or (4 if alpha == KEEP_ALPHA else 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # damaged metadata, for one
        with Image.open(source) if isinstance(source, str | PathLike) else nullcontext(source) as image:
            changes = ["first of several frames"] if getattr(image, "n_frames", 1) > 1 else []
            changes += ["turned upright by EXIF"] if image.getexif().get(_ORIENTATION) in range(2, 9) else []
            image = ImageOps.exif_transpose(image)
        is_grey, top = image.mode in _GREY, 255.0
        if image.mode[0] in "IF":
            is_grey, top = True, 1.0 if image.mode == "F" else _DEEP
            changes.append("of more than 8 bits")
            image = Image.fromarray(np.asarray(image, dtype=np.float32))
        elif image.has_transparency_data and channels != 4:
            image = image.convert("RGBA")
            if np.asarray(image.getchannel("A")).min() < 255:
                changes.append(f"alpha composed on {alpha}")
                is_grey = is_grey and len(set(colour[:3])) == 1
                image = Image.alpha_composite(Image.new("RGBA", image.size, colour), image)
        channels = channels or (1 if is_grey else 3)
        image = image if image.mode == "F" else image.convert(_MODES[channels])
        low, high = (float(value) for value in (np.asarray(image).min(), np.asarray(image).max()))
        if not (low >= 0 and high <= top):
            raise ValueError(f"expected values from 0 to {top:g}, got {low:g} to {high:g}; an npz file takes them")
        pixels = np.asarray(image.resize((size, size)) if size else image, dtype=np.float32) / np.float32(top)
    pixels = pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels.clip(0, 1)[None].repeat(min(channels, 3), 0)
    return (pixels if len(pixels) == channels else np.concatenate([pixels, np.ones_like(pixels[:1])])), changes
