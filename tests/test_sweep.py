"""configs/sweep.yaml: wandb accepts it, and its command trains."""

from __future__ import annotations

import copy
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from gflownet.config import OPTIONS, command_config
from gflownet.evaluation.store.database import STORE_NAME
from gflownet.run.parser import parse
from tests.run.wandb_records import read_session


@pytest.fixture(scope="module")
def sweep(checkout: Path) -> dict[str, Any]:
    return yaml.safe_load((checkout / "configs" / "sweep.yaml").read_text())


def command_of(sweep: dict[str, Any], values: dict[str, Any]) -> list[str]:
    """Return the command of a run as the agent of wandb makes it: see Agent._command_run."""
    from wandb.sdk.launch.sweeps import utils  # takes seconds: not for other processes of the tests

    arguments = {key: {"value": value} for key, value in values.items()}
    macros = utils.create_sweep_command_args({"args": arguments})
    macros |= {"interpreter": [sys.executable], "program": [sweep["program"]], "env": ["/usr/bin/env"]}
    command: list[str] = []
    for part in utils.create_sweep_command(copy.deepcopy(sweep["command"])):
        is_macro = part.startswith("${") and part.endswith("}")
        command += macros.get(part[2:-1], []) if is_macro else [part]
    return command


def values_of(parameter: dict[str, Any]) -> list[Any]:
    return parameter["values"] if "values" in parameter else [parameter["min"], parameter["max"]]


def test_sweep_has_the_fields_of_wandb(sweep: dict[str, Any]) -> None:
    fields = {"project", "name", "program", "command", "method", "metric", "run_cap", "parameters"}
    assert set(sweep) == fields, "wandb refuses unknown ones"
    assert sweep["method"] in ("grid", "random", "bayes")
    assert sweep["metric"]["goal"] in ("minimize", "maximize")
    for parameter in sweep["parameters"].values():
        assert set(parameter) in ({"values"}, {"distribution", "min", "max"})


def test_sweep_values_are_valid_options(sweep: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_RUN_ID", "abcd1234")
    assert set(sweep["parameters"]) <= set(OPTIONS)
    for key, parameter in sweep["parameters"].items():
        for value in values_of(parameter):
            command = parse(command_of(sweep, {key: value})[4:])
            config = command_config(command.config, command.overrides)
            assert config.log_dir == "logs/sweep/abcd1234"
            chosen: Any = config
            for part in key.split("."):
                chosen = chosen[part]
            assert chosen == value


@pytest.mark.slow
def test_points_of_sweep_train_different_networks(sweep: dict[str, Any], tmp_path: Path, checkout: Path) -> None:
    """Two points as the agent starts them, but offline, with few trainings and one seed."""
    small = {
        "budget.evaluations": 12,
        "final.num_seeds": 2,
        "wandb.mode": "offline",
        "seed": 0,
        "search.train_sampler": "false",
    }
    small |= {"report.every": "null", "evaluation.executor": "inline"}
    points = ({key: values_of(each)[place] for key, each in sweep["parameters"].items()} for place in (0, -1))
    stores = list[list[tuple[str, float]]]()
    for number, values in enumerate(points):
        environment = os.environ | {
            "WANDB_RUN_ID": f"run{number}",
            "WANDB_SWEEP_ID": "abcd1234",
            "PYTHONPATH": str(checkout),
        }
        command = command_of(sweep, values | small)
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
        unused = next(line for line in done.stdout.splitlines() if line.startswith("not used with"))
        assert not [key for key in sweep["parameters"] if key in unused]
        folder = tmp_path / "logs" / "sweep" / f"run{number}"
        records, _ = read_session(folder)
        assert records.run_id == f"run{number}"
        assert sweep["metric"]["name"] in records.summary
        assert records.config["evaluation"]["num_epochs"] == values["evaluation.num_epochs"]
        assert not [each for each in records.artifacts if each.type != "run_table"]
        with closing(sqlite3.connect(folder / STORE_NAME)) as database:
            stores.append(database.execute("SELECT hash, score FROM evaluations").fetchall())
    assert len(stores[0]) > 4
    assert not {*stores[0]} & {*stores[1]}
