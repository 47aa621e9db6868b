"""Images, sounds and scans: the files of a folder by split and class or mask, and each as an array [C, ...].

C: channels, T: samples, D, H, W: depth, height, width.
"""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple
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


class Example(NamedTuple):
    """A file as numbers."""

    values: np.ndarray  # [C, H, W], [C, T] or [C, D, H, W] float32
    about: Sequence[str] = ()  # what was changed, and units, each counted in the summary
    rate: int = 0  # samples per second of a sound


@dataclass(frozen=True)
class Kind:
    """Files that one library reads."""

    noun: str
    endings: tuple[str, ...]  # in lower case
    read: Callable[..., Example]  # of a path, see `read_example`
    package: str
    extra: str  # of gflownet, with the package

    def check_package(self) -> None:
        """Raise UserError where the package is missing."""
        if find_spec(self.package) is None:
            name = {"PIL": "pillow"}.get(self.package, self.package)
            raise UserError(f"expected the package {name}, got none: pip install 'gflownet[{self.extra}]'")


def example_files(folder: Path) -> tuple[str, list[tuple[str, str, str]], dict[str, list[str]]]:
    """Return the noun of most files below a folder, their splits, classes and names, and others by reason.

    A class is a folder, in folders of splits or around them; without such folders, all are training examples.

    Raises:
        UserError: the package that reads them is missing.
    """
    left_out, seen = defaultdict[str, list[str]](list, {"hidden": [], "linked twice": []}), {folder.resolve()}
    folders, found = list[tuple[str, ...]](), list[tuple[str, ...]]()
    for top, below, names in os.walk(folder, followlinks=True):
        place, parts = Path(top), Path(top).relative_to(folder).parts
        loops = {each for each in below if (place / each).resolve() in seen}
        hidden = {each for each in (*below, *names) if each.startswith(".") or each in _HIDDEN}
        below[:] = sorted({*below} - hidden - loops)
        seen |= {(place / each).resolve() for each in below}
        folders += [(*parts, each) for each in below]
        found += [(*parts, each) for each in sorted(names) if each not in hidden]
        for reason, those in {"hidden": hidden, "linked twice": loops - hidden}.items():
            left_out[reason] += ["/".join((*parts, each)) for each in sorted(those)]
    nouns = [kind.noun if (kind := kind_of(name)) else "" for *_, name in found]
    noun = max(Counter(filter(None, nouns)).items(), key=lambda each: each[1], default=("image", 0))[0]
    images = [each for each, of_file in zip(found, nouns, strict=True) if of_file == noun]
    for kind in {kind for *_, name in images if (kind := kind_of(name))}:
        kind.check_package()
    ending = f"without the ending of {'an' if noun == 'image' else 'a'} {noun}"
    left_out[ending] += ["/".join(each) for each, of_file in zip(found, nouns, strict=True) if of_file != noun]
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
    empty = [parts for parts in folders if len(parts) == depth and parts not in used]
    left_out[f"without {noun}s"] += map("/".join, empty)
    return noun, files, {reason: names for reason, names in left_out.items() if names}


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


def read_example(source: Any, **options: Any) -> Example:
    """Return a file, by its ending, or an image of pillow as an array.

    Args:
        source: a path, or an image of pillow.
        options: `size`, `alpha` and `channels` of images, see `read_picture`; `size` of scans of one slice.

    Raises:
        UserError: an unknown colour, a size of something else, or a missing package.
        Exception: of many types, for a damaged file.
    """
    kind = (kind_of(str(source)) if isinstance(source, str | PathLike) else None) or kinds()[0]
    kind.check_package()
    example = kind.read(source, **options)
    if options.get("size") and example.values.ndim != 3:
        raise UserError(f"size: expected 0 for what is no image, got {options['size']}")
    if not np.isfinite(example.values).all():
        raise ValueError("expected finite numbers, got nan or inf")
    return example


