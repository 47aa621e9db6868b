"""The path of a newcomer, run for real: install, search, mistakes, Ctrl-C, resume, own task, sample, compare, load.

    python scripts/newcomer.py                  everything, in a new virtual environment with all dependencies
    python scripts/newcomer.py --skip-install   with the dependencies of this Python
    python scripts/newcomer.py --quick          shorter searches
    python scripts/newcomer.py --write          also write dev/newcomer.md with the commands and their output

Every step prints its command and output, and its exit status, output and files are checked. The exit status is 1 if a
check fails.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import site
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
PAGE = CHECKOUT / "dev" / "newcomer.md"
_SHOWN_LINES = 30  # of a step's output on the page
_TIMEOUT_S = 1_800
_SHORT = "num_training_steps=6 evaluation.num_epochs=1 final.top=2 final.num_seeds=1 final.num_random=4"
_STOP_AFTER = re.compile(r"^step \d+/", re.MULTILINE)  # the line of a run after which Ctrl-C is pressed
_HEAD = """# The path of a newcomer

From an empty folder to a trained network, with every command and its real output. This page is written by
`python scripts/newcomer.py --write`, which runs the commands and checks their results.
"""
_TAIL = """## Further

- [Quickstart](../docs/quickstart.md) and [final stage](../docs/final-stage.md): files of a run, closing table.
- [Extend gflownet](../docs/extending.md): write a class, a package of your own, and test it.
- [Ask and tell](../docs/ask-and-tell.md): search in your own loop.
"""


@dataclass(frozen=True)
class Result:
    """What a command printed."""

    status: int
    output: str
    seconds: float


@dataclass(frozen=True)
class Step:
    """A command of the path, with the outcome that it must have."""

    title: str  # of the section; empty: continues the one before
    text: str
    command: str  # as a newcomer writes it, for bash
    status: int = 0
    shows: Sequence[str] = ()  # texts of the output
    files: Sequence[str] = ()  # that exist afterwards
    interrupts: bool = False  # Ctrl-C after the first steps


@dataclass
class Walk:
    """The folder of the newcomer and what has happened so far."""

    folder: Path
    environment: dict[str, str]
    blocks: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def take(self, step: Step) -> None:
        """Run a step, print it, check it and keep its block of the page."""
        print(f"\n$ {step.command}", flush=True)
        result = self.run(step)
        output = plain(result.output)
        print(output, f"[exit status {result.status}, {result.seconds:.1f} s]", sep="\n", flush=True)
        for problem in problems_of(step, result, self.folder):
            self.problems.append(f"{step.command}: {problem}")
            print(f"PROBLEM: {problem}", flush=True)
        self.blocks.append(block_of(step, result.status, output))

    def run(self, step: Step) -> Result:
        """Run the command of a step."""
        start = time.monotonic()
        process = subprocess.Popen(
            ["bash", "-c", step.command],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        parts: list[str] = []
        assert process.stdout is not None
        for line in process.stdout:
            parts.append(line)
            if step.interrupts and _STOP_AFTER.match(line) and "Ctrl-C" not in "".join(parts):
                parts.append("^C  (Ctrl-C)\n")
                os.killpg(process.pid, signal.SIGINT)
        process.stdout.close()
        status = process.wait(timeout=_TIMEOUT_S)
        status = 128 - status if status < 0 else status  # as a shell reports a signal
        return Result(status, "".join(parts), time.monotonic() - start)


def problems_of(step: Step, result: Result, folder: Path) -> list[str]:
    """Return how the outcome of a step differs from the expected one."""
    problems = []
    if result.status != step.status:
        problems.append(f"expected exit status {step.status}, got {result.status}")
    problems += [f"expected {text!r} in the output" for text in step.shows if text not in result.output]
    problems += [f"expected the file {name}" for name in step.files if not (folder / name).exists()]
    if "Traceback (most recent call last)" in result.output:
        problems.append("a traceback in the output")
    return problems


def plain(text: str) -> str:
    """Return output without escape sequences, carriage returns and paths of this machine."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    lines = [line.rpartition("\r")[2].rstrip() for line in text.split("\n")]
    return "\n".join(lines).replace(str(CHECKOUT), "~/gflownet").strip("\n")


