"""Run examples of the documentation in this process, and compare its error messages with the code.

The fast suite runs pages of each kind; of the others it reads the commands with --print-config and compiles the Python.
"""

import io
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gflownet import train
from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.language import generate  # pyright: ignore[reportAttributeAccessIssue]
from gflownet.language.__main__ import main as train_language
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.rhn.server.__main__ import parse as parse_server
from gflownet.testing import check_policy
from tests.running_server import running_server

DOCS = (
    "rhn.md",
    "operations.md",
    "translation.md",
    "ask-and-tell.md",
    "coming-from/torchgfn.md",
    "coming-from/nni.md",
    "coming-from/optuna.md",
)
# Their commands differ from those of other pages in few options: run by make test-all.
SLOW_DOCS = (
    "operations-by-need.md",
    "coming-from/recursionpharma-gflownet.md",
    "quickstart.md",
    "final-stage.md",
    "report.md",
    "extending.md",
    "workers.md",
    "objectives.md",
    "conditioning.md",
    "exploration.md",
    "metrics.md",
    "exactness.md",
    "exploration-teacher.md",
    "greedy-sampling.md",
    "search-convolutional-cells.md",
    "search-your-own-space.md",
    "search-methods.md",
    "training-candidates.md",
    "wandb.md",
    "policies.md",
)
_BLOCK = re.compile(r"^```(bash|python|yaml)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (\w+\.(?:py|yaml))\n")
# Options of a short run; options on the page take precedence.
_SHORT = (
    "num_training_steps=3",
    "algo.num_from_policy=4",
    "evaluation.num_epochs=1",
    "model.num_emb=16",
    "final.top=1",
    "final.num_seeds=1",
    "final.num_random=1",
    "evaluation.executor=inline",
    "budget.evaluations=12",  # a search method ends with its budget, not after some steps
)
_ALWAYS = ("wandb.mode=disabled", "report.every=null")


MAINS = {"gflownet.train": train.main, "gflownet.generate": generate.main, "gflownet.language": train_language}
# Options of a short training of a language model; they replace those of the page.
_SHORT_SEARCH = (
    *("budget.evaluations=3", "task_options.num_steps=2", "task_options.num_parameters=9000", "wandb.mode=disabled"),
    *("task_options.validation_bytes=128", "search.train_sampler=false", "final.top=1", "final.num_random=0"),
)
_SHORT_LANGUAGE = (
    *("seconds=null", "megabytes=0.05", "rows=2", "sequence_length=8", "evaluate_every=3", "validation_tokens=64"),
    *("test_tokens=64", "sample.every=2", "sample.tokens=4", "wandb.mode=disabled", "--quiet"),
)

# (words after `python`, text on standard input) of a command: run it.
Python = Callable[[list[str], str], None]


