"""Chats: templates, formats of answers, and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from gflownet.errors import UserError
from gflownet.rhn.server.requests import TEMPLATE_NAME, ChatRequest, ChatTemplate, RequestError, load_chat_template
from gflownet.rhn.server.service import Service
from gflownet.rhn.serving.generation import generate
from gflownet.rhn.serving.sampling import SamplingParams
from gflownet.rhn.text_codec import BYTES
from tests.rhn.random_networks import random_network
from tests.rhn.server.clients import CONFIG
from tests.rhn.server.in_process import check_answer, talk

PATH = "/v1/chat/completions"
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "be short"},
    {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]},
]
PROMPT = "system: be short\nuser: hi\nassistant:"


def body(**fields: object) -> bytes:
    return json.dumps({"model": "m", "messages": MESSAGES, **fields}).encode()


def test_default_template_and_stop() -> None:
    submission = ChatRequest.model_validate_json(body(stop="x", n=2)).submission(BYTES, ChatTemplate())
    assert bytes(submission.prompts[0]).decode() == PROMPT
    assert submission.params.stop == ("x", "\nuser:")
    assert (submission.num_answers, submission.params.max_tokens) == (2, 256)


def test_template_of_hugging_face() -> None:
    source = (
        "{%- for message in messages %}\n"
        "    {%- if message['role'] not in ['user', 'assistant'] %}{{ raise_exception('only users') }}{% endif %}\n"
        "    {{- '<|' + message.role + '|>' + message.content | trim | tojson }}\n"
        "    {%- if loop.last %}{% break %}{% endif %}\n"
        "{%- endfor %}\n"
        "{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
    )
    template = ChatTemplate(source, ())
    assert template.prompt([{"role": "user", "content": " <é> "}]) == '<|user|>"<é>"<|assistant|>'
    with pytest.raises(RequestError) as caught:
        template.prompt([{"role": "system", "content": "a"}])
    assert caught.value.detail == "messages: the chat template refuses them: only users"


def test_template_has_the_names_of_hugging_face() -> None:
    source = (
        "{{ strftime_now('%Y') | length }}"
        "{{ {'b': 1, 'a': 'é'} | tojson(indent=1, sort_keys=true, ensure_ascii=true) }}"
        "{% generation %}{{ messages[0].content }}{% endgeneration %}"
    )
    text = json.dumps({"b": 1, "a": "é"}, indent=1, sort_keys=True)
    assert ChatTemplate(source).prompt([{"role": "user", "content": "x"}]) == f"4{text}x"


@pytest.mark.parametrize(
    "source", ["{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{{ 1 // 0 }}", "{% if", "{{ " + "(" * 10_000]
)
def test_template_that_fails_is_one_line_at_the_start(source: str, tmp_path: Path) -> None:
    (tmp_path / TEMPLATE_NAME).write_text(source)
    with pytest.raises(UserError, match=r"^--chat-template: .*: expected a Jinja2 template, got an error: ") as caught:
        load_chat_template(None, [], tmp_path)
    assert "\n" not in str(caught.value)
    (tmp_path / TEMPLATE_NAME).write_text("{{ raise_exception('needs a system message') }}")
    load_chat_template(None, [], tmp_path)  # of the sample alone


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ 1 // 0 }}",
        "{{ messages[9].content.x }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_template_cannot_reach_python_and_its_errors_are_refusals(source: str) -> None:
    with pytest.raises(RequestError) as caught:
        ChatTemplate(source).prompt([{"role": "user", "content": "a"}])
    assert caught.value.detail.startswith("messages: the chat template refuses them: ")
    assert "\n" not in caught.value.detail


def test_template_of_the_models_folder(tmp_path: Path) -> None:
    assert load_chat_template(None, [], tmp_path) == ChatTemplate()
    assert load_chat_template(None, ["x"], tmp_path).stops == ("x",)
    (tmp_path / TEMPLATE_NAME).write_text("{{ messages[0].content }}")
    template = load_chat_template(None, [], tmp_path)
    assert (template.prompt(MESSAGES), template.stops) == ("be short", ())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}, "messages"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"max_completion_tokens": 10**9}, "max_tokens"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_invalid_chat_gets_400_with_the_field(fields: dict[str, Any], param: str) -> None:
    async def conversation(client: httpx.AsyncClient, service: Service) -> None:
        response = await client.post(PATH, content=body(**fields))
        assert response.status_code == 400
        check_answer(response, fields)
        assert response.json()["error"]["param"] == param

    talk(conversation)


def test_chat_equals_generation_from_its_prompt() -> None:
    asked = {"max_completion_tokens": 20, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    params = SamplingParams(max_tokens=20, temperature=0, stop=("\nuser:",))
    expected = generate(random_network(CONFIG, 0).decoder(), list(PROMPT.encode()), params).tokens

    async def conversation(client: httpx.AsyncClient, service: Service) -> None:
        answer = (await client.post(PATH, content=body(**asked))).json()
        (choice,) = answer["choices"]
        entries = choice["logprobs"]["content"]
        assert [byte for entry in entries for byte in entry["bytes"]] == expected
        assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
        assert choice["message"]["content"] == bytes(expected).decode(errors="replace")
        assert (answer["object"], answer["usage"]["prompt_tokens"]) == ("chat.completion", len(PROMPT))
        streamed = await client.post(PATH, content=body(**asked, stream=True))
        events = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
        deltas = [event["choices"][0]["delta"] for event in events]
        assert deltas[0] == {"role": "assistant", "content": ""}
        assert "".join(delta.get("content", "") for delta in deltas) == choice["message"]["content"]
        assert {event["object"] for event in events} == {"chat.completion.chunk"}
        assert events[-1]["choices"][0]["finish_reason"] == "length"

    talk(conversation)


def test_answer_is_taken_back_with_neutral_fields() -> None:
    neutral: dict[str, Any] = {"tools": [], "tool_choice": "none", "store": False, "metadata": {}, "stop": []}
    neutral |= {"top_k": -1, "service_tier": "auto", "parallel_tool_calls": True, "logit_bias": {}}

    async def conversation(client: httpx.AsyncClient, service: Service) -> None:
        first = await client.post(PATH, content=body(max_tokens=4))
        message = first.json()["choices"][0]["message"]
        for again in (message, {"role": "assistant", "content": None}):
            response = await client.post(PATH, content=body(messages=[*MESSAGES, again], max_tokens=2, **neutral))
            assert response.status_code == 200, response.text

    talk(conversation)