def block_of(step: Step, status: int, output: str) -> str:
    """Return the Markdown of a step."""
    lines = output.split("\n") if output else []
    if len(lines) > _SHOWN_LINES:
        half = _SHOWN_LINES // 2
        lines = [*lines[:half], f"... ({len(lines) - _SHOWN_LINES} lines)", *lines[-half:]]
    shown = "\n".join([f"$ {step.command}", *lines, *([f"(exit status {status})"] if status else [])])
    return "\n".join([*([f"## {step.title}", ""] if step.title else []), step.text, "", "```", shown, "```", ""])


def steps(*, quick: bool) -> list[Step]:
    """Return the path after the installation."""
    short = _SHORT if quick else ""
    return [*first_runs(short), *mistakes(), *stop_and_resume(short), *own_task(short), *results()]


def first_runs(short: str) -> list[Step]:
    """Return the steps up to the second run."""
    first = f"gflownet train --config digits_small log_dir=logs/first {short}".rstrip()
    return [
        Step(
            "Look around",
            "One command has all others; each has `--help`.",
            "gflownet --help",
            shows=["train", "report", "new"],
        ),
        Step(
            "Search",
            "A search of small classifiers of handwritten digits. The report can be opened in a browser while it runs.",
            first,
            shows=["best architectures", "report.html"],
            files=["logs/first/report.html", "logs/first/top_architectures.json"],
        ),
        Step(
            "Read the report",
            "`report.html` is one file without connections to anywhere. It is rebuilt from the run folder at any time.",
            "gflownet report logs/first && ls logs/first",
            shows=["report.html", "evaluations.sqlite"],
        ),
        Step(
            "Change an option",
            "`KEY=VALUE` overrides the config. This run has another seed and larger networks.",
            f"gflownet train --config digits_small log_dir=logs/second seed=1 env.max_hidden_nodes=4 {short}".rstrip(),
            shows=["best architectures"],
            files=["logs/second/report.html"],
        ),
    ]


def mistakes() -> list[Step]:
    """Return commands that end in one line."""
    return [
        Step(
            "Make a mistake",
            "A wrong key or value ends the command in one line, before anything is written.",
            "gflownet train --config digits_small env.max_hiden_nodes=4 log_dir=logs/wrong",
            status=2,
            shows=["error: env.max_hiden_nodes: unknown option", "did you mean env.max_hidden_nodes?"],
        ),
        Step("", "The name of a task, too:", "gflownet train task=digit", status=2, shows=["did you mean digits?"]),
    ]


def stop_and_resume(short: str) -> list[Step]:
    """Return Ctrl-C and the rest of the run."""
    return [
        Step(
            "Stop and resume",
            "Ctrl-C finishes the step and writes checkpoint and report.",
            f"gflownet train --config digits_small log_dir=logs/third print_every=2 {short}".rstrip(),
            status=130,
            interrupts=True,
            shows=["stopping:"],
            files=["logs/third/report.html", "logs/third/checkpoints"],
        ),
        Step(
            "",
            "`resume=true` continues where it stopped; the options come from the run folder.",
            "gflownet train log_dir=logs/third resume=true",
            shows=["best architectures"],
        ),
    ]


def results() -> list[Step]:
    """Return the uses of finished runs."""
    return [
        Step(
            "Sample",
            "A trained policy samples further architectures, here with log-probability and score where it is known.",
            "gflownet sample logs/first --num 3 --json > samples.jsonl && cut -c 1-100 samples.jsonl",
            files=["samples.jsonl"],
        ),
        Step(
            "Compare runs",
            "Several runs on one page, with a table of what differs in their options.",
            "gflownet report logs/first logs/second",
            shows=["comparison.html"],
            files=["comparison.html"],
        ),
        Step(
            "Export",
            "All evaluations as JSON lines, one architecture each.",
            "gflownet store export logs/first evaluations.jsonl && wc -l evaluations.jsonl",
            files=["evaluations.jsonl"],
        ),
        Step(
            "",
            "An architecture as a Python file that needs only PyTorch:",
            'python -c "import gflownet; from gflownet.translation import to_source; '
            "graph = gflownet.load_graph('logs/first/top_architectures.json'); "
            "open('network.py', 'w').write(to_source(graph))\" && head -n 12 network.py",
            shows=["import torch"],
            files=["network.py"],
        ),
        Step(
            "Load the trained network",
            "`gflownet.load` returns the best architecture with the weights of its training.",
            'python -c "import gflownet, torch; '
            "model = gflownet.load('logs/first/top_architectures.json', rank=0); "
            'print(model(torch.rand(5, 64)).shape)"',
            shows=["torch.Size([5, 10])"],
        ),
    ]


