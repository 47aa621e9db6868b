"""A run that trains a language model on a text, and tests it: the stages and the closing lines."""

from __future__ import annotations

import copy
import json
import math
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import torch

from gflownet.config import to_mapping
from gflownet.errors import UserError
from gflownet.evaluation.candidates.language import (
    LanguageDivergedError,
    LanguageSteps,
    LanguageTraining,
    bits_per_byte_of,
    streamed_loss,
)
from gflownet.evaluation.execution import is_out_of_memory
from gflownet.files import cannot_write, parse_json, write_whole
from gflownet.language.config import MAY_CHANGE, OPTIONS, LanguageConfig, SampleConfig
from gflownet.language.setup import Setup, set_up
from gflownet.records.marker import read_marker
from gflownet.records.status import Phase, RunState
from gflownet.rhn.checkpoint import load_language_model, save_language_model
from gflownet.rhn.network import RecurrentNetwork
from gflownet.rhn.serving import SamplingParams, Stream
from gflownet.rhn.text_codec import TOKENIZER_NAME, TextCodec
from gflownet.run.folder import MODEL_NAME, SAMPLES_NAME, RunFolder
from gflownet.run.logging import METRICS_NAME
from gflownet.run.run import Run, Stage, StepStage, open_run, resume_command
from gflownet.run.view import Figure, Look, PlannedWork
from gflownet.terminal.arguments import program
from gflownet.terminal.console import duration

STOP_MESSAGE = "\nstopping after this step; repeat to stop immediately\n"
# Seed of sample n: seed + n times this, distinct from the seeds of the weights and batches.
_SAMPLE_SEED_STEP = 1_000_003
# A run that is continued takes this many times its steps or seconds in all.
_LONGER = 2
_EVALUATED = "validation_bits_per_byte"  # of steps with an evaluation
LOOK = Look(
    "language model",
    (
        Figure("bits_per_byte", "bits per byte, batch", "bits per byte", "{:.3f}".format),
        Figure(_EVALUATED, "", "validation", "{:.3f}".format, is_optional=True),
        Figure("validation", "validation", None, "{:.3f}".format),
        Figure("best", "best validation", None, "{:.3f}".format),
        Figure("learning_rate", "learning rate", "rate", "{:.2g}".format),
        Figure("tokens_per_second", "speed", "", "{:,.0f} tokens/s".format),
    ),
    marker=_EVALUATED,
)


def sample_text(
    model: RecurrentNetwork, codec: TextCodec, options: SampleConfig, *, seed: int, is_stopped: Callable[[], bool]
) -> str | None:
    """Return the text that a model writes after the prompt; no global random state is used.

    `is_stopped` is asked before each token; a stopped sample is None.
    """
    model = model if next(model.parameters()).device.type == "cpu" else copy.deepcopy(model).cpu()
    params = SamplingParams(temperature=options.temperature, max_tokens=options.tokens, seed=seed)
    tokens: list[int] = []
    for sampled in Stream(model.decoder(), codec.encode(options.prompt), params):
        if is_stopped():
            return None
        tokens.append(sampled.token)
    return codec.decode(tokens)


class SampleFile:
    """samples.jsonl: one JSON object per sample and line."""

    def __init__(self, path: Path, *, resume_step: int | None) -> None:
        """Begin a file, or keep the samples up to a step. Raises UserError if it cannot be written."""
        self._path = path
        lines = [] if resume_step is None or not path.exists() else path.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if _step_of(line) <= (resume_step or 0)]
        self.last_step = _step_of(kept[-1]) if kept else 0
        write_whole(path, b"".join(kept))

    def write(self, step: int, prompt: str, text: str) -> None:
        """Append a sample. Raises UserError if it cannot be written."""
        self.last_step = step
        line = json.dumps({"step": step, "prompt": prompt, "text": text}, ensure_ascii=False) + "\n"
        try:
            with self._path.open("ab") as file:
                file.write(line.encode("utf-8", "surrogatepass"))
        except OSError as error:
            raise cannot_write(self._path, error) from error


def _step_of(line: bytes) -> float:
    """Return the step of a line, infinity for half a line of a killed process."""
    try:
        return parse_json(line)["step"]
    except (ValueError, KeyError, TypeError):
        return float("inf")


