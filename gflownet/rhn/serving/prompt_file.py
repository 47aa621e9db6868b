"""Read a file of prompts and write a file of answers, one line each; a second run answers the missing prompts."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gflownet.errors import UserError
from gflownet.files import parse_json
from gflownet.rhn.text_codec import encode

JSONL_SUFFIX = ".jsonl"


@dataclass(frozen=True)
class Prompt:
    """One line of a file of prompts."""

    line: int  # from 1
    text: str
    options: Mapping[str, Any]  # sampling options by name

    def record(self) -> dict[str, Any]:
        """Return the first fields of the line of its record."""
        return {"line": self.line, "prompt": self.text, "options": dict(self.options)}


def read_prompts(path: Path, defaults: Mapping[str, Any]) -> list[Prompt]:
    """Return the prompts of a file, without empty lines.

    A *.jsonl file has an object on each line, with `prompt` and options for this prompt; any other file has the prompts
    themselves. Without a `seed` option a line gets the default seed plus its line number, so that equal prompts have
    different answers.

    Args:
        path: of the file.
        defaults: all options by name, with `seed`.

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


class AnswerFile:
    """A file of answers, one JSON object per line in order of completion, locked by one process."""

    def __init__(self, path: Path) -> None:
        """Open or create the file, and remove an incomplete last line of a killed process.

        Raises:
            UserError: the file cannot be written, or another process has locked it.
        """
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab+")
        except OSError as error:
            raise UserError(f"--out: cannot write the file {path} ({error})") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise UserError(f"--out: another run writes to {path}") from None
        self._file.seek(0)
        self._lines = self._file.read().split(b"\n")
        incomplete = self._lines.pop()
        self._file.truncate(self._file.tell() - len(incomplete))

    def unanswered(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """Return the prompts without an record in the file when it was opened.

        Raises:
            UserError: an invalid line, or an answer to another prompt or with other options.
        """
        by_line = {prompt.line: prompt for prompt in prompts}
        done = set()
        for number, record in self._answers():
            prompt = by_line.get(record["line"])
            if prompt is None or any(record.get(name) != value for name, value in prompt.record().items()):
                expected = "expected an answer to one of these prompts with these options"
                raise UserError(f"--out: {self._path}: line {number}: {expected}, got {record.get('prompt')!r:.80}")
            done.add(prompt.line)
        return [prompt for prompt in prompts if prompt.line not in done]

    def _answers(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, line in enumerate(self._lines, 1):
            try:
                record = parse_json(line)
            except ValueError:
                record = None
            if not isinstance(record, dict) or not isinstance(record.get("line"), int):
                raise UserError(f"--out: {self._path}: line {number}: expected an answer, got {line[:80]!r}")
            yield number, record

    def write(self, record: Mapping[str, Any]) -> None:
        """Append and flush an answer; it survives a kill of the process."""
        self._file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        os.fsync(self._file.fileno())
        self._file.close()
