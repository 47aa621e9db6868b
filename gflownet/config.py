"""The root config: defaults, then a YAML file, then a.b=c overrides; checked without importing torch."""

from __future__ import annotations

import copy
import logging
import os
import pickle
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, reduce
from operator import getitem
from pathlib import Path
from typing import Any, Literal, cast

import gflownet
from gflownet.envs.config import EnvConfig
from gflownet.errors import NEAR, UserError, did_you_mean, likeness
from gflownet.evaluation.config import (
    AsynchronousConfig,
    BudgetConfig,
    ConditionalsConfig,
    EvaluationConfig,
    FinalConfig,
)
from gflownet.evaluation.tasks import TASKS
from gflownet.files import check_yaml_depth, read_yaml
from gflownet.learning.config import LocalSearchConfig, OfflineConfig, ReplayConfig, WorkersConfig
from gflownet.objectives.config import AlgoConfig, OptimizerConfig
from gflownet.options import (
    AT_LEAST_ONE,
    NOT_NEGATIVE,
    Interval,
    Option,
    find_options,
    groups_of,
    hint_of_option,
    nearest_key,
    option,
)
from gflownet.plugins import installed_config_folders
from gflownet.policy.config import ModelConfig
from gflownet.records.marker import CONFIG_NAME, MARKER_NAME, free_folder, newest_run, not_a_search, read_marker
from gflownet.records.trust import check_config
from gflownet.search.config import SearchConfig

# torch refuses seeds beyond 64 bits.
MAX_SEED = 2**63 - 1
# The group of the task's own options; their dataclass belongs to the task.
TASK_OPTIONS = "task_options"
_MAX_LISTED = 8  # options of a group in an error
# The config of a command that names neither a config nor a task.
DEFAULT_CONFIG = "mnist1d"
# The file of configs/ that is a sweep of wandb.
SWEEP_NAME = "sweep"
_log = logging.getLogger(__name__)


@dataclass
class WandbConfig:
    """Metrics on Weights & Biases, in addition to metrics.jsonl."""

    mode: Literal["online", "offline", "disabled"] = option(
        "online", "online (offline when there is no API key), offline or disabled"
    )
    project: str = option("gflownet", "project that the run belongs to")
    artifacts: bool = option(True, "upload the last checkpoint, the best architectures with weights, and report.html")


@dataclass
class TensorBoardConfig:
    """Event files of TensorBoard in the run folder."""

    use: bool = option(False, "write them; needs the extra tensorboard")


@dataclass
class ReportConfig:
    """report.html of the run folder."""

    every: float | None = option(
        60.0,
        "report.html is written at the first checkpoint after so many seconds; 0: only at the end; null: none",
        NOT_NEGATIVE,
    )


