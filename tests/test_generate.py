"""python -m gflownet.generate: at a terminal, with files, stopped."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.progress import Progress, TaskID

from gflownet.language.generate import main
from gflownet.rhn.checkpoint import load_text_model, save_language_model
from gflownet.rhn.config import RHNConfig
from gflownet.rhn.serving.generation import generate_batch
from gflownet.rhn.serving.sampling import SamplingParams
from gflownet.rhn.text_codec import decode, encode
from tests.rhn.random_networks import random_network

CONFIG = RHNConfig(hidden_size=8, intermediate_size=12, depth=2, rank=2)
NEVER_ENDS = 10**8  # tokens


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "model"
    save_language_model(path, random_network(CONFIG, 0))
    return path


def lines_of(path: Path) -> list[dict[str, Any]]:
    return sorted((json.loads(line) for line in path.read_text().splitlines()), key=lambda answer: answer["line"])


def test_answers_to_a_prompt_file_equal_offline_generation(folder: Path, tmp_path: Path) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    asked = [
        {"prompt": "def f(", "temperature": 0},
        {"prompt": "é", "seed": 99, "max_tokens": 30, "logprobs": 2},
        {"prompt": "class A", "stop": ["a", "b", "\n"], "top_k": 9},
        {"prompt": "x" * 50, "stop": "e", "repetition_penalty": 1.5, "top_p": 0.8, "min_p": 0.01},
    ]
    prompts.write_text("".join(json.dumps(one) + "\n" for one in asked))
    options = ["--max-tokens", "20", "--temperature", "0.9", "--seed", "7", "--max-slots", "3"]
    assert main([str(folder), "--prompts", str(prompts), "--out", str(out), *options]) == 0
    answers = lines_of(out)
    params = [
        SamplingParams(temperature=0, seed=8, max_tokens=20),
        SamplingParams(temperature=0.9, seed=99, max_tokens=30, logprobs=2),
        SamplingParams(temperature=0.9, seed=10, max_tokens=20, stop=("a", "b", "\n"), top_k=9),
        SamplingParams(
            temperature=0.9, seed=11, max_tokens=20, stop=("e",), repetition_penalty=1.5, top_p=0.8, min_p=0.01
        ),
    ]
    expected = generate_batch(
        load_text_model(folder).model, [encode(one["prompt"]) for one in asked], params, max_slots=3
    )
    assert [answer["text"] for answer in answers] == [decode(one.tokens) for one in expected]
    assert [answer["finish_reason"] for answer in answers] == [one.finish_reason for one in expected]
    assert [answer["num_tokens"] for answer in answers] == [len(one.tokens) for one in expected]
    assert "logprobs" not in answers[0]
    for said, one in zip(answers[1]["logprobs"], expected[1].sampled, strict=True):
        assert (said["token"], [token for token, _ in said["likeliest"]]) == (one.token, [t for t, _ in one.likeliest])
        assert said["logprob"] == pytest.approx(one.log_probability, abs=1e-9)
        assert [value for _, value in said["likeliest"]] == pytest.approx([v for _, v in one.likeliest], abs=1e-9)


class Lines(io.StringIO):
    """A terminal or a pipe that calls a function when a text has been written to it."""

    def __init__(self, watched: str, act: Callable[[], None], *, is_terminal: bool = True) -> None:
        super().__init__()
        self._watched, self._act, self._is_terminal = watched, act, is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, text: str) -> int:
        written = super().write(text)
        if self._watched and self._watched in self.getvalue():
            self._watched = ""
            self._act()
        return written


def endless_fourth() -> list[dict[str, Any]]:
    asked: list[dict[str, Any]] = [{"prompt": f"prompt {number}", "max_tokens": 5} for number in range(6)]
    asked[3]["max_tokens"] = NEVER_ENDS
    return asked


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_run_has_the_finished_answers(
    number: signal.Signals,
    status: int,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    prompts.write_text("".join(json.dumps(one) + "\n" for one in endless_fourth()))
    advance = Progress.advance

    def advance_and_stop(self: Progress, task: TaskID) -> None:
        advance(self, task)
        if len(out.read_bytes().splitlines()) == 5:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(Progress, "advance", advance_and_stop)
    assert main([str(folder), "--prompts", str(prompts), "--out", str(out)]) == status
    assert "stopped" in capsys.readouterr().err
    assert [answer["line"] for answer in lines_of(out)] == [1, 2, 3, 5, 6]


def test_prompts_from_a_pipe_are_answered_line_by_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("def f(\n\nclass A\n"))
    assert main([str(folder), "--max-tokens", "12", "--seed", "4"]) == 0
    params = [SamplingParams(max_tokens=12, seed=seed) for seed in (5, 6)]
    prompts = [encode("def f("), encode("class A")]
    expected = [
        generate_batch(load_text_model(folder).model, [p], [q], max_slots=1)[0]
        for p, q in zip(prompts, params, strict=True)
    ]
    assert capsys.readouterr() == ("".join(decode(one.tokens) + "\n" for one in expected), "")


def test_closed_pipe_ends_quietly(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(sys, "stdin", io.StringIO("a\n"))
    with os.fdopen(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main([str(folder), "--max-tokens", str(NEVER_ENDS)]) == 128 + signal.SIGPIPE
    assert capsys.readouterr().err == ""


def test_ctrl_c_stops_an_answer_and_ctrl_d_ends(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At a terminal of this process: an answer, Ctrl-C while it comes, Ctrl-C at the prompt, another answer, Ctrl-D."""
    keys, lengths = iter(["def f(\n", KeyboardInterrupt, "class A\n", ""]), []

    def interrupt() -> None:
        lengths.append(len(screen.getvalue()))
        os.kill(os.getpid(), signal.SIGINT)

    def readline(_: int = -1) -> str:
        lengths.append(len(screen.getvalue()))
        key = next(keys)
        if not isinstance(key, str):
            raise key
        return key

    # Control characters are spelled out.
    screen = Lines(r"\x", interrupt)
    keyboard = Lines("", lambda: None)
    monkeypatch.setattr(keyboard, "readline", readline)
    monkeypatch.setattr(sys, "stdin", keyboard)
    monkeypatch.setattr(sys, "stdout", screen)
    assert main([str(folder), "--max-tokens", "1000"]) == 0
    _, interrupted, stopped, _, answered = lengths
    assert stopped - interrupted < 20 < 500 < answered - stopped
    said = screen.getvalue()
    assert all(character >= " " or character in "\n\t" for character in said)
    assert said.count("> ") >= 4
    assert said.endswith("\n> ")
    assert capsys.readouterr().err == "Ctrl-C stops an answer, Ctrl-D ends.\n"


