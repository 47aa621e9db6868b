"""Escaping of control characters in texts."""

import logging
import unicodedata

import pytest

from gflownet.errors import UserError, counted, error_line, printable
from gflownet.terminal.arguments import OneLineFormatter

HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202e\u2066\u200b\u2028\udc80\x00end"


@pytest.mark.parametrize("text", ["", "plain", "ä → ∂ 漢字 é", "two\nlines", "no\u00a0break"])
def test_printable_keeps_plain_text(text):
    assert printable(text) == text


def test_printable_escapes_hidden_characters():
    hidden = [c for c in map(chr, range(0x110000)) if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
    assert len(hidden) > 2_000
    shown = printable("".join(hidden))
    assert shown.replace("\n", "").isprintable()
    assert shown.encode().decode("unicode_escape").encode("utf-16", "surrogatepass") == "".join(hidden).encode(
        "utf-16", "surrogatepass"
    )


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (0, "step", "0 steps"),
        (1, "new seed", "1 new seed"),
        (2, "new seed", "2 new seeds"),
        (1000, "row", "1,000 rows"),
    ],
)
def test_counted(number, noun, text):
    assert counted(number, noun) == text


def test_error_line_is_one_printable_line():
    line = error_line(UserError(f"task:\n  {HOSTILE}"))
    assert line.isprintable()
    assert line.startswith("error: task: \\x1b]0;owned\\x07\\x1b[2J \\x9b31m\\u202e")


def test_warning_is_one_printable_line():
    record = logging.LogRecord("x", logging.WARNING, "", 1, "%s: damaged\nfile", (HOSTILE,), None)
    line = OneLineFormatter().format(record)
    assert line.isprintable()
    assert line.startswith("warning: \\x1b]0;owned")