def own_task(short: str) -> list[Step]:
    """Return the steps of a task of the newcomer."""
    short = short.replace("evaluation.num_epochs=1", "task_options.num_steps=10")
    return [
        Step(
            "Your own task",
            "`gflownet new` writes a package with a task, a config and a test.",
            "gflownet new task edges",
            shows=["wrote edges/pyproject.toml", "gflownet train task=edges"],
            files=["edges/edges/task.py"],
        ),
        Step(
            "",
            "Installed, its name is known to all commands. Its test checks the rules that a task has to follow.",
            "python -m pip install -q -e edges && python -m pytest -q edges",
            shows=["1 passed"],
        ),
        Step(
            "",
            "The config in the package is used for its task.",
            f"gflownet train task=edges {short}".rstrip(),
            shows=["best architectures"],
            files=["logs/edges/report.html"],
        ),
    ]


def install(folder: Path, *, skip: bool, environment: dict[str, str]) -> tuple[str, str]:
    """Make a virtual environment and return the commands of the page and their output."""
    home = folder / ".venv"
    commands = ["python -m venv .venv", ". .venv/bin/activate", "pip install ~/gflownet pytest"]
    shown = "\n".join(f"$ {command}" for command in commands)
    if not skip:
        run([sys.executable, "-m", "venv", str(home)], folder, environment)
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "-q"]
        return shown, run([*pip, str(CHECKOUT), "pytest"], folder, environment)
    run([sys.executable, "-m", "venv", "--without-pip", str(home)], folder, environment)
    library = home / sysconfig.get_path("platlib", vars={"base": "", "platbase": ""}).lstrip("/")
    # The dependencies of this Python, after the packages of the new environment.
    (library / "outer.pth").write_text("".join(f"{path}\n" for path in site.getsitepackages()))
    without = ["-q", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    python = str(home / "bin" / "python")
    run([python, "-m", "pip", "install", *without, "--ignore-installed", "-e", str(CHECKOUT)], folder, environment)
    return shown, ""


def run(command: Sequence[str], folder: Path, environment: dict[str, str]) -> str:
    """Run a command of the installation; end the script if it fails."""
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def main(argv: Sequence[str] | None = None) -> int:
    """Walk the path; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--skip-install", action="store_true", help="use the dependencies of this Python")
    parser.add_argument("--quick", action="store_true", help="shorter searches; for tests")
    parser.add_argument("--write", action="store_true", help="write dev/newcomer.md")
    parser.add_argument("--only", default="", help="stop before the section with this title")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="newcomer-") as name:
        folder = Path(name)
        environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        environment |= {"COLUMNS": "100", "WANDB_MODE": "offline", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        commands, output = install(folder, skip=arguments.skip_install, environment=environment)
        environment["PATH"] = f"{folder / '.venv' / 'bin'}{os.pathsep}{environment['PATH']}"
        if arguments.skip_install:  # `pip install -e` without an index
            environment |= {"PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_INDEX": "1"}
        path = Walk(folder, environment)
        for step in steps(quick=arguments.quick):
            if arguments.only and step.title == arguments.only:
                break
            path.take(step)
        if arguments.write:
            shown = "\n".join(filter(None, (commands, plain(output))))
            head = ["## Install", "", "With a checkout of the repository in `~/gflownet`:", "", "```", shown, "```", ""]
            PAGE.write_text("\n".join([_HEAD, *head, *path.blocks, _TAIL]), encoding="utf-8")
    print(f"\n{len(path.blocks)} steps, {len(path.problems)} problems", *path.problems, sep="\n")
    return 1 if path.problems else 0


if __name__ == "__main__":
    sys.exit(main())
