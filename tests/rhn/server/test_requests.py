"""Parsing of request bodies and error messages."""

from __future__ import annotations

import json

import httpx
import pytest

from gflownet.rhn.server.requests import ChatTemplate, CompletionRequest, Submission
from gflownet.rhn.server.service import Service
from gflownet.rhn.serving.sampling import SamplingParams
from gflownet.rhn.text_codec import BYTES
from tests.rhn.server.in_process import PATH, check_answer, talk


def body(**fields: object) -> bytes:
    return json.dumps({"model": "m", "prompt": "a", **fields}).encode()


def submission(**fields: object) -> Submission:
    return CompletionRequest.model_validate({"model": "m", "prompt": "a", **fields}).submission(BYTES, ChatTemplate())


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("é", [[195, 169]]), (["a", "bc"], [[97], [98, 99]]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])],
)
def test_prompts_accepts_texts_and_tokens(prompt: object, expected: list[list[int]]) -> None:
    assert submission(prompt=prompt).prompts == expected


def test_echo_is_the_own_text_of_a_prompt() -> None:
    class Lossy(type(BYTES)):
        def encode(self, text: str) -> list[int]:
            return super().encode(text.lower())

    asked = CompletionRequest.model_validate({"model": "m", "prompt": ["Ab", "C"], "echo": True})
    found = asked.submission(Lossy(), ChatTemplate())
    assert (found.prompts, found.echoes) == ([[97, 98], [99]], ["Ab", "C"])


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, SamplingParams(max_tokens=16)),
        ({"temperature": None, "logit_bias": None}, SamplingParams(max_tokens=16)),
        ({"stop": "é", "temperature": 0, "seed": 3}, SamplingParams(max_tokens=16, stop=("é",), temperature=0, seed=3)),
        (
            {"max_tokens": 9, "stop": ["a", "b"], "top_k": 5, "min_p": 0.1, "repetition_penalty": 2, "logprobs": 0},
            SamplingParams(max_tokens=9, stop=("a", "b"), top_k=5, min_p=0.1, repetition_penalty=2, logprobs=0),
        ),
        (
            {"top_p": 0.5, "presence_penalty": 1, "frequency_penalty": -1, "logit_bias": {"97": -100}},
            SamplingParams(max_tokens=16, top_p=0.5, presence_penalty=1, frequency_penalty=-1, logit_bias={97: -100.0}),
        ),
    ],
)
def test_params_returns_sampling_params(asked: dict[str, object], expected: SamplingParams) -> None:
    assert submission(**asked).params == expected


INVALID: list[tuple[bytes, str | None, str]] = [
    (b"", None, "body: Field required, got None"),
    (b"{", None, "body: JSON decode error"),
    (b"[]", None, "body: Input should be a valid dictionary"),
    (b"null", None, "body: Input should be a valid dictionary"),
    (b"[" * 60_000, None, ""),
    (b"\xff", None, ""),
    (b'{"model": "m"}', "prompt", ""),
    (body(prompt=3), "prompt", ""),
    (body(prompt=[-1]), "prompt", ""),
    (body(prompt=["a", 3]), "prompt", ""),
    (body(prompt=[256]), "prompt", "prompt: expected tokens of 0 .. 255, got 256"),
    (body(temperature="1"), "temperature", "temperature: Input should be a valid number, got '1'"),
    (body(max_tokens=1.5), "max_tokens", ""),
    (body(max_tokens=-1), "max_tokens", ""),
    (body(max_tokens=10**100), "max_tokens", "max_tokens: expected a whole number from 0 to 2147483647"),
    (b'{"model": "m", "prompt": "a", "temperature": NaN}', "temperature", ""),
    (b'{"model": "m", "prompt": "a", "top_p": 1e999}', "top_p", ""),
    (b'{"model": "m", "prompt": "a", "seed": ' + b"1" * 5000 + b"}", None, ""),
    (body(stop_token_ids=list(range(256)), min_tokens=1), "stop_token_ids", "stop_token_ids: expected some token"),
    (body(top_p=1.5), "top_p", "top_p: expected a number > 0 and <= 1, got 1.5"),
    (body(n=129), "n", ""),
    (body(n=0), "n", ""),
    (body(stream="yes"), "stream", ""),
    (body(best_of=2), "best_of", "best_of: Input should be 1, got 2"),
    (body(logprobs=6), "logprobs", ""),
    (body(logprobs=1, echo=True), "logprobs", "logprobs: expected none with echo=true"),
    (body(suffix="x"), "suffix", ""),
    (body(logit_bias={"1" * 5000: 1}), "logit_bias", "logit_bias: String should match pattern"),
    (body(logit_bias={"a": 1}), "logit_bias", "logit_bias: String should match pattern"),
    (body(prompt="\ud83d"), None, "text: expected characters that UTF-8 can encode"),
    (body(stop="\ud83d"), "stop", "stop: Input should be a valid string"),
    (body(stop="é" * 129), "stop", ""),
    *((body(stop=stop), "stop", "") for stop in ("", ["a", ""], list("abcde"))),
    *(
        (body(prompt=prompt), "prompt", "prompt: expected at least one token in every prompt, got ")
        for prompt in ("", [], [""], ["a", ""], [[]], [[1], []])
    ),
]


def test_invalid_bodies_get_400_with_one_line_and_leave_no_request() -> None:
    async def conversation(client: httpx.AsyncClient, service: Service) -> None:
        for data, param, message in INVALID:
            response = await client.post(PATH, content=data)
            check_answer(response, data)
            assert response.status_code == 400, data
            error = response.json()["error"]
            assert (error["param"], error["type"]) == (param, "invalid_request_error"), (data, error)
            assert error["message"].startswith(message or f"{param or ''}"), error
        now = service.engine.metrics()
        assert (now.num_running, now.num_waiting) == (0, 0)
        assert (await client.post(PATH, content=body(beam_width=3, user="a"))).status_code == 200

    talk(conversation)