def train_on_text(config: LanguageConfig, *, default_folder: str = "") -> int | None:
    """Train a model on a text; return the number of the signal that stopped it, None without one.

    `default_folder` is that of `open_run`.

    Raises:
        UserError: no usable text or model, a folder in use or with another run, or a training that diverges.
    """
    start = time.monotonic()
    torch.set_num_threads(config.num_threads)
    path = Path(config.log_dir)
    # The first checkpoint of a run is written before its metrics.
    is_continued = bool(config.resume) and read_marker(path) is not None and (path / METRICS_NAME).exists()
    setup = set_up(config, path / MODEL_NAME if is_continued else None)
    with open_run(config, default_folder=default_folder, stop_message=STOP_MESSAGE) as run:
        if run.folder.resumed:
            options = to_mapping(cast(Any, config))
            run.folder.refuse_changes(options, MAY_CHANGE)
        training = TrainingStage(config, run.folder, setup)
        training.restore() if is_continued else training.write_first_files()
        run.open_logs(
            resume_step=training.step if run.folder.resumed else None,
            planned=PlannedWork(
                num_steps=config.steps if config.seconds is None else 0,
                seconds=config.seconds or 0.0,
                phases=(Phase.TRAINING, Phase.FINAL),
            ),
            look=LOOK,
        )
        for line in training.opening_lines():
            run.logger.print(line)
        test = TestStage(config, run.folder, training)
        seconds = time.monotonic() - start
        with run.recorded(None, start_seconds=seconds, closing_lines=test.closing_lines), run.logger.live():
            for stage in (training, test):
                stage.run(run)
    return run.stop.signal


