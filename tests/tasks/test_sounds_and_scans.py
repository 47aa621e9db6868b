"""Folders of sounds, NIfTI and DICOM files by class, and signals of several lengths in memory and npz."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import gflownet
from gflownet.errors import UserError
from gflownet.evaluation.data.datasets import load_splits
from gflownet.translation import example_files
from gflownet.translation.array_inputs import ArrayInputs, padded
from tests.tasks.test_images import load, make_task
from tests.tasks.test_table import run_folder
from tests.translation.operation_graphs import graph_of

_RATE = 8000


def save_sound(path: Path, length: int, *, rate: int = _RATE, channels: int = 1, seed: int = 0, **options: Any) -> Path:
    """Write a tone in a folder sine, else noise."""
    soundfile = pytest.importorskip("soundfile", reason="needs the extra [audio]")
    path.parent.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng([seed, length])
    values = generator.normal(0, 0.2, (length, channels))
    if path.parent.name == "sine":
        values = np.sin(np.arange(length)[:, None] * generator.uniform(0.2, 0.4)).repeat(channels, 1) / 2
    soundfile.write(path, values, rate, **options)
    return path


def sounds(folder: Path, *lengths: int, **options: Any) -> Path:
    for name in ("noise", "sine"):
        for k, length in enumerate(lengths):
            save_sound(folder / name / f"{k:02}.wav", length, seed=k, **options)
    return folder


def test_summary_of_sounds_names_rate_bits_channels_and_lengths(tmp_path):
    sounds(tmp_path, *[400] * 10, channels=2)
    (tmp_path / "sine" / "cover.png").write_bytes(b"")
    (tmp_path / "sine" / "bad.wav").write_bytes(b"RIFF")
    (tmp_path / "sine" / "cut.wav").write_bytes((tmp_path / "sine" / "00.wav").read_bytes()[:-800])
    save_sound(tmp_path / "noise" / "x.flac", 400, channels=2, subtype="PCM_24")
    splits = load(tmp_path)
    assert splits.summary[0].startswith(
        "22 sounds read (train: 22; noise: 11, sine: 11); 22 at 8,000 Hz; 21 as PCM_16; 1 as PCM_24; 1 cut short, by "
        "the length in their headers; left out: 1 without the ending of a sound (sine/cover.png), 1 damaged (sine/bad"
    )
    assert splits.summary[1] == (
        "signals of 0.025 to 0.05 s at 8,000 Hz (median 0.05), 2 channels; padded with zeros to 400 values (2.27 % of "
        "all), with a channel as mask"
    )
    assert (splits.layout, tuple(splits.train.example.shape)) == ("signal", (3, 400))


@pytest.mark.parametrize("lengths", [[60] * 8, [30, 60, 45, 50, 55, 40, 35, 58]], ids=["equal", "several"])
def test_loaded_model_predicts_sounds(tmp_path, lengths):
    folder, is_padded = sounds(tmp_path / "train", *lengths), len({*lengths}) > 1
    task = make_task(folder, "evaluation.num_epochs=1", "evaluation.batch_size=4")
    assert task.input_sizes[0].sizes == (1 + is_padded, 60)
    graph = graph_of(
        [
            {"id": 0, "node_type": "input", "shape": list(task.input_sizes[0].sizes), "layout": "signal"},
            {"id": 1, "operation": {"name": "conv_bn_relu", "features": 4, "kernel_size": 3}},
            {"id": 2, "node_type": "output", "operation": {"name": "head", "features": 2}},
        ],
        [(0, 1), (1, 2)],
    )
    model: Any = gflownet.load(run_folder(tmp_path, task, graph))
    assert tuple(model.class_names) == ("noise", "sine")
    files = [folder / name / "00.wav" for name in ("sine", "noise")]
    values = [example_files.read_example(file).values for file in files]
    outputs = model(torch.from_numpy(padded(values, 60) if is_padded else np.stack(values)))
    expected = [model.class_names[place] for place in outputs.argmax(1)]
    assert model.predict(files).tolist() == model.predict(values).tolist() == expected
    wrong = {
        "at 8,000 Hz as in training, got 4,000 Hz": save_sound(tmp_path / "a.wav", 60, rate=4000),
        r"at most 60 values, .*, got 61" if is_padded else r"\[1, 60\], got \[1, 61\]": save_sound(
            tmp_path / "b.wav", 61
        ),
    }
    for message, file in wrong.items():
        with pytest.raises(ValueError, match=message):
            model.predict([file])
    with pytest.raises(ValueError, match="floats"):
        model.predict([np.zeros((1, 60), np.int16)])
    if is_padded:
        assert model.plan.is_padded
        with pytest.raises(
            UserError, match=r"^evaluation.training.augment: expected none for padded signals, got noise$"
        ):
            make_task(folder, "evaluation.training.augment=[noise]")


def test_sounds_that_do_not_fit_are_refused_with_counts(tmp_path):
    folder = sounds(tmp_path / "a", *[40] * 6)
    save_sound(folder / "sine" / "x.wav", 40, rate=16000)
    with pytest.raises(
        UserError, match=r"at one rate, got 8,000 Hz: 12 \(noise/00.wav\), 16,000 Hz: 1 \(sine/x.wav\);"
    ):
        load(folder)
    (folder / "sine" / "x.wav").unlink()
    other = sounds(tmp_path / "b", *[40] * 6, rate=16000)
    with pytest.raises(
        UserError, match=r"^task_options.data_test: .* at one rate, got 8,000 Hz: 0 \(\), 16,000 Hz: 12 "
    ):
        load(folder, test=str(other))
    save_sound(folder / "sine" / "x.wav", 40, channels=2)
    with pytest.raises(UserError, match=r"one number of channels, got 1 \(noise/00.wav\), 2 \(sine/x.wav\)"):
        load(folder)
    with pytest.raises(UserError, match=r"^task_options.size: expected 0 for what is no image, got 8$"):
        load(folder, size=8)


def test_test_sounds_of_other_lengths(tmp_path):
    """Padded to the longest of all splits, refused where the training sounds have one length."""
    longer = sounds(tmp_path / "c", 90, 70)
    splits = load(sounds(tmp_path / "a", 40, 50, 60, 44, 54, 64), test=str(longer))
    assert [tuple(part.inputs.shape[1:]) for part in splits] == [(2, 90)] * 3
    assert sorted({*splits.test.inputs[:, 1].sum(1).tolist()}) == [70, 90]
    with pytest.raises(UserError, match=r"^task_options.data_test: .* expected sounds of one size, got 90 .*, 70 "):
        load(sounds(tmp_path / "b", *[40] * 6), test=str(longer))


def test_signals_of_several_lengths_in_memory_and_npz(tmp_path, monkeypatch):
    generator = np.random.default_rng(0)
    lengths, classes = generator.integers(5, 12, 40), np.arange(40) % 2
    signals = [generator.normal(3, 2, (2, length)).astype(np.float32) for length in lengths]
    objects = np.empty(40, dtype=object)
    objects[:] = signals
    cut = np.array([np.pad(each, [(0, 0), (0, 11 - each.shape[1])], constant_values=9) for each in signals])
    np.savez(tmp_path / "a.npz", x=cut, y=classes, lengths=lengths)
    data = {"many:a": signals, "many:b": objects, "many:c": [torch.from_numpy(each) for each in signals]}
    of_file = load(tmp_path / "a.npz")
    for name, each in data.items():
        monkeypatch.setitem(sys.modules, "many", SimpleNamespace(**{name[-1]: lambda each=each: (each, classes)}))
        splits = load_splits(name, key="task_options.data", seed=0)
        for part, other in zip(splits, of_file, strict=True):
            torch.testing.assert_close(part.inputs, other.inputs)
        line = "signals of 5 to 11 values (median 8), 2 channels; padded with zeros to 11 values"
        assert any(each.startswith(line) for each in splits.summary)
    of_file = make_task(tmp_path / "a.npz", "task_options.normalise=channel")
    values, mask = of_file.train.inputs[:, :2], of_file.train.inputs[:, 2:]
    means, squares = ((values**power * mask).sum((0, 2)) / mask.sum() for power in (1, 2))
    torch.testing.assert_close((means, squares), (torch.zeros(2), torch.ones(2)), atol=1e-5, rtol=1e-5)
    arrays = ArrayInputs.from_dict(of_file.description(None)["arrays"])
    encoded = {tuple(each.flatten().tolist()) for each in arrays.encoded(signals).round(3)}
    assert {tuple(each.flatten().tolist()) for each in of_file.train.inputs.numpy().round(3)} <= encoded
    np.savez(tmp_path / "b.npz", x=cut, y=classes, lengths=lengths + 5)
    with pytest.raises(UserError, match=r"b.npz: expected lengths .* of int64 up to 16 for "):
        load(tmp_path / "b.npz")


def test_nifti_volumes_have_one_orientation(tmp_path):
    nibabel = pytest.importorskip("nibabel", reason="needs the extra [medical]")
    values = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)  # right, front, up
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for k in range(6):
            right_to_left = np.diag([-2, 2, 4, 1])
            content, affine = (values[::-1], right_to_left) if k == 0 else (values, np.diag([2, 2, 3 + k // 5, 1]))
            nibabel.save(nibabel.Nifti1Image(content + 10 * k, affine), tmp_path / name / f"{k}.nii.gz")
    splits = load(tmp_path)
    assert splits.summary[0].startswith(
        "12 scans read (train: 12; a: 6, b: 6); 8 with voxels of 3 x 2 x 2 mm; 4 with voxels of 4 x 2 x 2 mm; left "
        "out: none"
    )
    for volume in torch.cat([part.inputs for part in splits]):
        expected = torch.from_numpy(values.transpose())
        torch.testing.assert_close(volume[0] - (volume - expected).mean().round(), expected, atol=1e-4, rtol=0)
    assert str(make_task(tmp_path, "task_options.duplicates=keep").input_shape) == "volume [1, 5, 4, 3]"
    flat = tmp_path / "flat.nii"
    nibabel.save(nibabel.Nifti1Image(values[..., 0], np.eye(4)), flat)
    np.testing.assert_array_equal(example_files.read_example(flat).values, values[..., 0].T[None])
    with pytest.raises(UserError, match=r"^size: expected 0 for what is no image"):
        example_files.read_example(tmp_path / "a" / "0.nii.gz", size=8)


def dicom(path: Path, pixels: np.ndarray, **fields: Any) -> Path:
    pydicom = pytest.importorskip("pydicom", reason="needs the extra [medical]")
    path.parent.mkdir(parents=True, exist_ok=True)
    scan = pydicom.Dataset()
    scan.file_meta = pydicom.dataset.FileMetaDataset()
    scan.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    scan.SOPClassUID, scan.SOPInstanceUID = pydicom.uid.SecondaryCaptureImageStorage, pydicom.uid.generate_uid()
    scan.Rows, scan.Columns = pixels.shape[-2:]
    scan.BitsAllocated, scan.BitsStored, scan.HighBit, scan.SamplesPerPixel = 16, 12, 11, 1
    scan.PixelRepresentation, scan.PhotometricInterpretation = 0, "MONOCHROME2"
    scan.PixelData = pixels.astype(np.uint16).tobytes()
    scan.update(fields)
    scan.save_as(path, enforce_file_format=True)
    return path


def test_dicom_is_read_in_its_units(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 4096, (6, 8))
    units = {"Modality": "CT", "RescaleSlope": 2, "RescaleIntercept": -1024, "PixelSpacing": [0.5, 0.25]}
    for name in ("a", "b"):
        for k in range(6):
            dicom(tmp_path / name / f"{k}.dcm", np.roll(pixels, k + 6 * (name == "b")), **units)
    splits = load(tmp_path)
    assert splits.summary[0].startswith(
        "12 scans read (train: 12; a: 6, b: 6); 12 with pixels of 0.5 x 0.25 mm; 12 in HU;"
    )
    assert splits.summary[1].startswith(
        f"values from {2 * pixels.min() - 1024:,.6g} to {2 * pixels.max() - 1024:,.6g}; task"
    )
    assert (splits.layout, tuple(splits.train.example.shape)) == ("image", (1, 6, 8))
    assert load(tmp_path, size=4).train.inputs.shape[1:] == (1, 4, 4)
    read = example_files.read_example
    np.testing.assert_array_equal(read(tmp_path / "a" / "0.dcm").values, 2 * pixels[None] - 1024)
    inverted = read(dicom(tmp_path / "c.dcm", pixels, PhotometricInterpretation="MONOCHROME1"))
    np.testing.assert_array_equal(inverted.values, 4095 - pixels[None])
    assert inverted.about == ["as stored, without a unit", "inverted (MONOCHROME1)"]
    frames = read(dicom(tmp_path / "d.dcm", np.stack([pixels, pixels]), NumberOfFrames=2))
    np.testing.assert_array_equal(frames.values, np.stack([pixels, pixels])[None])


@pytest.mark.parametrize(
    ("ending", "package", "extra"),
    [("wav", "soundfile", "audio"), ("nii.gz", "nibabel", "medical"), ("dcm", "pydicom", "medical")],
)
def test_missing_package_names_the_extra(tmp_path, monkeypatch, ending, package, extra):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / f"1.{ending}").write_bytes(b"")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        UserError, match=rf"^expected the package {package}, got none: pip install 'gflownet\[{extra}\]'$"
    ):
        load(tmp_path)
