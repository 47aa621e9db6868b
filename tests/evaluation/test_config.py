"""Options of evaluation and reward: refused values, and the scoring context."""

import re

import pytest

from gflownet.errors import UserError
from gflownet.evaluation.config import check_evaluation, scoring_context
from gflownet.run.extensions import validate
from tests.evaluation.candidates import config_with


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["cond.temperature.dist_params=[1.0,2.0]"], "expected one value for constant, got 2"),
        (["cond.temperature.dist_params=[-1.0]"], r"expected \[value >= 0\] for constant, got \[-1.0\]"),
        (["cond.temperature.sample_dist=uniform"], "expected two values for uniform, got 1"),
        (["cond.temperature.sample_dist=uniform", "cond.temperature.dist_params=[3.0,3.0]"], "0 <= low < high"),
        (["cond.temperature.sample_dist=loguniform", "cond.temperature.dist_params=[0.0,3.0]"], "0 < low < high"),
        (["cond.temperature.sample_dist=gamma", "cond.temperature.dist_params=[0.0,3.0]"], "both > 0 for gamma"),
        (["cond.temperature.sample_dist=beta", "cond.temperature.dist_params=[1.0,.nan]"], "both > 0 for beta"),
    ],
)
def test_senseless_temperatures_name_their_key(overrides, message):
    with pytest.raises(ValueError, match=rf"^cond\.temperature\..*{message}"):
        validate(config_with(*overrides))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("preferences.weights=[1.0,1.0]", r"expected one value for each of 3 objectives, got \[1.0, 1.0\]"),
        ("preferences.weights=[0.0,0.0,0.0]", "expected numbers >= 0, one of them > 0"),
        ("preferences.weights=[1.0,-1.0,1.0]", "expected a number >= 0, got -1.0"),
        ("focus.cosim=1.0", r"expected a number in \(0, 1\), got 1.0"),
        ("focus.cosim=.nan", r"expected a number in \(0, 1\), got nan"),
        ("focus.directions=[[1.0,0.0,0.0],[1.0,0.0]]", r"expected one value for each of 3 .*, got \[1.0, 0.0\]"),
        ("focus.directions=[[0.0,0.0,0.0]]", "expected numbers >= 0, one of them > 0"),
    ],
)
def test_senseless_preferences_and_focus_regions_name_their_key(override, message):
    key = override.partition("=")[0]
    with pytest.raises(ValueError, match=rf"^cond\.{key}: {message}"):
        validate(config_with("evaluation.objectives=[accuracy,flops,latency]", f"cond.{override}"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("num_gpus=-1", ": expected a number >= 0, got -1"),
        ("num_gpus=1.5", ": expected a whole number above 1, got 1.5"),
        ("resources=[a100]", ": expected "),
        ("resources={a100: 0}", ": expected positive numbers by resource, such as {a100: 1}, got {'a100': 0}"),
        ("resources={a100: many}", ": expected positive numbers by resource"),
        ("resources={a100: 0.00001}", ".a100: expected at least 0.0001, got 1e-05"),
        ("resources={GPU: 1}", ".GPU: set evaluation.ray.num_gpus instead"),
        ("resources={memory: 1}", ".memory: set evaluation.memory_limit instead"),
    ],
)
def test_senseless_resources_of_ray_name_their_key(override, message):
    key = override.partition("=")[0]
    with pytest.raises(ValueError, match=re.escape(f"evaluation.ray.{key}{message}")) as error:
        validate(config_with(f"evaluation.ray.{override}"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("override", ["focus.use=true", "preferences.weights=[1.0]", "focus.directions=[[1.0]]"])
def test_one_objective_has_no_trade_offs(override):
    key = override.partition("=")[0]
    with pytest.raises(ValueError, match=rf"^cond\.{key}: expected evaluation.objectives to be set, got none$"):
        validate(config_with(f"cond.{override}"))


@pytest.mark.parametrize("names", ["[accuracy]", "[flops,accuracy,flops]"])
def test_objectives_are_two_or_more_different_ones(names):
    with pytest.raises(ValueError, match=r"^evaluation.objectives: expected none or two or more different ones, got"):
        check_evaluation(config_with(f"evaluation.objectives={names}").evaluation)


@pytest.mark.parametrize(
    "override",
    [
        *("target_flops=0", "target_latency=-1.0", "target_parameters=0", "num_epochs=0", "batch_size=-1"),
        *("learning_rate=.inf", "floor_score=0", "size_weight=-0.1"),
    ],
)
def test_senseless_evaluations_name_their_key(override):
    key = override.partition("=")[0]
    with pytest.raises(ValueError, match=rf"^evaluation\.{key}: expected a number"):
        validate(config_with(f"evaluation.{override}"))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cr3t@host/x",
        "postgresql://me:p@ss@host/x",
        "postgresql://me:${oc.env:A}s3cr3t@host/x",
        "postgresql://me@host/x?password=s3cr3t",
        "postgresql://${oc.env:NAME}:s3cr3t@host/x",
    ],
)
def test_password_in_store_url_is_refused(url, monkeypatch):
    for name in ("A", "NAME"):
        monkeypatch.setenv(name, "value")
    with pytest.raises(UserError, match=r"^evaluation\.store_url: .*oc\.env.* got one in plain text$"):
        validate(config_with(f"evaluation.store_url={url}"))


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////tmp/a:b@c.sqlite",
        "postgresql://me@host/x",
        "postgresql://me@/x?host=/tmp",
        "postgresql://host:5432/x",
        "postgresql://me:${oc.env:A}@host/x",
        "postgresql://me@host/x?password=${oc.env:A}",
        "${oc.env:A}",
    ],
)
def test_store_url_without_password_is_valid(url, monkeypatch):
    monkeypatch.setenv("A", "postgresql://me:s3cr3t@host/x")
    validate(config_with(f"evaluation.store_url={url}"))


def test_scoring_context_changes_with_the_inputs_of_a_score():
    def context(*overrides: str, **fingerprint: str) -> str:
        return scoring_context(config_with(*overrides), **{"source": "s", "data": "d", **fingerprint})

    same = {context(override) for override in ("log_dir=a", "evaluation.store_url=b", "num_workers=2")}
    assert same == {context()}
    objectives, limit = "evaluation.objectives=[accuracy,latency]", "evaluation.constraints.latency"
    others = ["seed=1", "task=a:B", "evaluation.num_epochs=1", "evaluation.size_weight=0.1", objectives, f"{limit}=1"]
    others += ["evaluation.objectives=[accuracy,flops]"]
    different = {context(override) for override in others} | {context(source="x"), context(data="x")}
    assert len(different | same) == len(others) + 3
    # A row has the metrics, whatever their targets and limits.
    for option in ("evaluation.target_latency=1.0", "evaluation.target_flops=7"):
        assert context(objectives, option) == context(objectives)
    assert context(f"{limit}=1") == context(f"{limit}=2")
    assert "constraints" not in context()