def read_picture(source: Any, *, size: int = 0, alpha: str = "white", channels: int = 0) -> Example:
    """Return an image [C, H, W], upright, float32 from 0 to 1.

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
    if len(pixels) < channels:
        pixels = np.concatenate([pixels, np.ones_like(pixels[:1])])
    return Example(pixels, changes)


def _read_sound(source: Any, **_: Any) -> Example:
    """Return a sound [C, T], float32 from -1 to 1."""
    import soundfile  # pyright: ignore[reportMissingImports]

    with soundfile.SoundFile(source) as sound:
        values = np.ascontiguousarray(sound.read(dtype="float32", always_2d=True).T)
        about = [f"at {sound.samplerate:,} Hz", f"as {sound.subtype}"]
        about += ["cut short, by the length in their headers"] if "should be" in sound.extra_info else []
        if not values.size:
            raise ValueError("expected samples, got none")
        return Example(values, about, sound.samplerate)


def _read_nifti(source: Any, *, size: int = 0, **_: Any) -> Example:
    """Return a volume [C, D, H, W] of a NIfTI file, or its one slice [C, H, W], in its units.

    W runs from left to right, H from the back to the front, D from below to above (the closest canonical orientation).
    """
    import nibabel  # pyright: ignore[reportMissingImports]

    scan: Any = nibabel.as_closest_canonical(nibabel.load(source))
    values = scan.get_fdata(dtype=np.float32)  # [W, H], [W, H, D] or [W, H, D, ..., C]
    values = values.reshape(*(*values.shape, 1, 1)[:3], -1).transpose()
    sizes = " x ".join(f"{each:g}" for each in scan.header.get_zooms()[2::-1])
    return _of_scan(values, [f"with voxels of {sizes} mm"], size=size)


def _read_dicom(source: Any, *, size: int = 0, **_: Any) -> Example:
    """Return an image [C, H, W] of a DICOM file, or its frames [C, D, H, W]; grey values in the units of the file."""
    from pydicom import dcmread  # pyright: ignore[reportMissingImports]
    from pydicom.pixels.processing import apply_color_lut, apply_modality_lut  # pyright: ignore[reportMissingImports]

    scan = dcmread(source)
    values, colours, about = scan.pixel_array, str(scan.PhotometricInterpretation), list[str]()
    if "PixelSpacing" in scan:
        about.append(f"with pixels of {' x '.join(f'{float(each):g}' for each in scan.PixelSpacing)} mm")
    if colours == "PALETTE COLOR":
        values = apply_color_lut(values, scan)
    if values.ndim == 4 or scan.SamplesPerPixel > 1 or colours == "PALETTE COLOR":
        values = np.moveaxis(values / np.float32(np.iinfo(values.dtype).max), -1, 0)
        return _of_scan(values if values.ndim == 4 else values[:, None], [*about, "in colour"], size=size)
    scale, offset = scan.get("RescaleSlope", 1), scan.get("RescaleIntercept", 0)
    is_scaled = "ModalityLUTSequence" in scan or (scale, offset) != (1, 0)
    units = scan.get("RescaleType") or ("HU" if scan.get("Modality") == "CT" else "units of its RescaleSlope")
    about.append(f"in {units}" if is_scaled else "as stored, without a unit")
    if colours == "MONOCHROME1" and not is_scaled:  # 0 is white
        values = (-1 if scan.PixelRepresentation else 2**scan.BitsStored - 1) - values.astype(np.int64)
        about.append("inverted (MONOCHROME1)")
    values = apply_modality_lut(values, scan).astype(np.float32)
    return _of_scan(values.reshape(1, -1, *values.shape[-2:]), about, size=size)


def _of_scan(values: np.ndarray, about: Sequence[str], *, size: int) -> Example:
    """Return a volume [C, D, H, W]; of one slice [C, H, W], with `size` resized."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    values = values[:, 0] if values.shape[1] == 1 else values
    if size and values.ndim == 3:
        from PIL import Image

        values = np.stack([np.asarray(Image.fromarray(each).resize((size, size))) for each in values])
    return Example(values, about)


def kind_of(name: str) -> Kind | None:
    """Return the kind of a file by its ending."""
    return next((kind for kind in kinds() if name.lower().endswith(kind.endings)), None)


@cache
def kinds() -> tuple[Kind, ...]:
    """The kinds of files, images first."""
    endings = (".png", ".jpg", ".jpeg")
    if find_spec("PIL") is not None:
        from PIL import Image

        formats = Image.registered_extensions()
        endings = tuple(ending for ending, name in formats.items() if name in Image.OPEN or name == "MPO")  # as JPEG
    sounds = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aif", ".aiff", ".au")
    return (
        Kind("image", endings, read_picture, "PIL", "images"),
        Kind("sound", sounds, _read_sound, "soundfile", "audio"),
        Kind("scan", (".nii", ".nii.gz"), _read_nifti, "nibabel", "medical"),
        Kind("scan", (".dcm", ".dicom"), _read_dicom, "pydicom", "medical"),
    )
