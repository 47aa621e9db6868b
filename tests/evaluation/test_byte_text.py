"""Byte data sets: split by file, reproducible, truncated, and refused if empty."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from gflownet.evaluation.data.byte_text import ByteText, read_bytes


def parts(text: ByteText) -> tuple[Tensor, Tensor, Tensor]:
    return text.train, text.validation, text.test


def write_files(folder: Path, num: int) -> None:
    for number in range(num):
        path = folder / f"{number % 7}" / f"file{number}.txt"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(bytes([32 + number]) * 100)


def test_split_is_a_partition_of_the_files(tmp_path: Path) -> None:
    write_files(tmp_path, 90)
    (tmp_path / ".git").mkdir()
    for hidden in (".hidden", ".git/file"):
        (tmp_path / hidden).write_bytes(b"\1" * 100)
    (tmp_path / "image").write_bytes(b"\xff\xfe" * 50)
    files = [set(part.tolist()) for part in parts(read_bytes(str(tmp_path), megabytes=1, split_seed=0))]
    assert [len(a & b) for a, b in ((files[0], files[1]), (files[0], files[2]), (files[1], files[2]))] == [0, 0, 0]
    assert set.union(*files) == set(range(32, 122))
    assert 60 <= len(files[0]) <= 82


def test_library_is_its_source_without_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.py", "a.txt", "deeper/b.py", "test/c.py", "deeper/site-packages/d.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(name[-4] * 50)
    monkeypatch.setattr("gflownet.evaluation.data.byte_text.sysconfig.get_path", lambda name: tmp_path)
    text = torch.cat(parts(read_bytes("", megabytes=1, split_seed=0)))
    assert sorted(text.tolist()) == [97] * 50 + [98] * 50


def test_split_depends_on_names_and_seed_only(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_files(tmp_path / name, 60)
    first, again = (read_bytes(str(tmp_path / name), megabytes=1, split_seed=0) for name in ("a", "b"))
    other = read_bytes(str(tmp_path / "a"), megabytes=1, split_seed=1)
    assert all(torch.equal(one, two) for one, two in zip(parts(first), parts(again), strict=True))
    assert not torch.equal(first.test, other.test)


def test_parts_are_cut_to_their_shares(tmp_path: Path) -> None:
    write_files(tmp_path, 90)
    assert [len(part) for part in parts(read_bytes(str(tmp_path), megabytes=0.001, split_seed=0))] == [800, 100, 99]


def test_single_file_is_cut_in_three(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(bytes(range(100)))
    text = read_bytes(str(path), megabytes=1, split_seed=0)
    assert torch.cat(parts(text)).tolist() == list(range(100))
    assert [len(part) for part in parts(text)] == [80, 10, 10]


def test_few_files_are_cut_in_three(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(name.encode() * 100)
    text = read_bytes(str(tmp_path), megabytes=1, split_seed=0)
    assert [len(part) for part in parts(text)] == [160, 20, 20]
    assert sorted(torch.cat(parts(text)).tolist()) == [97] * 100 + [98] * 100


@pytest.mark.slow
def test_standard_library_excludes_tests() -> None:
    text = read_bytes("", megabytes=0.5, split_seed=0)
    assert [len(part) for part in parts(text)] == [400_000, 50_000, 49_999]
    train = bytes(text.train.tolist())
    assert train.count(b"\ndef ") + train.count(b"\n    def ") > 300
    assert read_bytes("", megabytes=0.5, split_seed=0) is text


def test_invalid_source_raises(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"task_options\.text: no such file or folder: nowhere"):
        read_bytes("nowhere", megabytes=1, split_seed=0, key="task_options.text")
    (tmp_path / "one").write_bytes(b"t")
    with pytest.raises(ValueError, match="text: expected UTF-8 text for train, validation and test, got "):
        read_bytes(str(tmp_path), megabytes=1, split_seed=0)
    (tmp_path / "latin").write_bytes("où ça ".encode("latin-1") * 99)
    with pytest.raises(ValueError, match=r"expected UTF-8 text for .*, got 0, 0 and 0 bytes of it in .*latin'$"):
        read_bytes(str(tmp_path / "latin"), megabytes=1, split_seed=0)
