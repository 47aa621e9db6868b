"""Prompts from a file and their answers in another, one line each, so that a second run does the missing ones."""

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
from gflownet.rhn.bytes_text import encode

JSONL_SUFFIX = ".jsonl"


@dataclass(frozen=True)
class Prompt:
    """One line of a file of prompts."""

    line: int  # from 1
    text: str
    options: Mapping[str, Any]  # of sampling, by name

    def record(self) -> dict[str, Any]:
        """Return the first fields of the line of its answer."""
        return {"line": self.line, "prompt": self.text, "options": dict(self.options)}


def read_prompts(path: Path, defaults: Mapping[str, Any]) -> list[Prompt]:
    """Return the prompts of a file; empty lines are none.

    A file called *.jsonl has an object with `prompt` on each line, beside it options for this prompt alone; every
    other file has the prompts themselves. A line whose options have no seed of their own gets the default one plus its
    line number, so that equal prompts have different answers.

    Args:
        path: of the file.
        defaults: options by name, all that there are, `seed` among them.

    Raises:
        UserError: no such file, not UTF-8, or a line that is no prompt.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--prompts: expected a text file that can be read, got {path} ({error})") from None
    prompts = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        options = {**defaults, "seed": defaults["seed"] + number}
        text: Any = line.removesuffix("\r")
        if path.suffix == JSONL_SUFFIX:
            text, own = _parse(f"{path}: line {number}", line, options)
            options |= own
        prompts.append(Prompt(number, text, options))
    if not prompts:
        raise UserError(f"--prompts: expected at least one prompt, got {path}, which has none")
    return prompts


def _parse(where: str, line: str, known: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the prompt of a JSON line, and the options that it names."""
    try:
        found = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where}: expected a JSON object, got something else: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("prompt"), str) or not found["prompt"]:
        raise UserError(f'{where}: expected an object with a text as "prompt", got {found!r:.80}')
    options = {name: value for name, value in found.items() if name != "prompt"}
    try:
        encode(found["prompt"])
    except ValueError as error:
        raise UserError(f"{where}: prompt: {error}") from None
    for name in options.keys() - known.keys():
        raise UserError(f"{where}: expected prompt or one of {', '.join(known)}, got {name!r}")
    return found["prompt"], options


class AnswerFile:
    """The answers, a JSON object per line in the order in which they were finished; held for one process."""

    def __init__(self, path: Path) -> None:
        """Open the file, which may be new, and cut off a line that a killed process left half written.

        Raises:
            UserError: it cannot be written, or another process has it open.
        """
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab+")
        except OSError as error:
            raise UserError(f"--out: expected a file that can be written, got {path} ({error})") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise UserError(f"--out: expected a file that no other run writes, got {path}") from None
        self._file.seek(0)
        self._lines = self._file.read().split(b"\n")
        half = self._lines.pop()
        self._file.truncate(self._file.tell() - len(half))

    def undone(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """Return the prompts without an answer in the file as it was opened.

        Raises:
            UserError: a line that is no answer, or one of another prompt or of other options.
        """
        by_line = {prompt.line: prompt for prompt in prompts}
        done = set()
        for number, answer in self._answers():
            prompt = by_line.get(answer["line"])
            if prompt is None or any(answer.get(name) != value for name, value in prompt.record().items()):
                expected = "expected an answer to one of these prompts with these options"
                raise UserError(f"--out: {self._path}: line {number}: {expected}, got {answer.get('prompt')!r:.80}")
            done.add(prompt.line)
        return [prompt for prompt in prompts if prompt.line not in done]

    def _answers(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, line in enumerate(self._lines, 1):
            try:
                answer = json.loads(line)
            except ValueError:
                answer = None
            if not isinstance(answer, dict) or not isinstance(answer.get("line"), int):
                raise UserError(f"--out: {self._path}: line {number}: expected an answer, got {line[:80]!r}")
            yield number, answer

    def write(self, answer: Mapping[str, Any]) -> None:
        """Add an answer; it is in the file when this returns, also when the process is killed then."""
        self._file.write(json.dumps(answer, ensure_ascii=False).encode() + b"\n")
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        os.fsync(self._file.fileno())
        self._file.close()
