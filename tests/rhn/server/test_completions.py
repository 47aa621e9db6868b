"""The server over a socket, with OpenAI's client."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gflownet.rhn.server.app import Access
from gflownet.rhn.server.limits import ServerLimits
from gflownet.rhn.text_codec import BYTES, decode
from tests.rhn.server import clients
from tests.rhn.server.clients import PATIENCE, client_of, offline, save_tiny, save_tokenizer_model
from tests.rhn.server.in_process import LocalServer, serving

token_name = BYTES.token_name
MAX_SLOTS, MAX_PROMPT, MAX_BODY = 8, 64, 4096


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[LocalServer]:
    with serving(
        folder, limits=ServerLimits(MAX_SLOTS, max_body=MAX_BODY, max_prompt=MAX_PROMPT, timeout=PATIENCE)
    ) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: LocalServer) -> Iterator[clients.openai.OpenAI]:
    with client_of(server) as found:
        yield found


PARAMS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"seed": 1},
    {"seed": 2, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.01, "repetition_penalty": 1.3},
    {"seed": 3, "presence_penalty": 1.5, "frequency_penalty": -1.0, "max_tokens": 60},
    {"seed": 4, "stop": ("e", "\n", "é")},
    {"seed": 2**63},
)
BEYOND_OPENAI = ("top_k", "min_p", "repetition_penalty")


def asked_of(params: dict[str, Any]) -> dict[str, Any]:
    """Return sampling parameters as arguments of OpenAI's client."""
    asked = {name: list(value) if name == "stop" else value for name, value in params.items()}
    beyond = {name: asked.pop(name) for name in BEYOND_OPENAI if name in asked}
    return {"max_tokens": 30, **asked, "extra_body": beyond}


@pytest.mark.parametrize("params", PARAMS)
def test_answer_equals_offline_generation(params: dict[str, Any], client: clients.openai.OpenAI, folder: Path) -> None:
    said = client.completions.create(model="tiny", prompt="def é(", **asked_of(params))
    expected = offline(folder, "def é(", MAX_SLOTS, **{"max_tokens": 30, **params})
    (choice,) = said.choices
    assert (choice.text, choice.finish_reason) == (decode(expected.tokens), expected.finish_reason)
    assert said.usage is not None
    assert (said.usage.prompt_tokens, said.usage.completion_tokens) == (7, len(expected.tokens))
    assert said.object == "text_completion"


@pytest.mark.parametrize("params", PARAMS[2:5])
def test_stream_equals_whole_answer(params: dict[str, Any], client: clients.openai.OpenAI) -> None:
    # Pieces that are ready are sent together. Many tokens, so that a busy machine does not have all of them at once.
    asked = {"model": "tiny", "prompt": "def é(", "logprobs": 3, **asked_of({"max_tokens": 400, **params})}
    whole = client.completions.create(**asked)
    *parts, last = client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    assert len(parts) > 1
    choices = [part.choices[0] for part in parts]
    expected = whole.choices[0]
    assert "".join(choice.text for choice in choices) == expected.text
    assert [choice.finish_reason for choice in choices] == [None] * (len(parts) - 1) + [expected.finish_reason]
    assert expected.logprobs is not None
    # One row alone at every step of both: the same operations on the same operands.
    for name in ("tokens", "token_logprobs", "top_logprobs"):
        joined = [value for choice in choices for value in getattr(choice.logprobs, name)]
        assert joined == getattr(expected.logprobs, name)
    assert (last.choices, last.usage) == ([], whole.usage)
    assert [part.usage for part in parts] == [None] * len(parts)


def test_logprobs_equal_offline_generation(client: clients.openai.OpenAI, folder: Path) -> None:
    said = client.completions.create(model="tiny", prompt="a", logprobs=2, seed=5, max_tokens=9).choices[0].logprobs
    expected = offline(folder, "a", MAX_SLOTS, seed=5, max_tokens=9, logprobs=2).sampled
    assert said is not None
    assert said.token_logprobs == pytest.approx([one.log_probability for one in expected], abs=1e-9)
    assert said.top_logprobs is not None
    for top, one in zip(said.top_logprobs, expected, strict=True):
        likeliest = {token_name(token): value for token, value in one.likeliest}
        assert top == pytest.approx({**likeliest, token_name(one.token): one.log_probability}, abs=1e-9)


def test_prompt_list_gets_one_choice_and_one_seed_each(client: clients.openai.OpenAI, folder: Path) -> None:
    prompts = ["same", "same", "other"]
    expected = [decode(offline(folder, p, MAX_SLOTS, seed=7 + i, max_tokens=12).tokens) for i, p in enumerate(prompts)]
    said = client.completions.create(model="tiny", prompt=prompts, seed=7, max_tokens=12)
    assert [choice.index for choice in said.choices] == [0, 1, 2]
    assert [choice.text for choice in said.choices] == expected
    assert expected[0] != expected[1]
    largest = client.completions.create(model="tiny", prompt=prompts[:2], seed=2**64 - 1, max_tokens=12)
    assert largest.choices[1].text == decode(offline(folder, "same", MAX_SLOTS, seed=0, max_tokens=12).tokens)
    streamed = ["", "", ""]
    for part in client.completions.create(model="tiny", prompt=prompts, seed=7, max_tokens=12, stream=True):
        streamed[part.choices[0].index] += part.choices[0].text
    assert streamed == expected


def test_models_route_lists_the_model(client: clients.openai.OpenAI, server: LocalServer) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "gflownet"
    assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}
    with pytest.raises(clients.openai.NotFoundError) as caught:
        client.completions.create(model="gpt", prompt="a")
    assert caught.value.code == "model_not_found"


def test_two_lengths_get_400(server: LocalServer) -> None:
    """Content-Length with Transfer-Encoding, which a proxy in front may read another way."""
    lines = ("POST /v1/completions HTTP/1.1", "Host: localhost", "Content-Length: 5", "Transfer-Encoding: chunked")
    request = "\r\n".join([*lines, "Content-Type: application/json", "", "0", "", ""]).encode()
    address = httpx.URL(server.url)
    with socket.create_connection((address.host, address.port)) as connection:
        connection.sendall(request)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("has_length", [True, False])
def test_too_large_body_gives_413(has_length: bool, server: LocalServer) -> None:
    def parts() -> Iterator[bytes]:
        yield from [b" " * 1000] * 5

    content = b" " * 5000 if has_length else parts()
    url, headers = f"{server.url}/v1/completions", {"Content-Type": "application/json"}
    said = httpx.post(url, content=content, headers=headers)
    assert said.status_code == 413
    assert said.json()["error"]["message"] == f"body: expected at most {MAX_BODY} bytes, got more"
    assert httpx.post(url, content=b" " * MAX_BODY, headers=headers).status_code == 400


@pytest.mark.parametrize("has_tokenizer", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_every_parameter_of_openais_client(
    has_tokenizer: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The checks of scripts/openai_client.py, for a model of bytes and one with a tokenizer."""
    from scripts.openai_client import run_checks

    folder = (save_tokenizer_model if has_tokenizer else save_tiny)(tmp_path / "tiny")
    with serving(folder, limits=ServerLimits(8, timeout=PATIENCE), access=Access(keys=("other", "secret"))) as server:
        checks = run_checks(f"{server.url}/v1", "secret")
        with pytest.raises(clients.openai.AuthenticationError):
            run_checks(f"{server.url}/v1", "wrong")
    assert all(checks), capsys.readouterr().out
    assert len(checks) > 50
