"""Limits of CPU seconds, in sessions of pytest in which they are small."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
from tests import cpu_seconds

def pytest_addoption(parser):
    cpu_seconds.add_options(parser)

def pytest_configure(config):
    cpu_seconds.register(config, {limits})
"""
BURNS = """
import subprocess, sys

def test_child():
    subprocess.run([sys.executable, "-S", "-c", "import time\\nwhile time.process_time() < 0.5: pass"], check=True)
"""


@pytest.mark.parametrize(
    ("limits", "arguments", "words", "is_good"),
    [
        ("limit_s=3, budget=1", (), "1 times `import torch`", True),
        ("limit_s=0.1, budget=1", (), "expected at most 0.1 CPU seconds, got 0.", False),
        ("limit_s=3, budget=0.1", (), "FAILED: 1 CPU seconds of 0, 0.1 times `import torch`", False),
        ("limit_s=3, budget=0.1", ("test_burns.py",), "1 passed", True),
    ],
)
def test_session_above_a_limit_fails(
    limits: str, arguments: tuple[str, ...], words: str, is_good: bool, tmp_path: Path, checkout: Path
) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST.format(limits=limits))
    (tmp_path / "test_burns.py").write_text(BURNS)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = .\naddopts = -m 'not slow'\nmarkers = slow")
    environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--import-torch=2.4", *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) is is_good, done.stdout
    assert words in done.stdout
