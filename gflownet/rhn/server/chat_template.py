"""Prompts from the messages of a chat, by a Jinja2 template as in Hugging Face's chat_template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gflownet.errors import UserError
from gflownet.rhn.server.errors import bad_request

TEMPLATE_NAME = "chat_template.jinja"  # in a model's folder, as on Hugging Face
# For a model of plain text; the answer ends where the model writes the next question.
DEFAULT_SOURCE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
DEFAULT_STOPS = ("\nuser:",)


@dataclass(frozen=True)
class ChatTemplate:
    """A template, and texts that end an answer."""

    source: str = DEFAULT_SOURCE
    stops: tuple[str, ...] = DEFAULT_STOPS

    def __post_init__(self) -> None:
        """Compile the template in Jinja2's sandbox; raises TemplateError."""
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)  # Jinja2's own escapes for HTML
        environment.globals["raise_exception"] = _raise_exception
        object.__setattr__(self, "_template", environment.from_string(self.source))

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the prompt for the next message of the assistant.

        Raises:
            RequestError: the template refuses the messages.
        """
        values = {"messages": messages, "add_generation_prompt": True, "bos_token": "", "eos_token": "", "tools": None}
        template: Any = self._template  # type: ignore[attr-defined]
        try:
            return template.render(values)
        except Exception as error:  # a template may fail in any way
            reason = " ".join(str(error).split()) or type(error).__name__
            raise bad_request("messages", f"the chat template refuses them: {reason}") from None


def load_chat_template(path: Path | None, stops: Sequence[str], folder: Path) -> ChatTemplate:
    """Return the template of a file; without one that of the model's folder, or the default.

    Raises:
        UserError: the file cannot be read, or is no template.
    """
    own = folder / TEMPLATE_NAME
    if path is None and not own.is_file():
        return ChatTemplate(stops=tuple(stops) or DEFAULT_STOPS)
    chosen = path or own
    try:
        return ChatTemplate(chosen.read_text(encoding="utf-8"), tuple(stops))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--chat-template: {chosen}: cannot be read ({error})") from None
    except (ValueError, TemplateError) as error:
        raise UserError(f"--chat-template: {chosen}: expected a Jinja2 template, got an error: {error}") from None


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
