"""The pages of docs/environments: what they show runs, and they name the options and configs that there are."""

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from gflownet import train
from gflownet.envs.config import (
    ENVIRONMENTS,
    BitSequenceConfig,
    CellSpaceConfig,
    ColouredGraphConfig,
    HypergridConfig,
    LabelledDAGConfig,
    RecurrentStackConfig,
    TensorGraphConfig,
)
from tasks.bit_sequences import BitSequencesConfig
from tasks.cells import CellsConfig
from tasks.hypergrid import HypergridRewardConfig
from tasks.language import LanguageConfig
from tasks.structure_learning import StructureLearningConfig
from tasks.tensor_mixing import TensorMixingConfig
from tasks.tensor_program import TensorProgramConfig
from tests.tiny_run import TINY_RUN, TINY_TASKS

PAGES = sorted((Path(__file__).resolve().parents[2] / "docs" / "environments").glob("*.md"))
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PAGES[0].parents[2])
    for number, (language, text) in enumerate(BLOCK.findall(page.read_text(encoding="utf-8"))):
        if language == "python":
            exec(compile(text, page.name, "exec"), {"__name__": page.stem})
            continue
        for row, line in enumerate(text.strip().splitlines()):
            words = shlex.split(line)
            assert words[:3] == ["python", "-m", "gflownet.train"]
            tables = [word.partition("=")[2] for word in words if word.startswith("task_options.table=")]
            if not all(Path(table).is_file() for table in tables):
                pytest.skip(f"expected {tables[0]}, got no file")  # data that are no part of the checkout
            short = [
                *TINY_RUN,
                *(option for task in TINY_TASKS if f"task={task}" in words for option in TINY_TASKS[task]),
            ]
            assert train.main([*words[3:], *short, f"log_dir={tmp_path / f'{number}_{row}'}"]) == 0


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("coloured_graph", (ColouredGraphConfig,)),
        ("labelled_dag", (LabelledDAGConfig, StructureLearningConfig)),
        ("hypergrid", (HypergridConfig, HypergridRewardConfig)),
        ("bit_sequence", (BitSequenceConfig, BitSequencesConfig)),
        ("cell_space", (CellSpaceConfig, CellsConfig)),
        ("tensor_graph", (TensorGraphConfig, TensorProgramConfig, TensorMixingConfig)),
        ("recurrent_stack", (RecurrentStackConfig, LanguageConfig)),
    ],
)
def test_options_are_listed_with_their_defaults(name, options, checkout):
    text = (checkout / "docs" / "environments" / f"{name}.md").read_text(encoding="utf-8")
    for config in options:
        for field in fields(config):
            default = getattr(config(), field.name)
            shown = f"`[{', '.join(map(str, default))}]`" if isinstance(default, list) else str(default) or "none"
            assert re.search(rf"^\| `([\w.]+\.)?{field.name}` \| {re.escape(shown)} \|", text, re.MULTILINE), field.name


def test_every_environment_is_in_the_index(checkout):
    text = (checkout / "docs" / "environments" / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| \[?`(\w+)`", text, re.MULTILINE)) == set(ENVIRONMENTS)
