"""Machines with limits: quotas of containers, little memory, no home directory, no file locks, read-only /dev/shm."""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

import gflownet
from gflownet import __main__ as command
from gflownet import files
from gflownet.errors import UserError
from gflownet.evaluation.executors import machine
from gflownet.evaluation.executors.machine import memory, memory_per_process, num_cores
from gflownet.records.trust import mark_of
from tests.small_run import SMALL, run

GROUPS = {
    "no quota": ("0::/", {"cpu.max": "max 100000"}, None),
    "version 2": ("0::/", {"cpu.max": "50000 100000"}, 1),
    "rounded up": ("0::/", {"cpu.max": "150000 100000"}, 2),
    "of a parent": ("0::/job/step", {"job/cpu.max": "100000 100000", "job/step/cpu.max": "max 100000"}, 1),
    "version 1": ("4:cpu,cpuacct:/", {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1),
    "version 1, none": ("4:cpu,cpuacct:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
}


def groups_of(folder: Path, own: str, texts: dict[str, str]) -> tuple[Path, Path]:
    """Write files of control groups; return their folder, and the file with the group of the process."""
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{text}\n")
    (folder / "own").write_text(f"{own}\n")
    return folder, folder / "own"


@pytest.mark.parametrize("name", GROUPS)
def test_cores_follow_the_quota_of_a_container(monkeypatch, tmp_path, name):
    own, texts, cores = GROUPS[name]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert num_cores(*groups_of(tmp_path, own, texts)) == (cores or 8)


def test_memory_follows_the_limit_of_a_container(tmp_path):
    assert memory(*groups_of(tmp_path, "0::/job", {"job/memory.max": "1000", "memory.max": "max"})) == 1000
    assert memory(*groups_of(tmp_path, "9:memory:/", {"memory/memory.limit_in_bytes": "900"})) == 900


@pytest.mark.parametrize(
    ("size", "limit", "places", "line"),
    [
        (2_000, None, 40, "got 0.049 for each of 40 places; 4 fit: evaluation.capacity=4"),
        (500, None, 1, "got 0.25 for each of 1 places; none fits: evaluation.executor=inline"),
        (9_000, 0.05, 1, "evaluation.memory_limit: expected at least 0.4 GB per process, in which torch can start"),
    ],
)
def test_memory_share_in_which_torch_cannot_start_is_refused(monkeypatch, size, limit, places, line):
    monkeypatch.setattr(machine, "memory", lambda: size * 10**6)
    with pytest.raises(UserError) as error:
        memory_per_process(limit, capacity=places)
    assert line in str(error.value)
    if "capacity=4" in line:
        assert memory_per_process(None, capacity=4) == size * 10**6 // 5


@pytest.fixture
def without_home(monkeypatch) -> None:
    """Take the home directory of this user away, and its line in the passwd file."""

    def no_line(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", no_line)
    files._warn_without_home.cache_clear()


NO_HOME = "no home directory: nothing is cached, and run folders may need --trust later; set HOME to a folder"


def test_user_without_home_has_no_cache_and_no_key(without_home, monkeypatch, tmp_path, caplog):
    monkeypatch.chdir(tmp_path)
    assert files.cached("data.npz", "key", compute=lambda: b"1", parse=int) == 1
    assert mark_of({}) == ""
    assert caplog.messages == [NO_HOME]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_run_of_a_user_without_home_works_with_one_line(without_home, monkeypatch, tmp_path, caplog):
    monkeypatch.chdir(tmp_path)
    assert run(tmp_path / "run", "num_training_steps=2") == 0
    assert len(list(gflownet.sample(tmp_path / "run", 2))) == 2
    gflownet.load(tmp_path / "run", weights=False)
    assert [line for line in caplog.messages if "home" in line] == [NO_HOME]
    assert not (tmp_path / "~").exists()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
@pytest.mark.parametrize("exists", [True, False])
def test_file_system_without_locks_is_named(monkeypatch, tmp_path, capsys, number, exists):
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    folder = tmp_path / "run"
    if exists:
        folder.mkdir()
        (folder / ".lock").touch()
    monkeypatch.setattr(fcntl, "flock", flock)
    assert run(folder) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"error: log_dir: expected a file system with file locks, got {folder} ({os.strerror(number)}); choose a "
        "folder on a local disk, such as log_dir=/tmp/run"
    )


@pytest.mark.slow
def test_read_only_shared_memory_is_named(tmp_path, checkout):
    script = 'mount -t tmpfs -o ro none /dev/shm || exit 77; exec "$@"'
    words = [sys.executable, "-m", "gflownet", "train", *SMALL, "num_workers=1", f"log_dir={tmp_path / 'run'}"]
    namespace = ["unshare", "--mount", "sh", "-c", script, "sh", *words]
    done = subprocess.run(namespace, cwd=checkout, capture_output=True, text=True, check=False)
    if done.returncode in (1, 77) and ("unshare" in done.stderr or "mount" in done.stderr):
        pytest.skip(f"this user cannot mount: {done.stderr.strip()}")
    assert done.returncode == 2
    assert "expected a writable /dev/shm, in which workers share semaphores" in done.stderr
    assert "set num_workers=0" in done.stderr


def test_command_imports_modules_of_the_working_folder(monkeypatch, tmp_path, capsys):
    """The console script has its own folder on the path, python -m the working folder: both import alike."""
    (tmp_path / "of_working_folder.py").write_text("def multihot():\n    raise ValueError('was called')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/script/folder", *(each for each in sys.path if each not in ("", os.getcwd()))])
    options = ["task=table", "task_options.data=of_working_folder:multihot", f"log_dir={tmp_path / 'run'}"]
    monkeypatch.setattr(sys, "argv", ["gflownet", "train", *options])
    assert command.main() == 2
    assert "was called" in capsys.readouterr().err
