"""python -m gflownet.generate: text from a saved language model, for typed prompts or a file of prompts."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import IO, TYPE_CHECKING, Any

from gflownet.errors import UserError, error_line
from gflownet.files import parse_json
from gflownet.rhn.text_codec import check_model_folder, encode
from gflownet.terminal.arguments import EXIT_SIGNAL, CommandLine, program, run_command
from gflownet.terminal.interrupts import stop_signals

if TYPE_CHECKING:
    from gflownet.rhn.serving.engine import Engine
    from gflownet.rhn.serving.generation import Generation
    from gflownet.rhn.serving.requests import Request
    from gflownet.rhn.serving.sampling import SamplingParams
    from gflownet.rhn.text_codec import TextCodec

# Sampling options of the command line and of a file of prompts: type, default, help.
OPTIONS: dict[str, tuple[Callable[[str], Any], Any, str]] = {
    "max_tokens": (int, 256, "maximum number of tokens of an answer; without a tokenizer, bytes"),
    "temperature": (float, 1.0, "0: always the likeliest token"),
    "top_k": (int, 0, "sample from the K likeliest tokens only; 0: all"),
    "top_p": (float, 1.0, "sample from the likeliest tokens with this total probability only"),
    "min_p": (float, 0.0, "sample from tokens with at least this fraction of the largest probability only"),
    "repetition_penalty": (float, 1.0, "above 1: penalise tokens of prompt and answer"),
    "seed": (int, 0, "the prompt of line n, or the n-th typed prompt, uses seed + n"),
}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the values of the command line.

    Raises:
        UserError: an unknown option, a missing value, or options that exclude each other.
    """
    options = command_line().parse_args(arguments)
    if (options.prompts is None) != (options.out is None):
        raise UserError("expected --prompts and --out together, got one without the other")
    if options.prompts is None and options.logprobs is not None:
        raise UserError("--logprobs: expected together with --prompts")
    if options.max_slots < 1:
        raise UserError(f"--max-slots: expected at least 1, got {options.max_slots}")
    return options


def command_line() -> CommandLine:
    """Return the parser."""
    parser = CommandLine(
        prog=program("generate"),
        description="Generate text with a saved language model. Without --prompts, type prompts one at a time: "
        "Ctrl-C stops an answer, Ctrl-D ends.",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder with model.json and model.safetensors")
    group = parser.add_argument_group("sampling")
    for name, (kind, default, text) in OPTIONS.items():
        flag, text = f"--{name.replace('_', '-')}", f"{text} (default: {default})"
        group.add_argument(flag, type=kind, default=default, metavar="X", help=text)
    group.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end an answer before this text; may be repeated"
    )
    files = parser.add_argument_group("prompts from a file")
    files.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="one prompt per line; in a *.jsonl file one object per line, "
        "with prompt and optional max_tokens, ..., stop, logprobs",
    )
    files.add_argument("--out", type=Path, metavar="FILE", help="new file of answers, one JSON object per line")
    files.add_argument(
        "--logprobs", type=int, metavar="N", help="add the log-probabilities of each token and of the N likeliest"
    )
    files.add_argument(
        "--max-slots", type=int, default=32, metavar="N", help="maximum number of prompts at once (default: 32)"
    )
    return parser