@pytest.fixture
def own_folder(tmp_path, monkeypatch) -> Iterator[Path]:
    """Change to an empty folder from which modules are imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def called(words: list[str]) -> int | str | None:
    """Return the exit status of `python -m` with words."""
    try:
        return MAINS[words[1]](words[2:])
    except SystemExit as end:  # as --help of argparse does
        return end.code


@pytest.fixture
def in_process(own_folder, monkeypatch) -> Python:
    """Run commands in this process."""

    def python(words: list[str], stdin: str = "") -> None:
        if words[0] == "-c":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)  # examples leave files open
                exec(compile(words[1], "example", "exec"), {"__name__": "__main__"})
            return
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        assert called(words) == 0, shlex.join(words)

    return python


@pytest.fixture
def read_only(own_folder) -> Python:
    """Read the options of commands, and compile Python; tests/test_public_surface.py finds the names it imports."""

    def python(words: list[str], stdin: str = "") -> None:
        if words[0] != "-c":
            assert called([*words, "--print-config"]) == 0, shlex.join(words)
            return
        compile(words[1], "example", "exec")

    return python


def blocks(text: str) -> list[tuple[str, str]]:
    return _BLOCK.findall(text)


def run_shell(text: str, python: Python) -> int:
    """Run the lines that call the program; return their number."""
    num_run = 0
    for line in text.splitlines():
        words = shlex.split(line)
        if words[:3] != ["python", "-m", "gflownet.train"]:
            continue
        options = {word.partition("=")[0] for word in words}
        if "--help" not in words:
            words += [option for option in (*_SHORT, *_ALWAYS) if option.partition("=")[0] not in options]
        python(words[1:], "")
        num_run += 1
    return num_run


def run_page(page: Path, folder: Path, python: Python) -> int:
    """Write the files and run the examples of a page in their order; return the number of examples."""
    num_run = 0
    for language, text in blocks(page.read_text()):
        file = _FILE.match(text)
        if file:
            (folder / file[1]).write_text(text)
        elif language == "bash":
            num_run += run_shell(text, python)
        elif language == "python":
            python(["-c", text], "")
            num_run += 1
    return num_run


@pytest.mark.parametrize("name", [*DOCS, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW_DOCS)])
def test_docs_examples_run(name, tmp_path, checkout, in_process):
    assert run_page(checkout / "docs" / name, tmp_path, in_process) >= 1


@pytest.mark.parametrize("name", SLOW_DOCS)
def test_docs_examples_are_valid(name, tmp_path, checkout, read_only):
    assert run_page(checkout / "docs" / name, tmp_path, read_only) >= 1


def test_docs_policy_with_torch_geometric_layers_satisfies_the_suite(own_folder, checkout):
    from torch_geometric.data import Batch  # takes seconds: not for other processes of the tests

    page = (checkout / "docs" / "policies.md").read_text()
    (source,) = (text for _, text in blocks(page) if text.startswith("# gin_policy.py"))
    (own_folder / "gin_policy.py").write_text(source)
    for directed in (False, True):
        env = GraphBuildingEnv(["red", "blue"], max_nodes=4, directed=directed)
        batch: Any = GraphBuildingEnvContext(env).to_batch(env.initial_states(3))
        assert isinstance(batch, Batch)
        assert batch.num_graphs == 3
        check_policy("gin_policy:GINPolicy", env)


@pytest.mark.parametrize("page", ["recursionpharma-gflownet.md", "torchgfn.md", "nni.md", "optuna.md"])
def test_migration_pages_assert_results(page, checkout):
    examples = blocks((checkout / "docs" / "coming-from" / page).read_text())
    num_commands = sum(language == "bash" for language, _ in examples)
    assert sum("\nassert " in text for _, text in examples) >= max(1, num_commands)


def test_invalid_examples_are_detected(read_only):
    for words in (["-m", "gflownet.train", "seeds=1"], ["-c", "1 +"]):
        with pytest.raises((AssertionError, SyntaxError)):
            read_only(words, "")


def text_of(path: Path) -> str:
    """Return the source of a module with adjacent strings of several lines joined."""
    return re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8"))


def test_docs_messages_of_workers_page_exist(checkout):
    source = "\n".join(map(text_of, (checkout / "gflownet").rglob("*.py")))
    page = (checkout / "docs" / "workers.md").read_text(encoding="utf-8")
    section = page.partition("## Errors")[2].partition("\n## ")[0]
    messages = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    assert len(messages) > 5
    parts = {part.strip() for message in messages for part in re.split("[…;:,()]", message)}  # …: variable text
    assert [part for part in parts if part not in source] == []


@pytest.mark.parametrize("way", ["read_only", pytest.param("in_process", marks=pytest.mark.slow)])
def test_docs_readme_commands_search_own_data(way, tmp_path, checkout, request):
    """Run the commands of the section on own problems with a table, images, a text and a function."""
    python = request.getfixturevalue(way)
    rng = np.random.default_rng(0)
    images, classes = rng.random((60, 8, 8)), np.arange(60) % 3
    np.savez(tmp_path / "images.npz", inputs=images, targets=classes)
    rows = [f"{row[0]},{row[1]},{label}" for row, label in zip(images[:, 0], "abc" * 20, strict=True)]
    (tmp_path / "table.csv").write_text("\n".join(["width,height,kind", *rows]))
    (tmp_path / "text.txt").write_text("One line after another. " * 100)
    (tmp_path / "own.py").write_text(
        "import torch\n\ndef examples():\n    return torch.rand(60, 1, 8, 8), torch.arange(60) % 2\n"
    )
    text = (checkout / "README.md").read_text()
    section = text.partition("## Search for your own problem")[2].partition("\n## ")[0]
    commands = re.findall(r"`(python -m gflownet\.train [^`]*)`", section)
    names = {
        "FILE.csv": "table.csv",
        "FILE.npz": "images.npz",
        "FILE.txt": "text.txt",
        "MODULE:FUNCTION": "own:examples",
    }
    for command, (placeholder, name) in zip(commands, names.items(), strict=True):
        assert placeholder in command
        short = shlex.join(_SHORT_SEARCH) if placeholder == "FILE.txt" else ""
        words = f"{command.replace(placeholder, name)} log_dir={Path(name).stem} {short}"
        assert run_shell(words, python) == 1
    ((language, example),) = blocks(section)
    assert (language, run_shell(example, python)) == ("bash", 1)


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", _CODE.sub("", text), re.MULTILINE)
    plain = (re.sub(r"[`*]|\]\([^)]*\)|\[", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def broken_links(page: Path) -> list[str]:
    """Return the relative links of a page to files and headings that do not exist."""
    broken = []
    for target in re.findall(r"\]\(([^)]+)\)", _CODE.sub("", page.read_text())):
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        if "://" in target or (file.exists() and not anchor):
            continue
        if not file.exists() or anchor not in anchors(file.read_text()):
            broken.append(f"{page.name}: {target}")
    return broken


def test_docs_links_exist(checkout):
    pages = [
        checkout / "README.md",
        checkout / "CONTRIBUTING.md",
        *(checkout / "docs").rglob("*.md"),
        *(checkout / "dev").rglob("*.md"),
    ]
    assert [link for page in pages for link in broken_links(page)] == []
    assert [page for page in pages if "<!--" in page.read_text()] == []


def test_broken_links_finds_missing_files_and_headings(tmp_path):
    (tmp_path / "other.md").write_text("# Two words: `code`\n```\n# not a heading\n```\n")
    page = tmp_path / "page.md"
    page.write_text("[a](other.md#two-words-code) [b](none.md) [c](other.md#not-a-heading) [d](#missing)")
    assert broken_links(page) == ["page.md: none.md", "page.md: other.md#not-a-heading", "page.md: #missing"]


@pytest.mark.slow
def test_docs_serving_examples_run(tmp_path, checkout, in_process):
    """Run docs/serving.md: the examples before the server, the server as a process, and its clients."""
    text = (checkout / "docs" / "serving.md").read_text()
    command = re.search(r"python -m gflownet\.rhn\.server (.*)", text)
    assert command is not None
    asked = parse_server(shlex.split(command[1]))
    before, after = text.split(command[0])
    run_blocks(before, tmp_path, in_process)
    answers = (tmp_path / "answers.jsonl").read_text().splitlines()
    assert len(answers) == 2
    with running_server(tmp_path / asked.folder) as server:
        assert run_blocks(after.replace(f"http://127.0.0.1:{asked.port}", server.url), tmp_path, in_process) == 2
        assert server.metrics()["gflownet_requests_finished_total length"] >= 4


@pytest.mark.slow
def test_docs_language_examples_run(tmp_path, checkout, in_process):
    """Run docs/language-models.md with few steps; its server is a process."""
    page = (checkout / "docs" / "language-models.md").read_text()
    before, _, after = page.partition("## Serve\n")
    serving, _, after = after.partition("\n## ")
    num_steps = 2
    for language, block in blocks(before + after):
        file = _FILE.match(block)
        if file:
            (tmp_path / file[1]).write_text(block)
        elif language == "python":
            in_process(["-c", block], "")
        else:
            for line in block.splitlines():
                if line.startswith("python -m gflownet.train"):
                    line = shlex.join([*shlex.split(line), *_SHORT_SEARCH])
                if line.startswith("python -m gflownet.language"):
                    num_steps += "resume" in line  # which trains longer
                    line = shlex.join([*expanded(line), *_SHORT_LANGUAGE, f"steps={num_steps + 1}"])
                if "pip install" not in line:
                    run_line(line, tmp_path, in_process)
    assert (tmp_path / "logs" / "python" / "model" / "model.json").exists()
    assert (tmp_path / "logs" / "stack" / "metrics.jsonl").read_text().count("\n") == 4
    command = re.search(r"python -m gflownet\.rhn\.server (\S+) --port (\d+)", serving)
    assert command is not None
    with running_server(tmp_path / command[1]) as server:
        rest = serving.partition(command[0])[2].replace(f"http://127.0.0.1:{command[2]}", server.url)
        assert run_blocks(rest.partition("```")[2], tmp_path, in_process) == 2
        assert server.metrics()["gflownet_tokens_total"] > 0


def expanded(line: str) -> list[str]:
    """Return the words of a line of a shell, with the output of $(...)."""
    shell = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, text=True, check=True)
    return shell.stdout.removesuffix("\0").split("\0")


def run_blocks(text: str, folder: Path, python: Python) -> int:
    """Run every block but `pip install`; return the number of blocks."""
    found = blocks(text)
    for language, block in found:
        if language == "python":
            python(["-c", block], "")
        else:
            for line in block.replace("\\\n", "").splitlines():
                run_line(line, folder, python)
    return len(found)


def run_line(line: str, folder: Path, python: Python) -> None:
    """Run a line of a shell; in `... | python -m ...` a shell runs the part before the pipe."""
    assert "pip install" not in line
    before, is_ours, after = line.partition("python -m ")
    stdin = ""
    if before.strip(" |") or not is_ours:
        shell = subprocess.run(
            ["bash", "-ec", before.strip(" |")], cwd=folder, capture_output=True, text=True, check=True
        )
        stdin = shell.stdout
    if is_ours:
        python(["-m", *shlex.split(after)], stdin)