REFUSED = (
    ([], "expected FOLDER, got nothing"),
    (["--temp", "1"], "--temp: unknown option; did you mean --temperature?"),
    (["--max-tokens", "x"], "--max-tokens: expected an integer, got 'x'"),
    (["--prompts", "p.txt"], "expected --prompts and --out together"),
    (["--max-slots", "0"], "--max-slots: expected at least 1, got 0"),
    (["--logprobs", "1"], "--logprobs: expected together with --prompts"),
    (["--top-p", "2"], "top_p: expected a number > 0 and <= 1, got 2.0"),
    (["--stop", ""], "stop: expected "),
    (["--prompts", "none.txt", "--out", "o"], "--prompts: cannot read the text file none.txt"),
)


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_user_error_is_one_line_and_status_2(
    options: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(folder), *options] if options else []) == 2
    out, errors = capsys.readouterr()
    assert out == ""
    assert errors.startswith("error: ")
    assert message in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "a", "top_p": 2}', "line 1: top_p: expected a number > 0 and <= 1, got 2"),
        ('{"prompt": "a", "max_tokens": "9"}', "line 1: max_tokens: expected a whole number from 0 to"),
        ('{"prompt": "a", "stop": 3}', "line 1: "),
        ('{"prompt": "a", "stop": [3]}', "line 1: stop: expected "),
        ('{"prompt": "a"}', "none"),  # the folder of the model
    ],
)
def test_error_before_the_first_answer_leaves_no_file(
    line: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(line + "\n")
    assert main([str(tmp_path / "none"), "--prompts", str(prompts), "--out", str(tmp_path / "out.jsonl")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out.jsonl").exists()
