"""One training of a language model: run folder, steps, evaluations, samples, checkpoints and the closing lines."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from signal import Signals
from typing import Any, cast

import torch

from gflownet.config import CONFIG_NAME, to_mapping
from gflownet.console import make_console, print_line
from gflownet.errors import UserError
from gflownet.evaluation.language_training import (
    LanguageDivergedError,
    LanguageSteps,
    LanguageTraining,
    bits_per_byte_of,
    streamed_loss,
)
from gflownet.files import write_whole
from gflownet.interrupts import AbandonedError, StopRequest, stop_signals
from gflownet.language.closing import closing_lines, resume_line
from gflownet.language.config import MAY_CHANGE, LanguageConfig
from gflownet.language.memory import is_out_of_memory
from gflownet.language.samples import SAMPLES_NAME, SampleFile, sample_text
from gflownet.language.setup import Setup, set_up
from gflownet.language.view import Shown, View, make_view
from gflownet.rhn.checkpoint import load_language_model, save_language_model
from gflownet.rhn.text_codec import TOKENIZER_NAME
from gflownet.run.folder import LANGUAGE_FILES, RunFolder
from gflownet.run.logging import METRICS_NAME, MetricsFile
from gflownet.run.wandb_log import WandbLog
from gflownet.run_marker import read_marker
from gflownet.run_status import Phase, RunState, StatusLog

MODEL_NAME = "model"
STOP_MESSAGE = "\nstopping after this step; repeat to stop immediately\n"
# Seed of sample n: seed + n times this, distinct from the seeds of the weights and batches.
_SAMPLE_SEED_STEP = 1_000_003


def train_on_text(config: LanguageConfig) -> int | None:
    """Train a model on a text; return the number of the signal that stopped it, None without one.

    Raises:
        UserError: no usable text or model, a folder in use or with another run, or a training that diverges.
    """
    torch.set_num_threads(config.num_threads)
    console, path = make_console(), Path(config.log_dir)
    # The first checkpoint of a run is written before its metrics.
    is_continued = bool(config.resume) and read_marker(path) is not None and (path / METRICS_NAME).exists()
    setup = set_up(config, path / MODEL_NAME if is_continued else None)
    with ExitStack() as stack:
        folder = stack.enter_context(RunFolder(path, resume=config.resume, overwrite=config.overwrite_existing_exp))
        if folder.resumed:
            _check_unchanged(config, folder.started_options)
        view = make_view(console, config)
        stack.callback(view.close)
        run = LanguageRun(config, folder, setup, view)
        run.restore() if is_continued else run.write_first_files()
        for line in run.opening_lines():
            view.print(line)
        stop = stack.enter_context(stop_signals(message=STOP_MESSAGE, ends_process=True))
        run.train_and_test(stop)
    lines = closing_lines(run.figures(), path, config) if stop.signal is None else [resume_line(path, run.steps.step)]
    for line in lines:
        print_line(console, line)
    return stop.signal


class LanguageRun:
    """A training in a locked run folder."""

    def __init__(self, config: LanguageConfig, folder: RunFolder, setup: Setup, view: View) -> None:
        """Begin a training; `restore` or `write_first_files` comes next."""
        self.config, self.setup = config, setup
        self._folder, self._view = folder, view
        self._model_folder = folder.path / MODEL_NAME
        self.steps = LanguageSteps(
            setup.model,
            setup.parts["train"].tokens,
            options=_training(config, setup),
            generator=torch.Generator().manual_seed(config.seed),
        )
        self.best, self.best_step = math.inf, 0  # evaluation of the kept weights
        self._kept = _copy_of(setup.model)  # weights in the model's folder: untrained ones before an evaluation
        self.test = self._validation = math.nan  # bits per byte, validation of the last evaluation
        self._seconds_before, self._start, self._end = 0.0, time.monotonic(), 0.0
        self._first_step, self._done_before, self._is_over = 0, 0.0, False

    def write_first_files(self) -> None:
        """Write config, tokenizer, untrained model and first checkpoint. Raises UserError for files of others."""
        self._folder.write_options(self.config, CONFIG_NAME, METRICS_NAME, *LANGUAGE_FILES)
        if self.setup.tokenizer is not None:
            write_whole(self._model_folder / TOKENIZER_NAME, self.setup.tokenizer)
        save_language_model(self._model_folder, self.setup.model)
        self._folder.checkpoints.save(0, self._state())

    def restore(self) -> None:
        """Continue after the last checkpoint; the model's folder gets the weights that were kept at that time.

        Raises:
            UserError: no intact checkpoint, one of another model, or another text than that of the run.
        """
        checkpoint = self._folder.last_checkpoint()
        assert checkpoint is not None, "metrics.jsonl exists"
        state = checkpoint.state
        try:
            is_same_text = state["text"] == self.setup.digest
            self._kept = state["kept"]
            self.setup.model.load_state_dict(state["model"])
            self.setup.model.load_state_dict(self._kept)
            self.steps.load_state_dict(state["steps"])
            self.best, self.best_step, self._seconds_before = state["best"], state["best_step"], state["seconds"]
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            got = f"another ({type(error).__name__})"
            raise UserError(f"{checkpoint.path}: expected a checkpoint of this model, got {got}") from error
        if not is_same_text:
            raise UserError("text: expected the text of the run in log_dir, got another; choose another log_dir for it")
        self._folder.write_options(self.config, CONFIG_NAME)
        # A killed process may have kept later weights, of steps that are now taken again.
        save_language_model(self._model_folder, self.setup.model)
        self.setup.model.load_state_dict(state["model"])
        self._first_step, self._done_before = self.steps.step, self._done()

    def opening_lines(self) -> Iterator[str]:
        """Yield the lines before the first step."""
        config, setup = self.config, self.setup
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
        if self.steps.step:
            yield f"continuing after step {self.steps.step:,}"

    def train_and_test(self, stop: StopRequest) -> None:
        """Train until the end or a signal, then test the kept model; the state of the run is in status.json.

        Raises:
            UserError: the training diverges, or a file cannot be written.
        """
        status = StatusLog(self._folder.path, resumed=self._folder.resumed, write=self._folder.write)
        stop.mark = lambda number: status.mark_interrupted(Signals(number).name)
        try:
            with status.phase(Phase.TRAINING):
                self._train(stop, status)
            if stop.signal is None:
                with status.phase(Phase.FINAL):
                    model = load_language_model(self._model_folder)
                    self.test = self._bits(
                        model, "test", self.config.test_tokens, is_stopped=lambda: stop.signal is not None
                    )
            status.end(RunState.COMPLETED if stop.signal is None else RunState.INTERRUPTED)
        except BaseException as error:
            status.end(RunState.FAILED, str(error))
            raise

    def figures(self) -> dict[str, float]:
        """Return the results: bits per byte of the kept weights, size and speed."""
        num_tokens = (self.steps.step - self._first_step) * self._tokens_per_step
        seconds = max(self._end - self._start, 1e-9)
        return {
            "steps": self.steps.step,
            "seconds": self._seconds(),
            "test": self.test,
            "validation": self.best,
            "kept_step": self.best_step,
            "num_parameters": self.setup.num_parameters,
            "tokens_per_second": num_tokens / seconds,
        }

    def _train(self, stop: StopRequest, status: StatusLog) -> None:
        config, resume_step = self.config, self.steps.step if self._folder.resumed else None
        folder = self._folder
        metrics = MetricsFile(folder.path / METRICS_NAME, run=folder.run_id, resume_step=resume_step)
        samples = SampleFile(folder.path / SAMPLES_NAME, resume_step=resume_step)
        wandb = WandbLog(
            folder.path,
            config.wandb,
            config=to_mapping(cast(Any, config)),
            print_line=self._view.print,
            logged_step=metrics.last_step_before,
        )
        try:
            self.setup.model.train()
            self._sample(samples, stop)  # of the step before a stop
            self._is_over = self._done() >= 1
            while not self._is_over and stop.signal is None:
                with stop.abandonable():
                    values = self._step()
                metrics.write(self.steps.step, values)
                wandb.write(self.steps.step, values)
                self._show(values)
                self._sample(samples, stop)
                status.refresh()
                if self.steps.step % config.checkpoint_every == 0:
                    self._save(stop)
            if stop.signal is not None and not self.best_step:
                self._keep_weights()
            self._save(stop)
        except AbandonedError:
            self._view.print(f"step {self.steps.step + 1} is abandoned: resume=true continues from the last checkpoint")
        finally:
            self._end = time.monotonic()
            metrics.close()
            wandb.close()
            self._view.close()

    def _save(self, stop: StopRequest) -> None:
        with stop.completed():
            self._folder.checkpoints.save(self.steps.step, self._state())

    def _step(self) -> dict[str, float]:
        """Take one step, with an evaluation where one is due, and return its metrics."""
        config = self.config
        try:
            step = self.steps.take(self._done())
        except LanguageDivergedError as error:
            kept = f"the checkpoint {self._folder.checkpoints.own()[0].name} is kept"
            hint = f"resume=true with a learning_rate below {self.setup.learning_rate:g} may help"
            raise UserError(f"{error}; {kept}; {hint}") from None
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            expected = f"step {self.steps.step + 1}: expected memory for rows={config.rows}, got too little"
            hint = "overwrite_existing_exp=true starts again, with fewer rows or a smaller model"
            raise UserError(f"{expected}; {hint}") from error
        values = {
            "loss": step.loss,
            "learning_rate": step.rate,
            "gradient_norm": step.gradient_norm,
            "tokens": self.steps.step * self._tokens_per_step,
        }
        self._is_over = self._done() >= 1  # asked once: the last step has an evaluation
        if self.steps.step % config.evaluate_every == 0 or self._is_over:
            values["validation_bits_per_byte"] = self._evaluate()
        return {**values, "seconds": self._seconds()}

    def _evaluate(self) -> float:
        """Return the bits per byte of the validation part, and keep the weights that are to be kept."""
        bits = self._bits(self.setup.model, "validation", self.config.validation_tokens)
        if bits < self.best or (self.config.keep == "last" and math.isfinite(bits)):
            self.best, self.best_step = bits, self.steps.step
            self._keep_weights()
        return bits

    def _keep_weights(self) -> None:
        """Write the weights to the model's folder; checkpoints have them from now on."""
        self._kept = _copy_of(self.setup.model)
        save_language_model(self._model_folder, self.setup.model)

    def _bits(
        self, model: torch.nn.Module, part: str, num_tokens: int, is_stopped: Callable[[], bool] = lambda: False
    ) -> float:
        tokens = self.setup.parts[part]
        loss = streamed_loss(model, tokens.tokens, num_tokens=num_tokens, is_stopped=is_stopped)
        return bits_per_byte_of(loss, num_tokens=len(tokens.tokens), num_bytes=tokens.num_bytes)

    def _sample(self, samples: SampleFile, stop: StopRequest) -> None:
        """Write the sample of the last step, if one is due; after a stop the resumed run writes it."""
        options, step = self.config.sample, self.steps.step
        if not options.every or step % options.every or step <= samples.last_step:
            return
        seed = self.config.seed + step * _SAMPLE_SEED_STEP
        text = sample_text(
            self.setup.model, self.setup.codec, options, seed=seed, is_stopped=lambda: stop.signal is not None
        )
        if text is None:
            return
        samples.write(step, options.prompt, text)
        self._view.sample(step, options.prompt, text)

    def _show(self, values: Mapping[str, float]) -> None:
        train, seconds = self.setup.parts["train"], time.monotonic() - self._start
        num_tokens = (self.steps.step - self._first_step) * self._tokens_per_step
        is_evaluated = "validation_bits_per_byte" in values
        if is_evaluated:
            self._validation = values["validation_bits_per_byte"]
        shown = Shown(
            step=self.steps.step,
            num_steps=self.config.steps if self.config.seconds is None else None,
            done=self._done(),
            seconds=seconds,
            done_before=self._done_before,
            bits=bits_per_byte_of(values["loss"], num_tokens=len(train.tokens), num_bytes=train.num_bytes),
            rate=values["learning_rate"],
            tokens_per_second=num_tokens / max(seconds, 1e-9),
            validation=self._validation,
            best=self.best,
        )
        self._view.write(shown, is_evaluated=is_evaluated)

    @property
    def _tokens_per_step(self) -> int:
        return self.config.rows * self.config.accumulation * self.config.sequence_length

    def _seconds(self) -> float:
        """Return the seconds of training, those of earlier processes included."""
        return self._seconds_before + time.monotonic() - self._start

    def _done(self) -> float:
        """Return the share of the training that is done."""
        if self.config.seconds is None:
            return self.steps.step / self.config.steps
        return self._seconds() / self.config.seconds

    def _state(self) -> dict[str, Any]:
        """Return the state for a checkpoint: a resumed run continues exactly."""
        return {
            "model": self.setup.model.state_dict(),
            "kept": self._kept,
            "steps": self.steps.state_dict(),
            "best": self.best,
            "best_step": self.best_step,
            "seconds": self._seconds(),
            "text": self.setup.digest,
        }


def _copy_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return a copy of the weights in main memory."""
    return {name: tensor.to("cpu", copy=True) for name, tensor in model.state_dict().items()}


def _training(config: LanguageConfig, setup: Setup) -> LanguageTraining:
    return LanguageTraining(
        rows=config.rows,
        sequence_length=config.sequence_length,
        learning_rate=setup.learning_rate,
        schedule=config.schedule,
        warm_up=config.warm_up,
        last_rate=config.last_rate,
        optimiser=config.optimiser,
        weight_decay=config.weight_decay,
        max_gradient_norm=config.max_gradient_norm,
        accumulation=config.accumulation,
        precision=setup.precision,
        batches=config.batches,
    )


def _check_unchanged(config: LanguageConfig, started: Mapping[str, Any]) -> None:
    """Raise UserError for the first changed option that a resumed run may not change."""
    options = to_mapping(cast(Any, config))
    for key in options:
        if key not in MAY_CHANGE and started.get(key) != options[key]:
            raise UserError(
                f"{key}: expected {started.get(key)!r}, as the run in {config.log_dir} was started, got "
                f"{options[key]!r}; a run with it needs another log_dir"
            )
