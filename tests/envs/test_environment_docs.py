"""The pages of docs/environments: examples run, and the tables list every option with its default."""

import re
import shlex
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from gflownet import train
from gflownet.envs.config import (
    ENVIRONMENTS,
    BitSequenceConfig,
    CatalogueConfig,
    CellsEnvConfig,
    ChoicesConfig,
    ColouredGraphConfig,
    EnvConfig,
    HypergridConfig,
    LabelledDAGConfig,
    OperationGraphConfig,
    RecurrentStackConfig,
    TensorGraphConfig,
)
from tasks.bit_sequences import BitSequencesConfig
from tasks.catalogue import CatalogueTaskConfig
from tasks.cells import CellsConfig
from tasks.choices import ChoicesTaskConfig
from tasks.coloured_graphs import ColouredGraphsRewardConfig
from tasks.hypergrid import HypergridRewardConfig
from tasks.language import LanguageConfig
from tasks.structure_learning import StructureLearningConfig
from tasks.tensor_mixing import TensorMixingConfig
from tasks.tensor_program import TensorProgramConfig
from tests.benchmark_tables import real_table
from tests.tiny_run import TINY_RUN, TINY_TASKS

PAGES = sorted((Path(__file__).resolve().parents[2] / "docs" / "environments").glob("*.md"))
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Names of tables in the docs -> names of the files of tests/benchmark_tables.py.
TABLES = {
    "nb201.csv.gz": "nb201.csv.gz",
    "nb_macro.csv.gz": "nb_macro.csv.gz",
    "nb101.csv.gz": "nb101_ec_4epochs.csv.gz",
    "nb_nlp.jsonl.gz": "nb_nlp_wikitext2.jsonl.gz",
}


def with_table(word: str) -> str:
    """Return a word of a command, with the path of the real table in place of its name; skip if absent."""
    key, _, name = word.partition("=")
    return f"{key}={real_table(TABLES[name])}" if key in ("task_options.table", "env.catalogue.graphs") else word


TABLES_PAGE = PAGES[0].parents[1] / "tabular-benchmarks.md"
RUN_QUICKLY = "hypergrid"  # the page whose commands run in the fast suite


def blocks_of(page: Path, language: str) -> list[str]:
    return [text for of_block, text in BLOCK.findall(page.read_text(encoding="utf-8")) if of_block == language]


def commands_of(page: Path) -> list[list[str]]:
    """Return the words of every command of a page, without `python -m gflownet.train`."""
    lines = [line for text in blocks_of(page, "bash") for line in text.strip().splitlines()]
    commands = [shlex.split(line) for line in lines]
    assert all(words[:3] == ["python", "-m", "gflownet.train"] for words in commands)
    return [words[3:] for words in commands]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_examples_run_and_commands_are_valid(page, checkout, monkeypatch, capsys):
    monkeypatch.chdir(checkout)
    for text in blocks_of(page, "python"):
        exec(compile(text, page.name, "exec"), {"__name__": page.stem})
    for words in commands_of(page):
        assert train.main([*words, "--print-config"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] * (page.stem != RUN_QUICKLY), id=page.stem)
        for page in [*PAGES, TABLES_PAGE]
    ],
)
@pytest.mark.slow
def test_commands_run(page, tmp_path, checkout, monkeypatch):
    monkeypatch.chdir(checkout)
    for number, words in enumerate(commands_of(page)):
        short = [*TINY_RUN, *(option for task in TINY_TASKS if f"task={task}" in words for option in TINY_TASKS[task])]
        assert train.main([*map(with_table, words), *short, f"log_dir={tmp_path / str(number)}"]) == 0


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("computation_graph", (EnvConfig,)),
        ("operation_graph", (OperationGraphConfig,)),
        ("coloured_graph", (ColouredGraphConfig, ColouredGraphsRewardConfig)),
        ("labelled_dag", (LabelledDAGConfig, StructureLearningConfig)),
        ("hypergrid", (HypergridConfig, HypergridRewardConfig)),
        ("bit_sequence", (BitSequenceConfig, BitSequencesConfig)),
        ("cells", (CellsEnvConfig, CellsConfig)),
        ("catalogue", (CatalogueConfig, CatalogueTaskConfig)),
        ("choices", (ChoicesConfig, ChoicesTaskConfig)),
        ("tensor_graph", (TensorGraphConfig, TensorProgramConfig, TensorMixingConfig)),
        ("recurrent_stack", (RecurrentStackConfig, LanguageConfig)),
    ],
)
def test_options_are_listed_with_their_defaults(name, options, checkout):
    text = (checkout / "docs" / "environments" / f"{name}.md").read_text(encoding="utf-8")
    for config in options:
        for field in fields(config):
            default = getattr(config(), field.name)
            if is_dataclass(default):  # options of another environment
                continue
            shown = f"`[{', '.join(map(str, default))}]`" if isinstance(default, list) else str(default) or "none"
            assert re.search(rf"^\| `([\w.]+\.)?{field.name}` \| {re.escape(shown)} \|", text, re.MULTILINE), field.name


def test_every_environment_is_in_the_index(checkout):
    text = (checkout / "docs" / "environments" / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| \[?`(\w+)`", text, re.MULTILINE)) == set(ENVIRONMENTS)
