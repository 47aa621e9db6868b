"""Checkout, editable install and wheel run from any folder, with tasks and configs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

import gflownet
from tests.tiny_run import TINY_RUN

# Where the package and the tasks are, their version, the help and a config: in one process, which starts once.
COMMANDS = """
import sys
from importlib.metadata import version
from importlib.util import find_spec
import gflownet
for name in ("gflownet", "gflownet.tasks.digits"):
    print(find_spec(name).origin)
print(version("gflownet"))
from gflownet.train import main
sys.exit(main(["--help"]) or main(["--config", "digits_small", "--print-config"]))
"""


def environment() -> dict[str, str]:
    """Environment of a user's shell, without PYTHONPATH and pip variables."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONPATH" and not key.startswith("PIP_")}


def call(*command: str | Path, cwd: Path, **options: Mapping[str, str]) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment() | dict(options.get("env", {})),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def make_python(folder: Path) -> Path:
    """Return the Python of a fresh environment that sees the packages of this one, but no gflownet."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    site_packages = Path(
        call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    )
    (site_packages / "packages_of_the_tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def install(python: Path, *what: str | Path, cwd: Path) -> None:
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "install")
    call(
        *pip,
        "--quiet",
        "--no-index",
        "--no-deps",
        "--ignore-installed",
        "--no-compile",
        "--no-build-isolation",
        *what,
        cwd=cwd,
    )


@pytest.fixture(scope="module")
def dist(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the sdist and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ".", cwd=checkout)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (built,) = dist.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def sdist(dist: Path) -> Path:
    (built,) = dist.glob("*.tar.gz")
    return built


def check_commands(python: Path, *, cwd: Path, package: Path, tasks: Path) -> None:
    """Import, print the help and a config in `cwd`, with the package and the tasks from where they should be."""
    printed = call(python, "-c", COMMANDS, cwd=cwd)
    assert printed.splitlines()[:3] == [str(package / "__init__.py"), str(tasks / "digits.py"), gflownet.__version__]
    assert "model.num_layers" in printed
    assert "num_training_steps: 20\n" in printed


def check_runs(python: Path, *, cwd: Path, log_dir: Path) -> None:
    """Run a small search."""
    call(python, "-m", "gflownet.train", f"log_dir={log_dir}", *TINY_RUN, "final.epochs=1", cwd=cwd)
    rows = [json.loads(line) for line in (log_dir / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [*range(1, 1 + len(rows))] != []


def test_checkout_import_without_install(checkout: Path, tmp_path: Path) -> None:
    python = make_python(tmp_path / "env")
    check_commands(python, cwd=checkout, package=checkout / "gflownet", tasks=checkout / "tasks")


@pytest.mark.slow
@pytest.mark.parametrize("is_installed", [False, True])
def test_checkout_runs(is_installed: bool, checkout: Path, tmp_path: Path) -> None:
    """In its folder without an installation, elsewhere with an editable one."""
    python = make_python(tmp_path / "env")
    if is_installed:
        install(python, "--editable", checkout, cwd=tmp_path)
    (tmp_path / "empty").mkdir()
    cwd = tmp_path / "empty" if is_installed else checkout
    check_commands(python, cwd=cwd, package=checkout / "gflownet", tasks=checkout / "tasks")
    check_runs(python, cwd=cwd, log_dir=tmp_path / "run")


@pytest.mark.parametrize("kind", ["wheel", pytest.param("sdist", marks=pytest.mark.slow)])
@pytest.mark.cpu_seconds(5)
def test_archive_installs(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    python = make_python(tmp_path / "env")
    install(python, request.getfixturevalue(kind), cwd=tmp_path)
    (tmp_path / "empty").mkdir()
    package = next((tmp_path / "env").glob("lib/python*/site-packages/gflownet"))
    assert call(python.parent / "gflownet", "--version", cwd=tmp_path) == f"gflownet {gflownet.__version__}\n"
    check_commands(python, cwd=tmp_path / "empty", package=package, tasks=package / "tasks")


@pytest.mark.slow
def test_wheel_runs(wheel: Path, tmp_path: Path) -> None:
    python = make_python(tmp_path / "env")
    install(python, wheel, cwd=tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    package = next((tmp_path / "env").glob("lib/python*/site-packages/gflownet"))
    check_commands(python, cwd=empty, package=package, tasks=package / "tasks")
    check_runs(python, cwd=empty, log_dir=empty / "run")
    assert "report.html" in call(python.parent / "gflownet", "report", "run", cwd=empty), "the templates are installed"


@pytest.mark.slow
def test_tests_run_from_sdist(sdist: Path, tmp_path: Path) -> None:
    """The unpacked sdist is a checkout: a few tests of it pass, with what they read."""
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (root,) = (path for path in tmp_path.iterdir() if path.is_dir())
    tests = ("tests/test_release.py", "tests/test_config.py", "tests/run/test_run_log.py")
    call(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, cwd=root)


def test_sdist_contents(sdist: Path, checkout: Path) -> None:
    """All files of the checkout but those of git and of editors."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=checkout, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("no git checkout")
    files = {name for name in listed.stdout.splitlines() if (checkout / name).is_file()}
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert files - names <= {".pre-commit-config.yaml", ".gitattributes", ".dockerignore"}
    assert names - files == {"PKG-INFO"}


def test_wheel_contents(wheel: Path, checkout: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {
        f"{prefix}{path.relative_to(checkout).as_posix()}"
        for folder, prefix in (("gflownet", ""), ("tasks", "gflownet/"), ("configs", "gflownet/"))
        for path in (checkout / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert names == expected
