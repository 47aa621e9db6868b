"""Every example of the documentation is run, as it stands there, and the messages it explains are those of the code."""

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gflownet.rhn.server.command import parse as parse_server
from scripts.serving.running_server import running_server

DOCS = (
    "quickstart.md",
    "adding-a-task.md",
    "adding-an-environment.md",
    "workers.md",
    "objectives.md",
    "conditioning.md",
    "exploration.md",
    "metrics.md",
    "exploration-teacher.md",
    "greedy-sampling.md",
    "rhn.md",
)
_BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (\w+\.py)\n")
# What keeps a documented run short; a step count that the page itself gives wins.
_SHORT = ("num_training_steps=3", "algo.num_from_policy=4", "evaluation.num_epochs=1", "model.num_emb=16")
_ALWAYS = ("wandb.mode=disabled",)


def blocks(text: str) -> list[tuple[str, str]]:
    return _BLOCK.findall(text)


def run(command: list[str], folder: Path, checkout: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_shell(text: str, folder: Path, checkout: Path) -> int:
    """Run the lines that call the program; return how many those were."""
    num_run = 0
    for line in text.splitlines():
        words = shlex.split(line)
        if words[:3] != ["python", "-m", "gflownet.train"]:
            continue
        given = {word.partition("=")[0] for word in words}
        if "--help" not in words:
            words += [option for option in (*_SHORT, *_ALWAYS) if option.partition("=")[0] not in given]
        run([sys.executable, *words[1:]], folder, checkout)
        num_run += 1
    return num_run


@pytest.mark.parametrize("name", DOCS)
def test_examples_run(name, tmp_path, checkout):
    num_run = 0
    for language, text in blocks((checkout / "docs" / name).read_text()):
        file = _FILE.match(text)
        if file:
            (tmp_path / file[1]).write_text(text)
        elif language == "bash":
            num_run += run_shell(text, tmp_path, checkout)
        else:
            run([sys.executable, "-W", "ignore::ResourceWarning", "-c", text], tmp_path, checkout)
            num_run += 1
    assert num_run >= 2


def texts_of(path: Path) -> list[str]:
    """Return every string of a module, of f-strings what lies between their braces."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def test_the_messages_that_are_explained_are_those_of_the_code(checkout):
    texts = [text for path in (checkout / "gflownet").rglob("*.py") for text in texts_of(path)]
    page = (checkout / "docs" / "workers.md").read_text(encoding="utf-8")
    messages = re.findall(r"^\| `([^`]+)` \|", page.partition("## What to do on each error")[2], re.MULTILINE)
    assert len(messages) > 15
    parts = {part.strip() for message in messages for part in re.split("[…;:,()]", message)}  # … stands for what varies
    assert [part for part in parts if not any(part in text for text in texts)] == []


def test_the_task_of_the_readme_runs(tmp_path, checkout):
    found = [text for language, text in blocks((checkout / "README.md").read_text()) if language == "python"]
    tasks = [(file[1], text) for text in found if (file := _FILE.match(text))]
    assert len(tasks) == 1
    name, text = tasks[0]
    assert len(text.strip().splitlines()) <= 30
    (tmp_path / name).write_text(text)
    command = re.search(r"^python -m gflownet\.train task=.*$", (checkout / "README.md").read_text(), re.MULTILINE)
    assert command is not None
    assert run_shell(command[0], tmp_path, checkout) == 1


def test_links_lead_somewhere_and_nothing_is_left_to_fill_in(checkout):
    pages = [checkout / "README.md", checkout / "CONTRIBUTING.md", *(checkout / "docs").rglob("*.md")]
    for page in pages:
        text = page.read_text()
        assert "<!--" not in text, page
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_examples_of_serving_run(tmp_path, checkout):
    text = (checkout / "docs" / "serving.md").read_text()
    command = re.search(r"python -m gflownet\.rhn\.server (.*)", text)
    assert command is not None
    asked = parse_server(shlex.split(command[1]))
    before, after = text.split(command[0])
    run_blocks(before, tmp_path, checkout)
    answers = (tmp_path / "answers.jsonl").read_text().splitlines()
    assert len(answers) == 2
    with running_server(tmp_path / asked.folder) as server:
        assert run_blocks(after.replace(f"http://127.0.0.1:{asked.port}", server.url), tmp_path, checkout) == 2
        assert server.metrics()["gflownet_http_responses_total 200"] >= 4


def run_blocks(text: str, folder: Path, checkout: Path) -> int:
    """Run every block as it stands there, but for installing; return how many there were."""
    found = blocks(text)
    for language, block in found:
        if language == "python":
            run([sys.executable, "-c", block], folder, checkout)
        else:
            assert not [line for line in block.splitlines() if "pip install" in line]
            path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
            run(["env", f"PATH={path}", "bash", "-ec", block], folder, checkout)
    return len(found)
