"""Files of prompts and answers: parsing, errors, and continued runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gflownet.errors import UserError
from gflownet.rhn.serving.prompt_file import AnswerFile, Prompt, read_prompts

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


PROMPTS = [Prompt(line, f"prompt {line}", {"seed": line}) for line in (1, 2, 5)]


def answer_of(prompt: Prompt) -> dict[str, Any]:
    return {**prompt.record(), "text": "é\n"}


@pytest.mark.parametrize("lost", [0, 1, 20])
def test_second_run_answers_the_remaining_prompts(lost: int, tmp_path: Path) -> None:
    path = tmp_path / "new" / "answers.jsonl"
    with AnswerFile(path) as answers:
        assert answers.unanswered(PROMPTS) == PROMPTS
        for prompt in PROMPTS[2:0:-1]:
            answers.write(answer_of(prompt))
    path.write_bytes(path.read_bytes()[: path.stat().st_size - lost])
    with AnswerFile(path) as answers:
        undone = answers.unanswered(PROMPTS)
        assert undone == ([PROMPTS[0]] if lost == 0 else PROMPTS[:2])
        for prompt in undone:
            answers.write(answer_of(prompt))
    written = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(written, key=lambda answer: answer["line"]) == [answer_of(prompt) for prompt in PROMPTS]
    with AnswerFile(path) as answers:
        assert answers.unanswered(PROMPTS) == []


def test_write_flushes_the_answer(tmp_path: Path) -> None:
    with AnswerFile(tmp_path / "answers.jsonl") as answers:
        answers.write(answer_of(PROMPTS[0]))
        assert json.loads((tmp_path / "answers.jsonl").read_text()) == answer_of(PROMPTS[0])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("hello", "line 1: expected an answer, got "),
        ('{"line": [1]}', "line 1: expected an answer, got "),
        (json.dumps(answer_of(Prompt(3, "prompt 3", {"seed": 3}))), "line 1: expected an answer to one of these"),
        (json.dumps(answer_of(Prompt(1, "other", {"seed": 1}))), "line 1: expected an answer to one of these"),
        (json.dumps(answer_of(Prompt(1, "prompt 1", {"seed": 2}))), "line 1: expected an answer to one of these"),
    ],
)
def test_answers_to_other_prompts_raise_and_stay(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(line + "\n")
    with AnswerFile(path) as answers, pytest.raises(UserError, match=message):
        answers.unanswered(PROMPTS)
    assert path.read_text() == line + "\n"


def test_answer_file_is_locked(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    with AnswerFile(path), pytest.raises(UserError, match="--out: another run writes to "):
        AnswerFile(path)
    with AnswerFile(path):
        pass


def test_unwritable_answer_file_raises(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--out: cannot write the file "):
        AnswerFile(tmp_path)
