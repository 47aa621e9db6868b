"""Atomic writes by several writers, and files of the user beside them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gflownet.errors import UserError
from gflownet.files import locked_folder, read_yaml, save_whole, temporary_of, write_whole
from tests.disk_limits import file_size_limit


def write_locked(path: Path, content: bytes) -> None:
    with locked_folder(path.parent):
        write_whole(path, content)


@pytest.mark.parametrize("write", [write_locked, save_whole])
def test_writers_of_one_file_do_not_collide(tmp_path: Path, write: Callable[[Path, bytes], None]) -> None:
    path, errors = tmp_path / "report.html", list[UserError]()

    def write_often(content: bytes) -> None:
        for _ in range(30):
            try:
                write(path, content)
            except UserError as error:
                errors.append(error)

    contents = [bytes([letter]) * 100_000 for letter in b"abc"]
    threads = [threading.Thread(target=write_often, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert path.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [path]


def test_saved_file_keeps_a_file_with_its_temporary_name(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    temporary_of(path).write_text("mine")
    save_whole(path, "old")
    with file_size_limit(10), pytest.raises(UserError, match=r"page.html: cannot be written \(File too large\)$"):
        save_whole(path, "new content")
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"page.html": "old", "page.html.tmp": "mine"}


def test_read_yaml_returns_a_tree_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: {b: 1}\n")
    read_yaml(tmp_path / "a.yaml")["a"]["b"] = 2
    assert read_yaml(tmp_path / "a.yaml") == {"a": {"b": 1}}


def test_folder_that_is_absent_is_not_locked(tmp_path: Path) -> None:
    with locked_folder(tmp_path / "none"):
        pass
    assert list(tmp_path.iterdir()) == []