class TrainingStage(StepStage):
    """Training steps with evaluations and samples, in a locked run folder."""

    def __init__(self, config: LanguageConfig, folder: RunFolder, setup: Setup) -> None:
        """Begin a training; `restore` or `write_first_files` comes next."""
        self._config, self._folder, self._setup = config, folder, setup
        self.checkpoint_every = config.checkpoint_every
        self._model_folder = folder.path / MODEL_NAME
        self._steps = LanguageSteps(
            setup.model,
            setup.parts["train"].tokens,
            options=_training(config, setup),
            generator=torch.Generator().manual_seed(config.seed),
        )
        self.best, self.best_step = math.inf, 0  # evaluation of the kept weights
        self._kept = _copy_of(setup.model)  # weights in the model's folder: untrained ones before an evaluation
        self._validation = math.nan  # of the last evaluation
        self._seconds_before, self._start, self._end = 0.0, time.monotonic(), 0.0
        self._first_step, self._is_over = 0, False

    @property
    def step(self) -> int:
        """Return the number of completed steps."""
        return self._steps.step

    def write_first_files(self) -> None:
        """Write config, tokenizer, untrained model and first checkpoint. Raises UserError for files of others."""
        self._folder.write_config(self._config)
        if self._setup.tokenizer is not None:
            write_whole(self._model_folder / TOKENIZER_NAME, self._setup.tokenizer)
        save_language_model(self._model_folder, self._setup.model)
        self._folder.checkpoints.save(0, self.state_dict())

    def restore(self) -> None:
        """Continue after the last checkpoint; the model's folder gets the weights that were kept at that time.

        Raises:
            UserError: no intact checkpoint, one of another model, or another text than that of the run.
        """
        checkpoint, model = self._folder.last_checkpoint(), self._setup.model
        assert checkpoint is not None, "metrics.jsonl exists"
        state = checkpoint.state
        try:
            is_same_text = state["text"] == self._setup.digest
            self._kept = state["kept"]
            model.load_state_dict(state["model"])
            model.load_state_dict(self._kept)
            self._steps.load_state_dict(state["steps"])
            self.best, self.best_step, self._seconds_before = state["best"], state["best_step"], state["seconds"]
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            got = f"another ({type(error).__name__})"
            raise UserError(f"{checkpoint.path}: expected a checkpoint of this model, got {got}") from error
        if not is_same_text:
            raise UserError("text: expected the text of the run in log_dir, got another; choose another log_dir for it")
        self._folder.write_config(self._config)
        # A killed process may have kept later weights, of steps that are now taken again.
        save_language_model(self._model_folder, model)
        model.load_state_dict(state["model"])
        self._first_step = self._steps.step

    def opening_lines(self) -> Iterator[str]:
        """Yield the lines before the first step."""
        config, setup = self._config, self._setup
        yield setup.text_line
        yield setup.model_line
        if not setup.is_lossless:
            yield "tokenizer: it does not reproduce the text; bits per byte count the bytes of the text"
        length = f"{config.steps:,} steps" if config.seconds is None else f"{config.seconds:g} seconds"
        device = next(setup.model.parameters()).device
        yield (
            f"training: {length} of {config.rows * config.accumulation} sequences of {config.sequence_length}, "
            f"{config.optimiser} {setup.learning_rate:g} {config.schedule}, {device} {setup.precision}, "
            f"{config.num_threads} thread{'s' if config.num_threads > 1 else ''}"
        )
        if self._steps.step:
            yield f"continuing after step {self._steps.step:,}"

    def steps(self, run: Run) -> Iterator[dict[str, float]]:
        """Take the steps until the end or a signal.

        Raises:
            UserError: the training diverges, or the memory is too small.
        """
        resume_step = self.step if self._folder.resumed else None
        self._samples = SampleFile(self._folder.path / SAMPLES_NAME, resume_step=resume_step)
        with run.phase(Phase.TRAINING):
            self._setup.model.train()
            self._sample(run)  # of the step before a stop
            self._is_over = self._done() >= 1
            while not self._is_over and not run.is_stopped:
                yield self._step()

    def write(self, run: Run, metrics: dict[str, float]) -> None:
        """Write the metrics of a step, and its sample."""
        train, seconds = self._setup.parts["train"], time.monotonic() - self._start
        self._validation = metrics.get(_EVALUATED, self._validation)
        bits = bits_per_byte_of(metrics["loss"], num_tokens=len(train.tokens), num_bytes=train.num_bytes)
        shown = {"bits_per_byte": bits, "validation": self._validation, "best": self.best}
        shown["tokens_per_second"] = self._num_tokens / max(seconds, 1e-9)
        run.logger.write(self.step, metrics, shown=shown)
        self._sample(run)

    def finish(self, run: Run, *, is_abandoned: bool) -> None:
        """Keep the weights of a training that was stopped before its first evaluation."""
        self._end = time.monotonic()
        if run.is_stopped and not self.best_step and not is_abandoned:
            self._keep_weights()

    def figures(self) -> dict[str, float]:
        """Return the results: bits per byte of the kept weights, size and speed."""
        return {
            "steps": self.step,
            "seconds": self._seconds(),
            "validation": self.best,
            "kept_step": self.best_step,
            "num_parameters": self._setup.num_parameters,
            "tokens_per_second": self._num_tokens / max(self._end - self._start, 1e-9),
        }

    def _step(self) -> dict[str, float]:
        """Take one step, with an evaluation where one is due, and return its metrics."""
        config = self._config
        try:
            step = self._steps.take(self._done())
        except LanguageDivergedError as error:
            kept = f"the checkpoint {self._folder.checkpoints.own()[0].name} is kept"
            hint = f"resume=true with a learning_rate below {self._setup.learning_rate:g} may help"
            raise UserError(f"{error}; {kept}; {hint}") from None
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            expected = f"step {self._steps.step + 1}: expected memory for rows={config.rows}, got too little"
            hint = "overwrite_existing_exp=true starts again, with fewer rows or a smaller model"
            raise UserError(f"{expected}; {hint}") from error
        values = {
            "loss": step.loss,
            "learning_rate": step.rate,
            "gradient_norm": step.gradient_norm,
            "tokens": self._steps.step * self._tokens_per_step,
        }
        self._is_over = self._done() >= 1  # asked once: the last step has an evaluation
        if self._steps.step % config.evaluate_every == 0 or self._is_over:
            values["validation_bits_per_byte"] = self._evaluate()
        return {**values, "seconds": self._seconds()}

    def _evaluate(self) -> float:
        """Return the bits per byte of the validation part, and keep the weights that are to be kept."""
        bits = self.bits(self._setup.model, "validation", self._config.validation_tokens)
        if bits < self.best or (self._config.keep == "last" and math.isfinite(bits)):
            self.best, self.best_step = bits, self._steps.step
            self._keep_weights()
        return bits

    def _keep_weights(self) -> None:
        """Write the weights to the model's folder; checkpoints have them from now on."""
        self._kept = _copy_of(self._setup.model)
        save_language_model(self._model_folder, self._setup.model)

    def bits(
        self, model: torch.nn.Module, part: str, num_tokens: int, is_stopped: Callable[[], bool] = lambda: False
    ) -> float:
        tokens = self._setup.parts[part]
        loss = streamed_loss(model, tokens.tokens, num_tokens=num_tokens, is_stopped=is_stopped)
        return bits_per_byte_of(loss, num_tokens=len(tokens.tokens), num_bytes=tokens.num_bytes)

    def _sample(self, run: Run) -> None:
        """Write the sample of the last step, if one is due; after a stop the resumed run writes it."""
        options, step = self._config.sample, self.step
        if not options.every or step % options.every or step <= self._samples.last_step:
            return
        seed = self._config.seed + step * _SAMPLE_SEED_STEP
        text = sample_text(self._setup.model, self._setup.codec, options, seed=seed, is_stopped=lambda: run.is_stopped)
        if text is None:
            return
        self._samples.write(step, options.prompt, text)
        run.logger.view.show_text(f"sample after step {step}", (options.prompt + text).strip("\n"))

    @property
    def _num_tokens(self) -> int:
        """Return the number of tokens of this process's steps."""
        return (self.step - self._first_step) * self._tokens_per_step

    @property
    def _tokens_per_step(self) -> int:
        return self._config.rows * self._config.accumulation * self._config.sequence_length

    def _seconds(self) -> float:
        """Return the seconds of training, those of earlier processes included."""
        return self._seconds_before + time.monotonic() - self._start

    def _done(self) -> float:
        """Return the share of the training that is done."""
        if self._config.seconds is None:
            return self._steps.step / self._config.steps
        return self._seconds() / self._config.seconds

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state for a checkpoint."""
        return {
            "model": self._setup.model.state_dict(),
            "kept": self._kept,
            "steps": self._steps.state_dict(),
            "best": self.best,
            "best_step": self.best_step,
            "seconds": self._seconds(),
            "text": self._setup.digest,
        }


class TestStage(Stage):
    """Bits per byte of the kept weights on the test part."""

    __test__ = False  # no test of pytest

    def __init__(self, config: LanguageConfig, folder: RunFolder, training: TrainingStage) -> None:
        """Take the training whose kept weights are tested."""
        self._config, self._folder, self._training = config, folder, training
        self._bits = math.nan

    def run(self, run: Run) -> None:
        """Test the model; a resumed run repeats a test that a signal has ended."""
        if run.is_stopped:
            return
        with run.phase(Phase.FINAL):
            model = load_language_model(self._folder.path / MODEL_NAME)
            self._bits = self._training.bits(model, "test", self._config.test_tokens, is_stopped=lambda: run.is_stopped)

    def closing_lines(self, state: RunState) -> Iterator[str]:
        """Yield the results, and three commands: generate, serve, train longer; or the one that continues."""
        folder, config, figures = self._folder.path, self._config, self._training.figures()
        resume = resume_command(folder, command="language")
        if state is RunState.INTERRUPTED:
            yield f"stopped after step {figures['steps']:,}; to continue: {resume}"
        if state is not RunState.COMPLETED:
            return
        steps = f"{figures['steps']:,.0f} steps in {duration(figures['seconds'])}"
        speed = f", {figures['tokens_per_second']:,.0f} tokens/s" if figures["tokens_per_second"] else ""
        yield f"trained {figures['num_parameters']:,.0f} parameters, {steps}{speed}"
        yield (
            f"bits per byte: test {self._bits:.3f}, validation {figures['validation']:.3f} "
            f"(weights of step {figures['kept_step']:,.0f})"
        )
        model = shlex.quote(str(folder / MODEL_NAME))
        longer = (
            f"steps={config.steps * _LONGER}" if config.seconds is None else f"seconds={config.seconds * _LONGER:g}"
        )
        yield "next:"
        yield f"  {program('generate').replace('.language', '.generate')} {model}"
        yield f"  python -m gflownet.rhn.server {model}"
        yield f"  {resume} {longer}"


def _copy_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return a copy of the weights in main memory."""
    return {name: tensor.to("cpu", copy=True) for name, tensor in model.state_dict().items()}


def _training(config: LanguageConfig, setup: Setup) -> LanguageTraining:
    names = {item.name for item in fields(LanguageTraining)} & OPTIONS.keys()
    options = {name: getattr(config, name) for name in names - {"seconds", "learning_rate", "precision"}}
    return LanguageTraining(**options, learning_rate=setup.learning_rate, precision=setup.precision)
