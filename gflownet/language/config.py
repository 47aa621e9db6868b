"""The options of a training of a language model: defaults, then a YAML file, then KEY=VALUE (no torch)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from gflownet.config import MAX_SEED, WandbConfig, find_config, merged, names_folder, resolved
from gflownet.errors import UserError
from gflownet.evaluation.executors.machine import check_device
from gflownet.files import read_yaml
from gflownet.options import AT_LEAST_ONE, DECAY, NOT_NEGATIVE, POSITIVE, SHARE, Interval, find_options, option
from gflownet.records.marker import MARKER_NAME, check_folder_options, check_run_folder, newest_run, read_marker
from gflownet.records.trust import check_config

DEVICES = re.compile(r"auto|cpu|cuda(:\d{1,9})?")
ROOM = "language"  # of the configs that --config names


@dataclass
class SampleConfig:
    """Text written by the model during the training, in samples.jsonl."""

    every: int = option(500, "steps between two samples; 0: none", NOT_NEGATIVE)
    prompt: str = option("\n", "beginning of every sample")
    tokens: int = option(160, "tokens of a sample", AT_LEAST_ONE)
    temperature: float = option(0.7, "0: always the likeliest token", NOT_NEGATIVE)


@dataclass
class LanguageConfig:
    """Options of the training."""

    text: list[str] = option([], "FILE...: UTF-8 text files and folders, which are searched for text files")
    megabytes: float = option(200.0, "maximum size of the text; larger folders give a sample of their files", POSITIVE)
    include: str = option("", "ends of the names of files in folders, for example .md,.rst; empty: all files")
    tokenizer: str | None = option(None, "tokenizer.json of the package tokenizers; null: tokens are bytes")
    train_tokenizer: int | None = option(
        None, "train a byte-level BPE tokenizer with this many tokens on the training part", Interval(257)
    )
    model: str = option("S", "S, M or L, or the path of a YAML file with kind and sizes of a model")
    from_run: str | None = option(None, "--from: run of a search, or its top_architectures.json, with the model")
    rank: int = option(0, "rank of the model in the run of --from, 0: the best", NOT_NEGATIVE)
    log_dir: str = option("logs/language_model", "run folder; its folder model/ is the model to generate from")
    seed: int = option(0, "seed of the weights, the batches and the samples", Interval(0, MAX_SEED))
    steps: int = option(5000, "steps of the training", AT_LEAST_ONE)
    seconds: float | None = option(
        None, "length of the training in seconds, in place of steps; evaluations included, not repeatable", POSITIVE
    )
    rows: int = option(16, "sequences of a batch", AT_LEAST_ONE)
    sequence_length: int = option(64, "tokens of a sequence", AT_LEAST_ONE)
    batches: Literal["random", "contiguous"] = option(
        "random", "contiguous: sequences follow each other in the text and the state passes between them"
    )
    accumulation: int = option(1, "batches of a step, whose gradients are added", AT_LEAST_ONE)
    optimiser: Literal["adam", "adamw", "muon"] = option("adamw", "muon: orthogonalised steps of matrices, else adamw")
    learning_rate: float | None = option(
        None, "maximum learning rate; null: 0.008, and less for models wider than 256", POSITIVE
    )
    schedule: Literal["cosine", "linear", "trapezoid", "constant"] = option(
        "cosine", "learning rate after the warm-up; trapezoid: constant, then linear in the last fifth"
    )
    warm_up: float = option(0.05, "share of the training in which the learning rate rises", DECAY)
    last_rate: float = option(0.05, "learning rate at the end, as a share of the maximum", SHARE)
    weight_decay: float = option(0.01, "decoupled weight decay of matrices, with adamw and muon", NOT_NEGATIVE)
    max_gradient_norm: float = option(1.0, "larger gradients are scaled to this norm", POSITIVE)
    precision: Literal["auto", "float32", "bfloat16"] = option(
        "auto",
        "of matrix products; auto: bfloat16 for stacks of GRU and LSTM layers on CUDA and on CPUs with AVX512-BF16 or "
        "AMX, else float32",
    )
    device: str = option("auto", "cpu, cuda or cuda:N; auto: cuda where there is one")
    num_threads: int = option(1, "threads of torch; more help wide models on an idle machine", AT_LEAST_ONE)
    evaluate_every: int = option(500, "steps between two evaluations on the validation part", AT_LEAST_ONE)
    validation_tokens: int = option(65_536, "maximum number of tokens of an evaluation", AT_LEAST_ONE)
    test_tokens: int = option(262_144, "maximum number of tokens of the test at the end", AT_LEAST_ONE)
    keep: Literal["best", "last"] = option("best", "weights in model/: of the best evaluation, or of the last one")
    checkpoint_every: int = option(500, "steps between two checkpoints", AT_LEAST_ONE)
    resume: Literal[False, True, "auto"] = option(
        False, "true: continue the run in log_dir; auto: continue it, or start a new one where there is none"
    )
    overwrite_existing_exp: bool = option(False, "rename the run in log_dir to NAME.1, and start a new one")
    print_every: int = option(50, "steps between two lines if the output is not a terminal", AT_LEAST_ONE)
    console: Literal["quiet", "normal", "verbose"] = option(
        "normal", "quiet: only warnings, errors and the closing lines; verbose: a line for every step"
    )
    sample: SampleConfig = field(default_factory=SampleConfig)
    wandb: WandbConfig = field(default_factory=WandbConfig)


OPTIONS = {item.key: item for item in find_options(LanguageConfig)}
# Set by FILE... and --from.
FLAG_KEYS = ("text", "from_run")
# Options that a resumed run may change: those of its length, its output and the machine.
MAY_CHANGE = frozenset(
    {
        *("log_dir", "resume", "overwrite_existing_exp", "steps", "seconds", "learning_rate", "device", "num_threads"),
        *("checkpoint_every", "print_every", "console", "sample", "wandb", "test_tokens"),
    }
)


def load_config(
    source: str | None = None, overrides: Sequence[str] = (), *, files: Sequence[str] = (), from_run: str | None = None
) -> LanguageConfig:
    """Return the merged options, types checked, values not yet.

    Args:
        source: name of a config, or the path of a YAML file.
        overrides: KEY=VALUE; the last one wins.
        files: FILE of the command line.
        from_run: RUN of --from.

    Raises:
        UserError: unknown config or key, or a wrong type, in one line with the key.
    """
    trees = [] if source is None else [(f"{find_config(source, ROOM)}: ", read_yaml(find_config(source, ROOM)))]
    return _config([*trees, ("", _flags(files, from_run))], overrides)


def command_config(
    source: str | None, overrides: Sequence[str], *, files: Sequence[str], from_run: str | None
) -> LanguageConfig:
    """Return the options of a command line: without a config, those of the run to resume. Raises as `load_config`."""
    config = load_config(source, overrides, files=files, from_run=from_run)
    if config.resume and not names_folder(source, overrides, ROOM):
        overrides = [*overrides, f"log_dir={newest_run(Path(config.log_dir))}"]
        config = load_config(source, overrides, files=files, from_run=from_run)
    marker = read_marker(Path(config.log_dir)) if source is None and config.resume else None
    if marker is None:
        return config
    check_config(Path(config.log_dir), marker.config)
    tree = {**marker.config, "overwrite_existing_exp": False}
    where = f"{Path(config.log_dir) / MARKER_NAME}: "
    return _config([(where, tree), ("", _flags(files, from_run))], overrides)


def _config(trees: Sequence[tuple[str, Mapping[str, Any]]], overrides: Sequence[str]) -> LanguageConfig:
    return cast(LanguageConfig, merged(LanguageConfig, OPTIONS, trees=trees, overrides=overrides))


def _flags(files: Sequence[str], from_run: str | None) -> dict[str, Any]:
    """Return the options that FILE... and --from set, as absolute paths, which a resume in another folder needs."""
    flags: dict[str, Any] = {"text": [_absolute(file) for file in files]} if files else {}
    return flags if from_run is None else {**flags, "from_run": _absolute(from_run)}


def _absolute(path: str) -> str:
    return str(Path(path).absolute()).replace("${", "\\${")  # not an interpolation of OmegaConf


def validate(config: LanguageConfig) -> None:
    """Raise UserError for the first invalid value, with its key."""
    for item in OPTIONS.values():
        item.check(resolved(cast(Any, config), item))
    if not config.text:
        raise UserError("expected FILE..., a text file or a folder with text files, got nothing")
    check_folder_options(config.log_dir, resume=config.resume, overwrite=config.overwrite_existing_exp)
    if not DEVICES.fullmatch(config.device):
        raise UserError(f"device: expected auto, cpu, cuda or cuda:N, got {config.device!r}")
    if config.from_run is not None and config.model != OPTIONS["model"].default:
        raise UserError(f"model: expected none with --from, got {config.model}")
    if config.rank and config.from_run is None:
        raise UserError(f"rank: expected it with --from RUN, got {config.rank} without")
    if config.tokenizer is not None and config.train_tokenizer is not None:
        raise UserError(f"train_tokenizer: expected null with tokenizer={config.tokenizer}")
    if not config.sample.prompt:
        raise UserError("sample.prompt: expected at least one character, got ''")


def check_start(config: LanguageConfig) -> None:
    """Check what a training needs, before torch is imported.

    Raises:
        UserError: the run folder is in use, cannot be written or holds another run, or a file or the device is missing.
    """
    check_device(config.device)
    folder = Path(config.log_dir)
    check_run_folder(folder, resume=config.resume, overwrite=config.overwrite_existing_exp)
    is_new = not config.resume or read_marker(folder) is None  # else the run has a model and its tokenizer
    if is_new and config.from_run is None and Path(config.model).suffix and not os.path.isfile(config.model):
        raise UserError(f"model: no such file: {config.model}")
    files = {text: f"text: {text}: cannot be read" for text in config.text}
    if is_new and config.tokenizer is not None:
        files[config.tokenizer] = f"tokenizer: {config.tokenizer}: cannot be read"
    if is_new and config.from_run is not None:
        files[config.from_run] = (
            f"--from: expected a run of a search with top_architectures.json, got {config.from_run}"
        )
    for path, message in files.items():
        try:
            os.stat(path)
        except OSError as error:
            raise UserError(f"{message} ({error.strerror})") from None
