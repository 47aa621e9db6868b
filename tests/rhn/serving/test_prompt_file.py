"""Files of prompts and answers: parsing and errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from gflownet.errors import UserError
from gflownet.language.generate import Prompt, new_file, read_prompts

DEFAULTS = {"temperature": 1.0, "seed": 10}


def test_text_file_has_one_prompt_per_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes("\ufeffdef f(\r\n\n  \n{é\n".encode())
    assert read_prompts(path, DEFAULTS) == [
        Prompt(1, "def f(", {"temperature": 1.0, "seed": 11}),
        Prompt(4, "{é", {"temperature": 1.0, "seed": 14}),
    ]


def test_jsonl_line_has_options(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a\\nb", "seed": 3}\n{"prompt": "c", "temperature": 0}\n')
    assert read_prompts(path, DEFAULTS) == [
        Prompt(1, "a\nb", {"temperature": 1.0, "seed": 3}),
        Prompt(2, "c", {"temperature": 0, "seed": 12}),
    ]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("p.txt", b"\xff\xfe", "--prompts: cannot read the text file "),
        ("p.txt", b"\n \n", "--prompts: expected at least one prompt, "),
        ("p.jsonl", b"\n{", "line 2: expected a JSON object, got invalid text: "),
        ("p.jsonl", b"[]", 'line 1: expected an object with a text as "prompt", got []'),
        ("p.jsonl", b'{"prompt": ""}', 'line 1: expected an object with a text as "prompt", got '),
        ("p.jsonl", b'{"prompt": ["a"]}', 'line 1: expected an object with a text as "prompt", got '),
        ("p.jsonl", b'{"prompt": "\\ud83d"}', "line 1: prompt: text: expected characters that UTF-8 can encode, got "),
        ("p.jsonl", b'{"prompt": "a", "temp": 1}', "line 1: expected prompt or one of temperature, seed, got 'temp'"),
    ],
)
def test_invalid_prompt_file_raises_one_line(name: str, data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError) as caught:
        read_prompts(tmp_path / name, DEFAULTS)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_prompt_file_raises(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--prompts: cannot read the text file .*none.txt"):
        read_prompts(tmp_path / "none.txt", DEFAULTS)


def test_answer_file_is_new(tmp_path: Path) -> None:
    path = tmp_path / "new" / "answers.jsonl"
    with new_file(path) as answers:
        answers.write("é\n")
    with pytest.raises(UserError, match=r"^--out: expected a new file, got an existing one: .*answers\.jsonl$"):
        new_file(path)
    assert path.read_text(encoding="utf-8") == "é\n"
    other = tmp_path / "notes.txt"
    other.write_text("a text without a final newline", encoding="utf-8")
    with pytest.raises(UserError, match=r"^--out: expected a new file, got an existing one: .*notes\.txt$"):
        new_file(other)
    assert other.read_text(encoding="utf-8") == "a text without a final newline"
    with pytest.raises(UserError, match=r"^--out: cannot write the file "):
        new_file(path / "answers.jsonl")