def _sampling_options(options: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(options, name) for name in (*OPTIONS, "stop", "logprobs")}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: 0, 2 for an error of the user, 128 + a signal."""

    def generate() -> int:
        options = parse(sys.argv[1:] if argv is None else argv)
        return converse(options) if options.prompts is None else answer_file(options)

    return run_command(generate)


def _params(options: Mapping[str, Any], where: str = "") -> SamplingParams:
    """Check sampling options; `where` is the start of an error message."""
    from gflownet.rhn.serving.sampling import SamplingParams

    stop = [options["stop"]] if isinstance(options["stop"], str) else options["stop"]
    try:
        return SamplingParams(**{**options, "stop": tuple(stop)})
    except (TypeError, ValueError) as error:
        raise UserError(f"{where}{error}") from None


def _engine(folder: Path, max_slots: int) -> tuple[Engine, TextCodec]:
    """Return the tokens of a model, and an engine for a caller that submits at most `max_slots` requests at once."""
    check_model_folder(folder)
    # Imported here, so that --help and option errors do not import torch.
    from gflownet.rhn.checkpoint import load_text_model
    from gflownet.rhn.serving.engine import Engine, EngineConfig, SchedulerConfig

    model, codec = load_text_model(folder)
    return Engine(model, EngineConfig(SchedulerConfig(max_slots=max_slots), codec=codec)), codec


def converse(options: argparse.Namespace) -> int:
    """Answer typed prompts until the end of the input."""
    sampling = _sampling_options(options)
    _params(sampling)  # before the model is loaded
    engine, codec = _engine(options.folder, 1)
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        import readline  # noqa: F401  # input() edits lines with it

        print("Ctrl-C stops an answer, Ctrl-D ends.", file=sys.stderr)
    number = 0
    while True:
        try:
            text = input("> " if is_terminal else "")
        except EOFError:
            return 0
        except KeyboardInterrupt:
            if not is_terminal:
                raise
            print()
            continue
        if text:
            number += 1
            _answer(engine, codec, text, _params({**sampling, "seed": sampling["seed"] + number}))


def _answer(engine: Engine, codec: TextCodec, text: str, params: SamplingParams) -> None:
    """Stream the answer to one prompt to the terminal, until Ctrl-C."""
    from gflownet.rhn.serving.requests import FinishEvent, Request, TokenEvent

    try:
        request_id = engine.submit(Request(codec.encode(text), params))
    except ValueError as error:
        print(error_line(error), file=sys.stderr)
        return
    stream = codec.stream()
    with stop_signals(SIGINT, message="") as stop:
        while engine.has_work:
            events = engine.step()
            text = stream.text(event.sampled.token for event in events if isinstance(event, TokenEvent))
            cut = sum(event.cut for event in events if isinstance(event, FinishEvent))
            _write(text[: -cut or None])
            if stop.signal is not None:
                engine.cancel(request_id)
    _write(stream.rest() + "\n")


def _write(text: str) -> None:
    """Write text; on a terminal, escape control characters of the model."""
    sys.stdout.write(text.translate(_VISIBLE) if sys.stdout.isatty() else text)
    sys.stdout.flush()


_VISIBLE = {code: repr(chr(code))[1:-1] for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


def answer_file(options: argparse.Namespace) -> int:
    """Answer the prompts of a file; return 0, or 128 + the signal that ended the run."""
    from rich.console import Console
    from rich.progress import Progress

    prompts = [
        (prompt, _params(prompt.options, f"{options.prompts}: line {prompt.line}: "))
        for prompt in read_prompts(options.prompts, _sampling_options(options))
    ]
    with new_file(options.out) as file:
        try:
            engine, codec = _engine(options.folder, options.max_slots)
        except BaseException:
            options.out.unlink()  # of this run, and empty
            raise
        from gflownet.rhn.serving.generation import answers  # after the errors of the user: it imports torch

        progress = Progress(console=Console(stderr=True))
        with progress, stop_signals(SIGINT, SIGTERM, message="\nstopped\n") as stop:
            task = progress.add_task("prompts", total=len(prompts))
            requests = (_request(engine, codec, *each) for each in prompts)
            running: Any = {"max_running": options.max_slots, "is_stopped": lambda: stop.signal is not None}
            for place, answer in answers(engine, requests, **running):
                record = _record(codec, prompts[place][0], answer)
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
                file.flush()
                progress.advance(task)
    return 0 if stop.signal is None else EXIT_SIGNAL + stop.signal


def _request(engine: Engine, codec: TextCodec, prompt: Prompt, params: SamplingParams) -> Request:
    """Return the request of a prompt; a tokenizer may have no token for it."""
    from gflownet.rhn.serving.requests import Request

    try:
        request = Request(codec.encode(prompt.text), params)
        engine.check(request)
    except ValueError as error:
        raise UserError(f"--prompts: line {prompt.line}: {error}") from None
    return request


def _record(codec: TextCodec, prompt: Prompt, answer: Generation) -> dict[str, Any]:
    record: dict[str, Any] = {"line": prompt.line, "prompt": prompt.text, "options": dict(prompt.options)}
    record |= {"text": codec.decode(answer.tokens)[: -answer.cut or None], "finish_reason": answer.finish_reason}
    record["num_tokens"] = len(answer.tokens)
    if answer.error:
        record["error"] = answer.error
    if prompt.options["logprobs"] is not None:
        record["logprobs"] = [
            {"token": token, "logprob": log_probability, "likeliest": likeliest}
            for token, log_probability, likeliest in answer.sampled
        ]
    return record


JSONL_SUFFIX = ".jsonl"


@dataclass(frozen=True)
class Prompt:
    """One line of a file of prompts."""

    line: int  # from 1
    text: str
    options: Mapping[str, Any]  # sampling options by name


def read_prompts(path: Path, defaults: Mapping[str, Any]) -> list[Prompt]:
    """Return the prompts of a file, without empty lines.

    A *.jsonl file has an object on each line, with `prompt` and options for this prompt; any other file has the prompts
    themselves. Without a `seed` option a line gets the default seed plus its line number, so that equal prompts have
    different answers.

    Raises:
        UserError: no such file, not UTF-8, or an invalid line.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--prompts: cannot read the text file {path} ({error})") from None
    prompts = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        options = {**defaults, "seed": defaults["seed"] + number}
        text: Any = line.removesuffix("\r")
        if path.suffix == JSONL_SUFFIX:
            text, line_options = _parse(f"{path}: line {number}", line, options)
            options |= line_options
        prompts.append(Prompt(number, text, options))
    if not prompts:
        raise UserError(f"--prompts: expected at least one prompt, {path} has none")
    return prompts


def _parse(where: str, line: str, defaults: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the prompt and the options of a JSON line."""
    try:
        record = parse_json(line)
    except ValueError as error:
        raise UserError(f"{where}: expected a JSON object, got invalid text: {error}") from None
    if not isinstance(record, dict) or not isinstance(record.get("prompt"), str) or not record["prompt"]:
        raise UserError(f'{where}: expected an object with a text as "prompt", got {record!r:.80}')
    prompt = record.pop("prompt")
    try:
        encode(prompt)
    except ValueError as error:
        raise UserError(f"{where}: prompt: {error}") from None
    for name in record.keys() - defaults.keys():
        raise UserError(f"{where}: expected prompt or one of {', '.join(defaults)}, got {name!r}")
    return prompt, record


def new_file(path: Path) -> IO[str]:
    """Open a new file for answers. Raises UserError where there is one, or it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("x", encoding="utf-8")
    except OSError as error:
        if path.exists():
            raise UserError(f"--out: expected a new file, got an existing one: {path}") from None
        raise UserError(f"--out: cannot write the file {path} ({error})") from None
