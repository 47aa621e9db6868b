"""Imports of a run before its final stage and its report, which need scipy, as the generator of MNIST-1D does."""

import copy
import gc
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import torch

from gflownet import train
from gflownet.cli.parser import Command
from gflownet.training import optimisers
from tests.tiny_run import TINY_RUN

# Packages with an import time of a CPU second or more.
SLOW_PACKAGES = ("torch_geometric", "torch._dynamo", "sympy", "sklearn", "scipy", "networkx", "wandb", "onnx")
CODE = f"""
import sys
from gflownet.train import main

assert main(["--help"]) == 0
print("by --help:", [name for name in ("torch", "numpy", *{SLOW_PACKAGES}) if name in sys.modules])
options = [*{TINY_RUN}, "budget.evaluations=4", "final.top=0", "search.surrogate.name=gaussian_process"]
assert main(["--config", "images", "log_dir=run", *options]) == 0
print("by a run:", [name for name in {SLOW_PACKAGES} if name in sys.modules])
"""


def test_run_imports_no_slow_package(tmp_path: Path, checkout: Path) -> None:
    environment = {"PYTHONPATH": str(checkout), "PATH": ""}
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


def test_optimisers_match_torch() -> None:
    settings = {"Adam": {"fused": True}, "AdamW": {"weight_decay": 0.1}, "SGD": {"momentum": 0.9}}
    for name, options in settings.items():
        parameters = [torch.nn.Parameter(torch.linspace(-1, 1, 6).view(2, 3)) for _ in range(2)]
        kinds = getattr(torch.optim, name), getattr(optimisers, name)
        theirs, ours = (kind([p], lr=0.1, **options) for kind, p in zip(kinds, parameters, strict=True))
        for step in range(1, 5):
            if step == 3:  # as a resumed run does
                ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
            for optimiser, parameter in zip((theirs, ours), parameters, strict=True):
                optimiser.zero_grad()
                (parameter.square() / step).sum().backward()
                optimiser.step()
                assert parameter.requires_grad
        assert torch.equal(*parameters), name
        assert str(ours.state_dict()) == str(theirs.state_dict())
