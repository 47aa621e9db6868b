"""Killed, terminated and interrupted processes, and resumed runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gflownet.train import main
from tests.tiny_run import metric_rows

SETTINGS = (
    "task=tests.toy_tasks:RewardsHiddenNodes",
    "wandb.mode=disabled",
    "num_training_steps=8",
    "algo.num_from_policy=4",
    "replay.num_from_replay=2",
    "replay.warmup=2",
    "model.num_emb=8",
    "model.num_layers=1",
    "model.num_heads=1",
    "env.max_hidden_nodes=3",
    "env.max_edges=6",
    "checkpoint_every=100",
)
# One process imports everything and then runs each command line in a child.
HOST = """
import json, os, sys
import gflownet.trainer
from gflownet.train import main

for name, arguments in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        for number, end in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{name}.{end}", os.O_WRONLY | os.O_CREAT), number)
        status = main(arguments)
        sys.stdout.flush()
        os._exit(status)
    print(name, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
ENDINGS = {"DiesOnce": -9, "Terminates": 143, "Interrupts": 130}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, checkout) -> Path:
    """Return a folder with runs ended by each signal and resumed, and an uninterrupted one."""
    folder = tmp_path_factory.mktemp("ended")
    assert main([*SETTINGS, f"log_dir={folder / 'whole'}"]) == 0
    commands = []
    for task in ENDINGS:
        options = [*SETTINGS, f"task=tests.toy_tasks:{task}", f"log_dir={folder / task}"]
        commands += [
            (str(folder / f"{task} first"), options),
            (str(folder / f"{task} again"), [*options, "resume=auto"]),
        ]
    command = [sys.executable, "-c", HOST, json.dumps(commands)]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True, timeout=300)
    statuses = [int(line.rpartition(" ")[2]) for line in done.stdout.splitlines()]
    assert statuses == [status for first in ENDINGS.values() for status in (first, 0)], done.stdout
    return folder


@pytest.mark.parametrize("task", ENDINGS)
def test_killed_run_resumes_exactly(folder, task):
    assert metric_rows(folder / task) == metric_rows(folder / "whole")
    assert "best architectures" in (folder / f"{task} again.out").read_text()
    assert (folder / f"{task} again.err").read_text() == ""


@pytest.mark.parametrize("task", ["Terminates", "Interrupts"])
def test_stop_signal_writes_report(folder, task):
    assert "best architectures" in (folder / f"{task} first.out").read_text()
    assert (folder / f"{task} first.err").read_text().startswith("\nstopping: running evaluations are cancelled")
