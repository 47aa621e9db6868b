"""Parsing of request bodies and error messages."""

from __future__ import annotations

import json
from http import HTTPStatus

import pytest
from pydantic import ValidationError

from gflownet.rhn.server.errors import RequestError
from gflownet.rhn.server.requests import CompletionRequest
from gflownet.rhn.serving.sampling import SamplingParams
from gflownet.rhn.text_codec import BYTES


def body(**fields: object) -> bytes:
    return json.dumps({"model": "m", "prompt": "a", **fields}).encode()


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("é", [[195, 169]]), (["a", "bc"], [[97], [98, 99]]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])],
)
def test_prompts_accepts_texts_and_tokens(prompt: object, expected: list[list[int]]) -> None:
    assert CompletionRequest.parse(body(prompt=prompt)).prompts(BYTES) == expected


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
    assert CompletionRequest.parse(body(**asked)).params() == expected


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"top_p": 1.5}, "top_p: expected a number > 0 and <= 1, got 1.5"),
        ({"max_tokens": 10**100}, "max_tokens: expected a whole number from 0 to 2147483647"),
        ({"logit_bias": {"1" * 5000: 1}}, "logit_bias: expected numbers by token, got the key '111"),
        ({"stop": "é" * 65}, "stop: expected at most 128 bytes in each string, got 130"),
        ({"logit_bias": {"a": 1}}, "logit_bias: expected numbers by token, got the key 'a'"),
        ({"stop": "\ud83d"}, ""),
    ],
)
def test_parameters_out_of_bounds_raise(asked: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        CompletionRequest.parse(body(**asked)).params()
    assert str(caught.value).startswith(message)
    assert caught.value.status == HTTPStatus.BAD_REQUEST


@pytest.mark.parametrize(
    ("data", "param"),
    [
        (b"", None),
        (b"{", None),
        (b"[]", None),
        (b"null", None),
        (b"[" * 4000, None),
        (b"\xff", None),
        (b'{"model": "m"}', "prompt"),
        (body(prompt=3), "prompt"),
        (body(prompt=[-1]), "prompt"),
        (body(prompt=["a", 3]), "prompt"),
        (body(temperature="1"), "temperature"),
        (body(max_tokens=1.5), "max_tokens"),
        (body(max_tokens=-1), "max_tokens"),
        (b'{"model": "m", "prompt": "a", "temperature": NaN}', "temperature"),
        (body(n=129), "n"),
        (body(n=0), "n"),
        (body(stream="yes"), "stream"),
        (b'{"model": "m", "prompt": 1e999}', "prompt"),
        (body(n=3, best_of=2), "best_of"),
        (body(best_of=2, stream=True), "best_of"),
        (body(logprobs=6), "logprobs"),
        (body(suffix="x"), "suffix"),
        (body(stream_options={"include_usage": True}), "stream_options"),
        (body(stream=True, stream_options={"usage": True}), "stream_options"),
    ],
)
def test_parse_completion_invalid_body_raises_one_line(data: bytes, param: str | None) -> None:
    with pytest.raises(RequestError) as caught:
        CompletionRequest.parse(data)
    assert (caught.value.status, caught.value.param) == (HTTPStatus.BAD_REQUEST, param)
    assert caught.value.body()["error"]["type"] == "invalid_request_error"
    assert "\n" not in str(caught.value)
    assert param is None or str(caught.value).startswith(f"{param}: ")


@pytest.mark.parametrize("field", ["prompt", "stop"])
@pytest.mark.parametrize("value", [[-1] * 5000, ["a", 1] * 5000, [[-1] * 5000] * 10, [[-1]] * 5000, [None] * 5000])
def test_parse_completion_stops_at_the_first_error(value: list[object], field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        CompletionRequest.model_validate_json(body(**{field: value}))
    assert caught.value.error_count() < 10


@pytest.mark.parametrize("prompt", ["", [], [""], ["a", ""], [[]], [[1], []]])
def test_empty_prompt_raises(prompt: object) -> None:
    with pytest.raises(RequestError, match="prompt: expected at least one token in every prompt, got "):
        CompletionRequest.parse(body(prompt=prompt)).prompts(BYTES)


def test_half_surrogate_pair_raises() -> None:
    with pytest.raises(RequestError) as caught:
        CompletionRequest.parse(body(prompt="\ud83d")).prompts(BYTES)
    assert caught.value.status == HTTPStatus.BAD_REQUEST


@pytest.mark.parametrize("stop", ["", ["a", ""], list("abcde")])
def test_invalid_stops_raise(stop: object) -> None:
    with pytest.raises(RequestError, match="stop: expected at most 4 strings, none empty, got "):
        CompletionRequest.parse(body(stop=stop)).params()
