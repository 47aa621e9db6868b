"""Groups and axes of metrics, samples, and the tables of docs/wandb.md."""

from __future__ import annotations

import math
import re
from pathlib import Path

from gflownet.config import OPTIONS
from gflownet.run.run_log import GROUPS, StepSamples, axes_of, group_of, grouped


def test_grouped_keys() -> None:
    values = {"score_best": 0.5, "loss": 2.0, "surrogate_coverage": 0.9, "certificate/l1": 0.25, "seconds": 3.0}
    assert grouped(values) == {
        "score/score_best": 0.5,
        "train/loss": 2.0,
        "search/surrogate_coverage": 0.9,
        "certificate/l1": 0.25,
    }
    assert axes_of(7, {"seconds": 3.0, "loss": 1.0}) == {"step": 7, "seconds": 3.0}
    assert axes_of(7, {"num_distinct": 4}) == {"step": 7, "evaluations": 4}


def test_step_samples_are_finite() -> None:
    samples = StepSamples.of([0.5, -math.inf], [math.nan, 1.0]) + StepSamples.of([0.25])
    assert samples.histograms() == {"samples/scores": (0.5, 0.25), "samples/log_rewards": (1.0,)}
    assert StepSamples().histograms() == {}


def test_documented_metrics_are_complete(checkout: Path) -> None:
    page = (checkout / "docs" / "wandb.md").read_text()
    documented = set(re.findall(r"`((?:score|train|evaluation|search|final)/\w+)`", page))
    known = {f"{group}/{key}" for group, keys in GROUPS.items() for key in keys}
    assert known <= documented
    complete = {name for name in documented if not name.endswith("_")}
    assert complete == {f"{group_of(key)}/{key}" for key in (name.partition("/")[2] for name in complete)}
    assert {key for key in OPTIONS if key.startswith(("wandb.", "tensorboard."))} <= set(
        re.findall(r"`([\w.]+)`", page)
    )
