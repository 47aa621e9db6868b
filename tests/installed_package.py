"""A package with one class of every kind, installed by pip into a folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "outside-classes"
version = "1.0"

[project.entry-points."gflownet.tasks"]
outside_edges = "outside_classes:EdgesTask"

[project.entry-points."gflownet.environments"]
outside_line = "outside_classes.line:LineContext"

[project.entry-points."gflownet.objectives"]
outside_balance = "outside_classes:PowerBalance"

[project.entry-points."gflownet.policies"]
outside_network = "outside_classes:SmallNetwork"

[project.entry-points."gflownet.operations"]
outside_scale = "outside_classes.scale:Scale"

[tool.hatch.build.targets.wheel]
packages = ["outside_classes"]
"""
CLASSES = '''
"""Classes of every kind."""

from dataclasses import dataclass

from gflownet import GFNTask, Score
from gflownet.objectives import TrajectoryBalance
from gflownet.options import Interval, option
from gflownet.policy.dense_transformer import DenseTransformerPolicy


@dataclass
class EdgesConfig:
    """Graphs with a number of edges."""

    target: int = option(4, "wanted number of edges", Interval(1, 9))


class EdgesTask(GFNTask):
    Config = EdgesConfig
    input_sizes, output_sizes, is_cheap = (4,), (2,), True

    def evaluate(self, graph, *, seed):
        return Score(1 / (1 + abs(len(graph.edges) - self.config.task_options.target)))


class PowerBalance(TrajectoryBalance):
    """Trajectory balance under another name."""


class SmallNetwork(DenseTransformerPolicy):
    """The default network under another name."""
'''
LINE = '''
"""Points of a line."""

from gflownet.envs.slots import HypergridEnv
from gflownet.mdp import GraphBuildingEnvContext


class LineContext(GraphBuildingEnvContext):
    @classmethod
    def build_env(cls, config, *, input_sizes, output_sizes):
        return HypergridEnv(1, 4)
'''
SCALE = '''
"""A learned scale."""

import torch
from torch import nn

from gflownet.operations.operation import Example, Operation, single_input
from gflownet.operations.tensor_shape import Shape


class ScaleModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x * self.factor


class Scale(Operation):
    """A learned scale."""

    examples = (Example((Shape.of(4),)),)

    @classmethod
    def infer_shape(cls, inputs, settings):
        return single_input(inputs)

    @classmethod
    def build(cls, inputs, settings):
        return ScaleModule()
'''
CONFIG = """
task: outside_edges
num_training_steps: 2
algo: {num_from_policy: 3}
env: {max_hidden_nodes: 1, max_edges: 4}
model: {num_emb: 8, num_layers: 1}
wandb: {mode: disabled}
report: {every: null}
"""


def write_package(folder: Path) -> Path:
    """Write the source of the package and return its folder."""
    files = {
        "pyproject.toml": PYPROJECT,
        "outside_classes/__init__.py": CLASSES,
        "outside_classes/line.py": LINE,
        "outside_classes/scale.py": SCALE,
        "outside_classes/configs/outside_edges.yaml": CONFIG,
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.lstrip("\n"))
    return folder


def install(source: Path, target: Path) -> Path:
    """Install a package without its dependencies into a folder for sys.path; return the folder."""
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run(
        [*pip, "--disable-pip-version-check", "--target", str(target), str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def dist_info(folder: Path, package: str, *rows: str) -> None:
    """Write the metadata of another package with entry points."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join(rows))
