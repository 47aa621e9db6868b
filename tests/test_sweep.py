"""configs/sweep.yaml: wandb accepts it, and its command trains."""

from __future__ import annotations

import copy
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gflownet.cli.parser import parse
from gflownet.config import OPTIONS, command_config
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
def test_command_of_sweep_trains(sweep: dict[str, Any], tmp_path: Path, checkout: Path) -> None:
    """As the agent starts it, but offline and with few steps."""
    values = {key: random.Random(0).choice(values_of(each)) for key, each in sweep["parameters"].items()}
    small = {"num_training_steps": 2, "evaluation.num_epochs": 1, "final.top": 0, "wandb.mode": "offline"}
    small |= {"report.every": "null", "evaluation.executor": "inline", "algo.num_from_policy": 2}
    environment = os.environ | {"WANDB_RUN_ID": "ef567890", "WANDB_SWEEP_ID": "abcd1234", "PYTHONPATH": str(checkout)}
    done = subprocess.run(
        command_of(sweep, values | small),
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    folder = tmp_path / "logs" / "sweep" / "ef567890"
    records, _ = read_session(folder)
    assert records.run_id == "ef567890"
    assert sweep["metric"]["name"] in records.history[-1]
    assert records.config["opt"]["learning_rate"] == values["opt.learning_rate"]
    assert not [each for each in records.artifacts if each.type != "run_table"]