@dataclass
class Config:
    """Options of the run."""

    log_dir: str = option("logs/${task}", "run folder: all files of a run; a default one with a run: the next free one")
    seed: int = option(0, "seed of all random numbers of the run", Interval(0, MAX_SEED))
    task: str = option("digits", TASKS.help("task"))
    task_options: Any = option({}, "options of the task, task_options.NAME=VALUE")
    trainer: str = option("", "module:Class of a subclass of GFNTrainer that runs the search; empty: GFNTrainer")
    num_training_steps: int = option(150, "training steps of the policy", AT_LEAST_ONE)
    num_workers: int = option(0, "processes that sample for search.method=gflownet; 0: the main process", NOT_NEGATIVE)
    mp_buffer_size: int = option(8_000_000, "bytes of each shared buffer of a worker", AT_LEAST_ONE)
    pickle_mp_messages: bool = option(False, "pickle the messages of workers: no shared buffers")
    print_every: int = option(10, "steps between two lines if the output is not a terminal", AT_LEAST_ONE)
    console: Literal["quiet", "normal", "verbose"] = option(
        "normal", "quiet: only warnings, errors and the final table; verbose: also each evaluation and start-up step"
    )
    validate_every: int = option(
        0, "steps between two validations, which search methods skip; 0 never validates", NOT_NEGATIVE
    )
    checkpoint_every: int = option(50, "steps between two checkpoints", AT_LEAST_ONE)
    overwrite_existing_exp: bool = option(False, "rename the run in log_dir to NAME.1, and start a new one")
    resume: Literal[False, True, "auto"] = option(
        False, "true: continue the run in log_dir; auto: continue it, or start a new one where there is none"
    )
    certify: bool = option(False, "certify the sampled distribution at the end")
    certify_max_states: int = option(
        20_000, "maximum number of states for an exact certificate; larger spaces get estimates", AT_LEAST_ONE
    )
    certify_samples: int = option(256, "trajectories for these estimates", AT_LEAST_ONE)
    device: str = option("cpu", "device of the policy network: cpu, cuda or cuda:N")
    num_threads: int = option(1, "threads of torch in the main process", AT_LEAST_ONE)
    algo: AlgoConfig = field(default_factory=AlgoConfig)
    opt: OptimizerConfig = field(default_factory=OptimizerConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    local_search: LocalSearchConfig = field(default_factory=LocalSearchConfig)
    offline: OfflineConfig = field(default_factory=OfflineConfig)
    workers: WorkersConfig = field(default_factory=WorkersConfig)
    cond: ConditionalsConfig = field(default_factory=ConditionalsConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    asynchronous: AsynchronousConfig = field(default_factory=AsynchronousConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    final: FinalConfig = field(default_factory=FinalConfig)
    wandb: WandbConfig = field(default_factory=WandbConfig)
    tensorboard: TensorBoardConfig = field(default_factory=TensorBoardConfig)
    report: ReportConfig = field(default_factory=ReportConfig)


OPTIONS = {option.key: option for option in find_options(Config)}


def load_config(source: str | None = None, overrides: Sequence[str] = ()) -> Config:
    """Return the merged config, an OmegaConf container with the fields of Config, types checked, values not yet.

    `source` names a file of configs/ or is the path of a YAML file; `overrides` are `a.b=c`, later ones win.

    Raises:
        UserError: unknown config, key or wrong type, in one line with the full key.
    """
    path = None if source is None else find_config(source)
    trees = [] if path is None else [(f"{path}: ", read_yaml(path))]
    return cast(Config, merged(Config, OPTIONS, trees=trees, overrides=overrides))


@cache
def _defaults(schema: type) -> bytes:
    """Return the pickled config without a file or overrides: loading it takes a third of the time of `deepcopy`."""
    return pickle.dumps(_omegaconf().structured(schema))


def copied(config: Config) -> Config:
    """Return a copy of the config, in a third of the time of `deepcopy` unless it has classes of a function."""
    try:
        return pickle.loads(pickle.dumps(config))
    except (pickle.PicklingError, AttributeError, TypeError):
        return copy.deepcopy(config)


def with_options(config: Config, schemas: Mapping[str, type | None]) -> Config:
    """Return the config with groups of free options typed, checked and completed by dataclasses.

    Groups are task_options, env.options, ...; None for no options.

    Raises:
        UserError: an unknown key, a value of the wrong type or outside its bounds.
    """
    result = copied(config)
    for group, schema in schemas.items():
        values = _omegaconf().to_container(_omegaconf().select(cast(Any, result), group), resolve=False)
        if schema is None:
            if values:
                raise UserError(f"{group}: expected nothing, the class has no options, got {_shown(values)}")
            continue
        options = {item.key: item for item in find_options(schema, prefix=f"{group}.")}
        _omegaconf().update(cast(Any, result), group, _omegaconf().structured(schema), merge=False)
        _merge(result, _nested(group, values), options=options)
        for item in options.values():
            item.check(resolved(result, item))
    return result


def merged(
    schema: type,
    options: Mapping[str, Option],
    *,
    trees: Iterable[tuple[str, Mapping[str, Any]]],
    overrides: Sequence[str],
) -> Any:
    """Return a config dataclass as an OmegaConf container, with values of trees and overrides; later ones win.

    Each of `trees` has the start of its error messages.

    Raises:
        UserError: an unknown key or a wrong type.
    """
    config = pickle.loads(_defaults(schema))
    for where, tree in trees:
        _merge(config, tree, where=where, options=options)
    for override in overrides:
        _merge(config, _parse_override(override, options), options=options)
    return config


def with_task_options(config: Config, options: type | None) -> Config:
    """Return the config with `task_options` typed by a dataclass. Raises as `with_options`."""
    return with_options(config, {TASK_OPTIONS: options})


def _nested(key: str, value: Any) -> dict[str, Any]:
    """Return {"a": {"b": value}} for the key a.b."""
    first, _, suffix = key.partition(".")
    return {first: _nested(suffix, value) if suffix else value}


def to_yaml(config: Config) -> str:
    """Return the config as YAML; interpolations such as `${oc.env:SECRET}` are not replaced."""
    return _omegaconf().to_yaml(cast(Any, config), resolve=False)


def to_mapping(config: Config) -> dict[str, Any]:
    """Return the config as nested dicts, unresolved like `to_yaml`."""
    return cast(dict[str, Any], _omegaconf().to_container(cast(Any, config), resolve=False))


def resolved(config: Config, option: Option) -> Any:
    """Return the value of an option with interpolations replaced.

    Raises:
        UserError: an interpolation without a value or with a wrong type; the message shows its text, not the value.
    """
    try:
        value = _omegaconf().select(cast(Any, config), option.key, throw_on_missing=True)
        return _omegaconf().to_container(value, resolve=True) if _omegaconf().is_list(value) else value
    except _errors().OmegaConfBaseException as error:
        text: Any = _omegaconf().to_container(cast(Any, config), resolve=False)
        for part in option.key.split("."):
            text = text[part]
        # A wrong type is reported with the resolved value, which may be a secret of ${oc.env:...}.
        reason = "" if isinstance(error, _errors().InterpolationValidationError) else f" ({str(error).splitlines()[0]})"
        raise UserError(f"{option.key}: expected {option.expected}, got {_shown(text)}{reason}") from None


def check_values(config: Config) -> None:
    """Raise UserError for the first option with a value outside its bounds, see `Option.check` and `resolved`."""
    try:  # all at once takes a tenth of the time
        tree = _omegaconf().to_container(cast(Any, config), resolve=True, throw_on_missing=True)
    except _errors().OmegaConfBaseException:
        tree = None
    for item in OPTIONS.values():
        item.check(resolved(config, item) if tree is None else reduce(getitem, item.key.split("."), cast(Any, tree)))


def config_names(room: str = "") -> list[str]:
    """Return the names that --config accepts, those of installed packages included, sorted.

    `room` is a subfolder of configs/, of another command than train.
    """
    folders = [*_config_folders(room), *(() if room else installed_config_folders())]
    return sorted({path.stem for folder in folders for path in folder.glob("*.yaml")} - {SWEEP_NAME})


def config_of_task(overrides: Sequence[str]) -> str | None:
    """Return the config named after the task in the overrides, None if there is none; DEFAULT_CONFIG without a task."""
    named = [override for override in overrides if override.startswith("task=")]
    if not named:
        return DEFAULT_CONFIG
    task = load_config(None, named).task
    return task if task in config_names() else None


def command_config(source: str | None, overrides: Sequence[str]) -> Config:
    """Return the config of a command line; without a source, the config of the run to resume or of the task.

    Raises:
        UserError: as `load_config`.
    """
    config = load_config(source or config_of_task(overrides), overrides)
    stored = None
    if config.resume and not names_folder(source, overrides):
        overrides = [*overrides, f"log_dir={newest_run(Path(config.log_dir))}"]
        config = load_config(source or config_of_task(overrides), overrides)
    if source is None and config.resume:
        stored = stored_config(Path(config.log_dir), ["overwrite_existing_exp=false", *overrides])
    return stored or config


def names_folder(source: str | None, overrides: Sequence[str], room: str = "") -> bool:
    """Return whether a command names its run folder, as an override or in a file of the user."""
    in_file = source and find_config(source, room) == Path(source) and "log_dir" in read_yaml(Path(source))
    return bool(in_file) or any(override.startswith("log_dir=") for override in overrides)


def default_folder(config: Any, source: str | None, overrides: Sequence[str], room: str = "") -> str:
    """Return log_dir of a new run that names none, else ""; where it is taken, set log_dir to the next free folder."""
    if config.resume or config.overwrite_existing_exp or names_folder(source, overrides, room):
        return ""
    folder, config.log_dir = config.log_dir, str(free_folder(Path(config.log_dir)))
    return folder


def config_of(tree: Mapping[str, Any], *, where: str = "") -> Config:
    """Return the config of nested options, defaults for the others. Raises UserError for unknown ones."""
    return cast(Config, merged(Config, OPTIONS, trees=[(where, tree)], overrides=()))


def stored_config(folder: Path, overrides: Sequence[str] = ()) -> Config | None:
    """Return the config of the run in a folder, None without a run.

    If config.yaml is damaged, the copy in run.json is used and a warning is logged.

    Raises:
        UserError: the folder's marker is damaged, an override is not valid, or the run is another user's and its config
            would import, resolve or connect to something, see `gflownet.records.trust`.
    """
    path, marker = folder / CONFIG_NAME, read_marker(folder)
    if marker is None:
        return None
    if not marker.is_search:
        raise UserError(not_a_search(folder))
    try:
        tree = read_yaml(path)
        if not tree:
            raise UserError(f"{path}: expected the options of the run, got an empty file")
        config = config_of(tree, where=f"{path}: ")
    except UserError as error:
        _log.warning("%s; the copy in %s is used", error, MARKER_NAME)
        config = config_of(marker.config, where=f"{folder / MARKER_NAME}: ")
    check_config(folder, to_mapping(config))
    for override in overrides:
        _merge(config, _parse_override(override))
    return config


def find_config(source: str, room: str = "") -> Path:
    """Return the path of a config given by name or path; see `config_names`. Raises UserError if there is none."""
    if "/" in source or source.endswith((".yaml", ".yml")):
        if not os.path.isfile(source):  # a name too long is none
            raise UserError(f"--config: no such file: {source}")
        return Path(source)
    if source == SWEEP_NAME:
        raise UserError(
            "--config: expected the config of a run, got a sweep; start it with wandb sweep configs/sweep.yaml"
        )
    for folder in _config_folders(room):
        if (folder / f"{source}.yaml").is_file():
            return folder / f"{source}.yaml"
    installed = () if room else installed_config_folders()
    of_packages = [path for folder in installed if (path := folder / f"{source}.yaml").is_file()]
    if len(of_packages) > 1:
        raise UserError(f"--config: expected one of {' or '.join(map(str, of_packages))}, got {source!r}")
    if of_packages:
        return of_packages[0]
    names = config_names(room)
    hint = did_you_mean(source, names)
    raise UserError(f"--config: expected one of {', '.join(names)} or a path, got {source!r}{hint}")


def _config_folders(room: str) -> Iterator[Path]:
    for path in gflownet.__path__:
        if (folder := Path(path) / "configs" / room).is_dir():
            yield folder


def _parse_override(override: str, options: Mapping[str, Option] = OPTIONS) -> dict[str, Any]:
    key, equals, text = override.partition("=")
    if not (key and equals):
        raise UserError(f"{override}: expected KEY=VALUE{_hint_without_value(override, options)}")
    # A typed word or name stays one where YAML reads something else, or nothing: no, 007, price: net, %d.%m.%Y.
    text, is_plain = text.strip(), text.strip()[:1] not in ("", "[", "{", "'", '"', "!")
    try:
        check_yaml_depth(text)
        tree: Any = _omegaconf().to_container(_omegaconf().from_dotlist([f"value={text}"]), resolve=False)
        value = tree["value"]
    except (_yaml().YAMLError, _errors().OmegaConfBaseException, ValueError, RecursionError) as error:
        if not (is_plain and isinstance(error, _yaml().YAMLError)):
            raise UserError(f"{key}: expected a YAML value, got {override!r}: {' '.join(str(error).split())}") from None
        value = text
    is_word = is_plain and value is not None and str(value).lower() != text.lower()
    return _nested(key, text if is_word and not (key in options and options[key].is_number) else value)


def _merge(
    config: Config, tree: Mapping[str, Any], *, where: str = "", options: Mapping[str, Option] = OPTIONS
) -> None:
    """Set every leaf of `tree` in `config`, one by one, so that an error has its key."""
    for key, value in _leaves(tree, options):
        option = options.get(key)
        if option is None:
            hint = hint_of_option(key, value, options) or "; --help lists the options"
            if key == "config" and options is OPTIONS:
                hint = f"; did you mean --config {value}?"
            raise UserError(f"{where}{key}: unknown option, got {key}={_shown(value)}{hint}")
        if value is None and option.default in ("", [], {}):  # KEY= without a value
            value = copy.copy(option.default)
        value = option.meant(value)
        mistyped = UserError(f"{where}{key}: expected {option.expected}, got {_shown(value)}")
        if not option.may_hold(value):
            raise mistyped
        try:
            _omegaconf().update(cast(Any, config), key, value, merge=isinstance(value, dict))
        except (_errors().OmegaConfBaseException, ValueError, TypeError):
            raise mistyped from None


def _leaves(tree: Mapping[str, Any], options: Mapping[str, Option], prefix: str = "") -> Iterator[tuple[str, Any]]:
    groups = groups_of(tuple(options))
    for name, value in tree.items():
        key = f"{prefix}{name}"
        misspelt_group = key not in options and isinstance(value, Mapping) and len(value) > 0
        if key not in groups and not misspelt_group:
            yield key, value
        elif isinstance(value, Mapping):
            yield from _leaves(value, options, f"{key}.")
        elif value is not None:  # a heading in YAML whose lines are all commented out is None
            members = [option for option in options if option.startswith(f"{key}.")]
            listed = ", ".join([*members[:_MAX_LISTED], *["..."] * (len(members) > _MAX_LISTED)])
            hint = hint_of_option(key, value, options)
            raise UserError(f"{key}: expected a group of options ({listed}), got {_shown(value)}{hint}")


def _hint_without_value(word: str, options: Mapping[str, Option]) -> str:
    """Return "; did you mean --config NAME?" for the name or the file of a config, else an example of KEY=VALUE."""
    stem = word.removesuffix(".yaml").rpartition("/")[2]
    nearest = max(config_names(), key=lambda name: likeness(stem, name)) if options is OPTIONS else ""
    key = nearest_key(word.lstrip("-"), options)
    if "seed" in options and not hint_of_option(word.lstrip("-"), "", options):
        key = "seed"
    if likeness(stem, nearest) >= max(NEAR, likeness(stem, key)):
        return f"; did you mean --config {word if os.path.isfile(word) and '/' in word else nearest}?"
    return f", for example {shlex.quote(f'{key}={options[key].default_text}')}"


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python limits the digits of an integer
        text = "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:77]}..."


# Imported on first use: --help needs neither. A lazy module in the place of omegaconf would be imported twice, with two
# classes of each error, by `import omegaconf.errors` elsewhere.
def _omegaconf():
    from omegaconf import OmegaConf

    return OmegaConf


def _errors():
    from omegaconf import errors

    return errors


def _yaml():
    import yaml

    return yaml
