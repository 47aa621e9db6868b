"""Root config: merging of file and overrides, error messages, bounds, secrets and task options."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from omegaconf import OmegaConf

from gflownet import options as options_module
from gflownet.config import OPTIONS, Config, config_names, load_config, to_mapping, to_yaml, with_task_options
from gflownet.errors import UserError
from gflownet.evaluation.tasks import TASKS
from gflownet.options import find_options, nearest_key
from gflownet.run.extensions import load_extensions, validate


@pytest.fixture
def write_yaml(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "mine.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def test_option_without_a_value_is_empty_where_its_default_is() -> None:
    keys = ("evaluation.store_url", "evaluation.objectives", "evaluation.constraints", "trainer", "search.options")
    config = load_config(None, ["evaluation.objectives=[score,parameters]", *(f"{key}=" for key in keys)])
    assert to_mapping(config) == to_mapping(load_config())
    with pytest.raises(UserError, match=r"^seed: expected an integer, got None$"):
        load_config(None, ["seed="])


def test_load_config_overrides_file_and_file_overrides_defaults(write_yaml: Callable[[str], str]) -> None:
    path = write_yaml("seed: 3\nmodel:\n  num_layers: 7\n  num_emb: 96\nreplay:\n")
    config = load_config(path, ["model.num_emb=48", "env.activations=[tanh]", "model.num_emb=24"])
    assert (config.seed, config.model.num_layers, config.model.num_emb) == (3, 7, 24)
    assert config.model.num_heads == Config().model.num_heads
    assert list(config.env.activations) == ["tanh"]


def test_load_config_defaults_equal_dataclass_defaults() -> None:
    config = load_config()
    assert to_mapping(config) == dataclasses.asdict(Config())
    validate(config)


@pytest.mark.parametrize("name", config_names())
def test_shipped_config_is_valid_and_repeats_no_default(name: str, checkout: Path) -> None:
    validate(load_config(name))
    options_in_file = OmegaConf.to_container(OmegaConf.load(checkout / "configs" / f"{name}.yaml"))
    defaults = to_mapping(load_config())
    options: Any = TASKS.load(load_config(name).task).Config
    defaults["task_options"] = {} if options is None else dataclasses.asdict(options())
    assert _repeated(options_in_file, defaults) - {"task"} == set()


def _repeated(values: Any, defaults: Any, prefix: str = "") -> set[str]:
    repeated = set()
    for key, value in values.items():
        if isinstance(value, dict) and defaults[key] != {}:
            repeated |= _repeated(value, defaults[key], f"{prefix}{key}.")
        elif value == defaults[key]:
            repeated.add(f"{prefix}{key}")
    return repeated


INVALID_OVERRIDES = (
    ("modle.num_layers=3", "modle.num_layers: unknown option, got modle.num_layers=3; did you mean model.num_layers?"),
    ("model.num_layer=3", "model.num_layer: unknown option, got model.num_layer=3; did you mean model.num_layers?"),
    ("learning_rate=3", "learning_rate: unknown option, got learning_rate=3; did you mean opt.learning_rate?"),
    ("seed.x=3", "seed: expected an integer, got {'x': 3}"),
    ("seed=abc", "seed: expected an integer, got 'abc'"),
    ("seed=1.5", "seed: expected an integer, got 1.5"),
    ("seed=true", "seed: expected an integer, got True"),
    ("seed=null", "seed: expected an integer, got None"),
    ("final.num_random=x", "final.num_random: expected an integer or null, got 'x'"),
    ("opt.learning_rate=fast", "opt.learning_rate: expected a number, got 'fast'"),
    ("opt.opt=adm", "opt.opt: expected one of adam, adamw, sgd, muon, got 'adm'"),
    ("replay.use=7", "replay.use: expected true or false, got 7"),
    ("replay.use=maybe", "replay.use: expected true or false, got 'maybe'"),
    ("env.activations=relu", "env.activations: expected a list of strings, got 'relu'"),
    ("env.output_sizes=[1,x]", "env.output_sizes: expected a list of integers, got [1, 'x']"),
    ("task_options=3", "task_options: expected a group of options, got 3"),
    ("cond=5", "cond: expected a group of options (cond.temperature.sample_dist, "),
    ("seed", "seed: expected KEY=VALUE, for example seed=0"),
    ("=3", "=3: expected KEY=VALUE, for example "),
    ("seed=[1", "seed: expected a YAML value, got 'seed=[1': while parsing a flow sequence"),
    ("log_dir=${a", "log_dir: expected a YAML value, got "),
    ("seed=!!python/object/apply:os.getcwd []", "seed: expected a YAML value, got "),
)


@pytest.mark.parametrize(("override", "message"), INVALID_OVERRIDES)
def test_load_config_invalid_override_raises_one_line(override: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        load_config(None, [override])
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_load_config_error_in_file_names_the_file(write_yaml: Callable[[str], str]) -> None:
    path = write_yaml("model:\n  num_layer: 3\n")
    with pytest.raises(UserError, match=r"mine.yaml: model.num_layer: unknown option.* did you mean model.num_layers"):
        load_config(path)


ALIAS_BOMB = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{name}: &{name} [{', '.join(f'*{before}' for _ in range(9))}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "text",
    [
        "seed: !!python/object/apply:os.system ['touch pwned']",
        "seed: !!python/name:os.system",
        ALIAS_BOMB,
        "a: &a [*a]",
        "seed: 1\nseed: 2",
        "seed: [",
        "- 1",
        "seed: \x00",
        "[" * 5000,
    ],
)
def test_load_config_rejects_unsafe_or_invalid_yaml(
    text: str, write_yaml: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_yaml(text)
    with pytest.raises(UserError, match="expected") as error:
        load_config(path)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "pwned").exists()


def test_load_config_unknown_name_suggests_nearest() -> None:
    with pytest.raises(UserError, match=r"--config: expected one of .*digits, .*got 'digit'; did you mean digits\?"):
        load_config("digit")
    with pytest.raises(UserError, match=r"--config: no such file: nowhere/x.yaml"):
        load_config("nowhere/x.yaml")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("num_training_steps=0", "num_training_steps: expected a number >= 1, got 0"),
        ("seed=-1", r"seed: expected a number in \[0, "),
        ("algo.train_random_action_prob=1.01", r"expected a number in \[0, 1\], got 1.01"),
        ("algo.sampling_tau=1", r"expected a number in \[0, 1\), got 1.0"),
        ("opt.learning_rate=0", "opt.learning_rate: expected a number > 0, got 0.0"),
        ("opt.learning_rate=.nan", "opt.learning_rate: expected a number > 0, got nan"),
        ("opt.warmup=-1", "opt.warmup: expected a number >= 0, got -1"),
        ("env.output_sizes=[8,0]", "env.output_sizes: expected a number >= 1, got 0"),
        ("env.output_sizes=[]", "env.output_sizes: expected at least one entry"),
        ("env.activations=[]", "env.activations: expected at least one of relu"),
        ("env.output_aggregation=summ", r"env.output_aggregation: .*did you mean sum\?"),
        ("task=os.system", "task: expected one of"),
        ("model.name=transformer", r"model.name: .*did you mean dense_transformer\?"),
        ("env.name=computation", r"env.name: .*did you mean computation_graph\?"),
        ("log_dir=''", "log_dir: expected the path of a folder"),
        ("model.num_heads=3", "model.num_emb: expected a multiple of model.num_heads=3, got 64"),
        ("replay.capacity=8", "replay.warmup: expected at most replay.capacity=8"),
        ("evaluation.num_epochs=0", "evaluation.num_epochs: expected"),
        ("cond.temperature.dist_params=[1,2]", "cond.temperature.dist_params: expected one value"),
        ("algo.sampling_temperature=0", "algo.sampling_temperature: expected a number > 0, got 0"),
        ("local_search.num=17", "local_search.num: expected at most algo.num_from_policy=16"),
        ("replay.num_updates=-1", "replay.num_updates: expected a number >= 0, got -1"),
        ("offline.num=-1", "offline.num: expected a number >= 0, got -1"),
        ("seed=???", "seed: expected an integer, got"),
        ("log_dir=${nowhere}", r"log_dir: expected a string, got '\$\{nowhere\}' \(.*not found"),
    ],
)
def test_validate_invalid_value_raises(override: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        validate(load_config(None, [override]))


def load_checked(*overrides: str) -> None:
    config = load_config(None, overrides)
    validate(config)
    load_extensions(config)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            "algo.method=ppo algo.regression=linex",
            "algo.regression: expected squared with algo.method=ppo, .*got linex",
        ),
        ("algo.method=a2c algo.symmetry=flows", "algo.symmetry: expected one of reward, none with .*a2c, got flows"),
        ("algo.method=a2c algo.sampling_temperature=2", "algo.sampling_temperature: expected 1 with .*got 2.0"),
        ("algo.method=ppo algo.sampling_tau=0.9", "algo.sampling_tau: expected 0 with algo.method=ppo, .*got 0.9"),
        (
            "algo.method=max_likelihood algo.backward_policy=learned",
            "algo.backward_policy: expected one of uniform, maxent, .* got learned",
        ),
        ("algo.backward_policy=pessimistic", "replay.resample: expected false, .*got replay.resample=true"),
        (
            "algo.backward_policy=pessimistic replay.resample=false replay.use=false",
            "replay.resample: expected false, and replay.use=true, .*replay.use=false",
        ),
        ("algo.method=max_likelihood local_search.num=4", "local_search.num: expected 0 with .*got 4"),
        ("algo.method=a2c replay.num_updates=2", "replay.num_updates: expected 0 with algo.method=a2c, .*got 2"),
        ("algo.method=a2c algo.num_updates=2", "algo.num_updates: expected 1 with algo.method=a2c, .*got 2"),
        ("algo.method=ppo replay.num_batches=3", "replay.num_batches: expected 0 with algo.method=ppo, .*got 3"),
        ("algo.method=max_likelihood replay.num_batches=3", "replay.num_batches: expected 0 with .*got 3"),
        ("algo.method=ppo offline.path=a.jsonl", "offline.path: expected '' with algo.method=ppo, .*got 'a.jsonl'"),
        ("algo.method=max_likelihood replay.use=false", "replay.use: expected true, or offline.path, with .*=false"),
        ("algo.method=max_likelihood replay.num_from_replay=0", "replay.use: expected true, .*num_from_replay=0, and"),
        (
            "algo.method=max_likelihood replay.use=false offline.path=a.jsonl offline.num=0",
            "replay.use: expected true, .*offline.path='a.jsonl' with offline.num=0",
        ),
    ],
)
def test_objective_rejects_unsupported_options(overrides: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_checked(*overrides.split())


@pytest.mark.parametrize(
    "overrides",
    [
        "algo.method=a2c",
        "algo.method=ppo algo.symmetry=none",
        "algo.method=max_likelihood",
        "algo.method=max_likelihood replay.use=false offline.path=a.jsonl",
        "algo.method=tb algo.regression=linex algo.sampling_tau=0.9 algo.sampling_temperature=2 local_search.num=4",
        "algo.method=max_likelihood algo.backward_policy=tlm",
        "algo.backward_policy=pessimistic replay.resample=false",
        "algo.backward_policy=pessimistic algo.teacher.share=0.5",
        "algo.backward_policy=pessimistic replay.num_batches=4",
    ],
)
def test_objective_accepts_supported_options(overrides: str) -> None:
    load_checked(*overrides.split())


@pytest.mark.parametrize("option", ["num_workers=2", "local_search.num=4"])
def test_search_method_refuses_options_of_training_on_scores(option: str) -> None:
    key = option.partition("=")[0]
    with pytest.raises(
        UserError, match=rf"^{key}: expected 0 with search.method=random, got \d; only search.method=gfl"
    ):
        validate(load_config(None, ["search.method=random", option]))
    validate(load_config(None, [option]))


def test_resume_option_accepts_true_false_and_auto() -> None:
    values = [load_config(None, [f"resume={text}"]).resume for text in ("true", "false", "auto")]
    assert values == [True, False, "auto"]
    with pytest.raises(UserError, match=r"^resume: expected one of false, true, auto, got 'maybe'$"):
        load_config(None, ["resume=maybe"])
    assert OPTIONS["resume"].type_name == "false|true|auto"


@pytest.mark.parametrize("resume", ["true", "auto"])
def test_resume_with_overwrite_raises(resume: str) -> None:
    with pytest.raises(UserError, match="resume: expected false with overwrite_existing_exp=true"):
        validate(load_config(None, [f"resume={resume}", "overwrite_existing_exp=true"]))


def test_every_numeric_option_has_bounds() -> None:
    numeric = {key for key, option in OPTIONS.items() if re.search(r"\b(int|float)\b", option.type_name)}
    checked_elsewhere = {"cond.focus.directions", "cond.temperature.dist_params"}  # bounds depend on other options
    assert numeric - checked_elsewhere == {key for key, option in OPTIONS.items() if option.bounds}


def test_every_option_has_one_line_of_help() -> None:
    assert [key for key, option in OPTIONS.items() if not option.help or "\n" in option.help] == []
    assert [key for key, option in OPTIONS.items() if not option.group_help] == []


def test_config_secret_from_environment_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s3cr3t")
    config = load_config(None, ["evaluation.store_url=${oc.env:SECRET}"])
    validate(config)
    assert config.evaluation.store_url == "s3cr3t"
    assert "${oc.env:SECRET}" in to_yaml(config)
    assert "s3cr3t" not in to_yaml(config) + str(to_mapping(config))


def test_config_error_does_not_show_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s3cr3t")
    with pytest.raises(UserError, match=r"seed: expected an integer, got '\$\{task_options.key\}'$"):
        validate(load_config(None, ["task_options.key=${oc.env:SECRET}", "seed=${task_options.key}"]))


def test_to_yaml_round_trip(write_yaml: Callable[[str], str]) -> None:
    config = load_config("digits", ["task_options.depth=3", "seed=4", "wandb.project=trial"])
    assert to_mapping(load_config(write_yaml(to_yaml(config)))) == to_mapping(config)


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("num_layers", "model.num_layers"),
        ("algo.tb.z_learning_rate", "algo.tb.Z_learning_rate"),
        ("replay.capasity", "replay.capacity"),
        ("epoch", "evaluation.num_epochs"),
        ("final.epoch", "final.epochs"),
        ("opt.lr", "opt.learning_rate"),
        ("acquisition.beta", "search.acquisition.beta"),
        ("learning_rate", "opt.learning_rate"),
        ("operations", "env.operation_graph.operations"),
    ],
)
def test_nearest_key_prefers_options_of_the_readme_and_exact_last_parts(key: str, nearest: str) -> None:
    assert nearest_key(key, OPTIONS) == nearest


def test_options_for_words_of_others_exist(checkout: Path) -> None:
    assert {*options_module._WORDS.values(), *options_module._COMMON} <= OPTIONS.keys()
    assert OPTIONS.keys().isdisjoint(options_module._WORDS)
    readme = re.findall(r"(env\.\w+\.(\w+))=", (checkout / "README.md").read_text())
    assert len(readme) >= 2
    assert [key for key, last in readme if nearest_key(last, OPTIONS) != key] == []


@dataclass
class InnerOptions:
    rate: float = 0.5


@dataclass
class TaskOptions:
    """Options of a task."""

    depth: int = 2
    kind: Literal["a", "b"] = "a"
    inner: InnerOptions = field(default_factory=InnerOptions)


def test_with_task_options_fills_defaults_of_the_task() -> None:
    overrides = load_config(None, ["task_options.depth=5", "task_options.inner.rate=0.25"])
    config = with_task_options(overrides, TaskOptions)
    assert OmegaConf.to_object(config.task_options) == TaskOptions(depth=5, inner=InnerOptions(0.25))
    assert to_mapping(overrides)["task_options"] == {"depth": 5, "inner": {"rate": 0.25}}
    assert with_task_options(config, TaskOptions).task_options == config.task_options


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("task_options.dept=5", r"task_options.dept: unknown option, got .*=5; did you mean task_options.depth\?"),
        ("task_options.depth=x", "task_options.depth: expected an integer, got 'x'"),
        ("task_options.kind=c", "task_options.kind: expected one of a, b, got 'c'"),
        ("task_options.inner=5", r"task_options.inner: expected a group of options \(task_options.inner.rate\), got 5"),
        ("task_options.depth=${log_dir}", r"task_options.depth: expected an integer, got '\$\{log_dir\}'"),
    ],
)
def test_with_task_options_invalid_option_raises(override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        with_task_options(load_config(None, [override]), TaskOptions)


def test_with_task_options_without_options_class_rejects_options() -> None:
    with pytest.raises(UserError, match=r"task_options: expected nothing, the class has no options, got \{'x': 1\}"):
        with_task_options(load_config(None, ["task_options.x=1"]), None)
    assert with_task_options(load_config(), None) == load_config()


def test_find_options_returns_type_default_and_group() -> None:
    options = list(find_options(TaskOptions, prefix="task_options."))
    assert [option.key for option in options] == ["task_options.depth", "task_options.kind", "task_options.inner.rate"]
    assert [option.type_name for option in options] == ["int", "a|b", "float"]
    assert [option.default for option in options] == [2, "a", 0.5]
    assert options[0].group_help == "Options of a task."
    assert {field.name for field in dataclasses.fields(Config)} == {key.partition(".")[0] for key in OPTIONS}


def test_errors_are_caught_after_an_import_of_their_module(checkout: Path) -> None:
    """A lazy module in place of omegaconf had two classes of each error."""
    code = (
        "import gflownet.config, omegaconf.errors\n"
        "try: gflownet.config.load_config(None, ['log_dir=${a'])\n"
        "except gflownet.errors.UserError as error: print(error)"
    )
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("log_dir: expected a YAML value")
