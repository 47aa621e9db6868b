"""Prompts from the messages of a chat, by a Jinja2 template as in Hugging Face's chat_template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
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
_SAMPLE = ({"role": "user", "content": "a"},)


@dataclass(frozen=True)
class ChatTemplate:
    """A template, and texts that end an answer."""

    source: str = DEFAULT_SOURCE
    stops: tuple[str, ...] = DEFAULT_STOPS

    def __post_init__(self) -> None:
        """Compile the template in Jinja2's sandbox; raises TemplateError."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
        )
        environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)  # Jinja2's own escapes for HTML
        environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        object.__setattr__(self, "_template", environment.from_string(self.source))

    def check(self) -> None:
        """Render a chat of one message. Raises an error that is no refusal by the template itself."""
        with suppress(_RefusalError):
            self._rendered(_SAMPLE)

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the prompt for the next message of the assistant.

        Raises:
            RequestError: the template refuses the messages.
        """
        try:
            return self._rendered(messages)
        except Exception as error:  # a template may fail in any way
            reason = " ".join(str(error).split()) or type(error).__name__
            raise bad_request("messages", f"the chat template refuses them: {reason}") from None

    def _rendered(self, messages: Sequence[Mapping[str, Any]]) -> str:
        values = {"messages": messages, "add_generation_prompt": True, "bos_token": "", "eos_token": "", "tools": None}
        template: Any = self._template  # type: ignore[attr-defined]
        return template.render(values)


class _Generation(Extension):
    """`{% generation %} ... {% endgeneration %}`, by which Hugging Face marks the answers for training."""

    tags = {"generation"}  # noqa: RUF012  # the type of the base class

    def parse(self, parser: Parser) -> Any:
        """Return the contents."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _RefusalError(TemplateError):
    """Raised by `raise_exception` of a template."""


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
        template = ChatTemplate(chosen.read_text(encoding="utf-8"), tuple(stops))
        template.check()
        return template
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--chat-template: {chosen}: cannot be read ({error})") from None
    except Exception as error:  # a template may fail in any way
        reason = " ".join(str(error).split())
        raise UserError(f"--chat-template: {chosen}: expected a Jinja2 template, got an error: {reason}") from None


def _raise_exception(message: str) -> NoReturn:
    raise _RefusalError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)
