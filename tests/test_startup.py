"""Imports of a run before its final stage and its report, which need scipy, as the generator of MNIST-1D does."""

import gc
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gflownet import train
from gflownet.run.parser import Command
from tests.tiny_run import TINY_RUN, TINY_TASKS

# Packages with an import time of a CPU second or more.
SLOW_PACKAGES = ("torch_geometric", "torch._dynamo", "sympy", "sklearn", "scipy", "networkx", "wandb", "onnx")
CODE = f"""
import sys
from gflownet.train import main

assert main(["--help"]) == 0
print("by --help:", [name for name in ("torch", "numpy", *{SLOW_PACKAGES}) if name in sys.modules])
options = [*{TINY_RUN}, *{TINY_TASKS["images"]}, "budget.evaluations=1", "final.top=0"]
options += ["search.surrogate.name=gaussian_process"]
options += ["search.train_sampler=false"]  # its flow consistency has an interval of scipy
assert main(["--config", "images", "log_dir=run", *options]) == 0
print("by a run:", [name for name in {SLOW_PACKAGES} if name in sys.modules])
"""


@pytest.mark.cpu_seconds(5)
def test_run_imports_no_slow_package(tmp_path: Path, checkout: Path) -> None:
    environment = {"PYTHONPATH": str(checkout), "PATH": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("by ")]
    assert lines == ["by --help: []", "by a run: []"]


def test_objects_of_the_start_are_not_collected_during_the_run(tmp_path: Path, monkeypatch) -> None:
    def run() -> None:
        assert gc.isenabled()
        assert gc.get_freeze_count()

    def build(_: Command) -> SimpleNamespace:
        assert not gc.isenabled()
        return SimpleNamespace(config=SimpleNamespace(log_dir=tmp_path), run=run)

    monkeypatch.setattr(train, "_build", build)
    assert train.train(Command()) == 0
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
