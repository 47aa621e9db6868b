"""Prompts of a file, one per line, and the new file of their answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

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


def new_file(path: Path) -> IO[str]:
    """Open a new file for answers. Raises UserError where there is one, or it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("x", encoding="utf-8")
    except OSError as error:
        if path.exists():
            raise UserError(f"--out: expected a new file, got an existing one: {path}") from None
        raise UserError(f"--out: cannot write the file {path} ({error})") from None
