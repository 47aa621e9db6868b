"""Use every parameter of the server with OpenAI's own client, and check the answers.

    python scripts/openai_client.py URL [--key KEY]

URL is the address that the server prints, with /v1. Completions and chats, synchronous and asynchronous, whole and as
streams. Exit status 0 if every check holds, 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import openai

PROMPT = "def main("
MESSAGES: list[Any] = [
    {"role": "system", "content": "Write Python."},
    {"role": "user", "content": [{"type": "text", "text": "def "}, {"type": "text", "text": "main("}]},
]
SEEDED: dict[str, Any] = {"seed": 7, "max_tokens": 24}
# Parameters that every answer of the seed must accept; those in extra_body are not OpenAI's.
SAMPLING: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 0.7, "top_p": 0.9},
    {"presence_penalty": 1.0, "frequency_penalty": -0.5},
    {"logit_bias": {"32": -100}, "user": "test"},
    {"stop": ["e", "\n\n"]},
    {"stop": " "},
    {"extra_body": {"top_k": 20, "min_p": 0.01, "repetition_penalty": 1.2}},
    {"extra_body": {"min_tokens": 8, "stop_token_ids": [10, 32]}},
)


def check(name: str, holds: bool) -> bool:
    """Print a check that fails, and return whether it holds."""
    if not holds:
        print(f"FAILS: {name}")
    return holds


def text_of(choice: Any) -> str:
    """Return the text of a choice of either endpoint."""
    return choice.text if hasattr(choice, "text") else choice.message.content


def completion_checks(client: openai.OpenAI, model: str) -> Iterator[bool]:
    """Yield the checks of whole completions."""

    def complete(**options: Any) -> Any:
        return client.completions.create(**{"model": model, "prompt": PROMPT, **SEEDED, **options})

    for options in SAMPLING:
        first, second = complete(**options), complete(**options)
        yield check(f"same answer with the same seed, {options}", first.choices[0].text == second.choices[0].text)
        used = first.usage
        yield check(f"usage, {options}", used.total_tokens == used.prompt_tokens + used.completion_tokens)
        stops = options.get("stop", [])
        yield check(f"stop, {options}", not any(stop in first.choices[0].text for stop in stops))
    plain = complete().choices[0].text
    yield check("suffix=null", complete(suffix=None).choices[0].text == plain)
    yield check("echo", complete(echo=True).choices[0].text == PROMPT + plain)
    yield check("list of prompts", [c.index for c in complete(prompt=[PROMPT, "class "]).choices] == [0, 1])
    tokens = list(PROMPT.encode())
    if complete(prompt=PROMPT, max_tokens=0).usage.prompt_tokens == len(tokens):  # a model of bytes
        yield check("prompt of tokens", complete(prompt=tokens).choices[0].text == plain)
    answers = complete(n=3)
    yield check("n distinct answers", len({choice.text for choice in answers.choices}) == 3)
    yield check("n: the prompt counts once", answers.usage.prompt_tokens == complete().usage.prompt_tokens)
    yield from logprob_checks(complete)


def logprob_checks(complete: Callable[..., Any]) -> Iterator[bool]:
    """Yield the checks of log-probabilities of completions."""
    logprobs = complete(logprobs=5).choices[0].logprobs
    yield check("logprobs <= 0", all(value <= 0 for value in logprobs.token_logprobs))
    pairs = list(zip(logprobs.tokens, logprobs.top_logprobs, strict=True))
    yield check("top_logprobs has the token", all(token in top and len(top) <= 6 for token, top in pairs))
    yield check("top_logprobs sums to at most 1", all(sum(map(math.exp, top.values())) < 1.001 for _, top in pairs))
    read = complete(max_tokens=0, echo=True).choices[0]
    yield check("max_tokens=0 with echo: the text", (read.text, read.finish_reason) == (PROMPT, "length"))


def chat_checks(client: openai.OpenAI, model: str) -> Iterator[bool]:
    """Yield the checks of whole chats."""

    def chat(**options: Any) -> Any:
        return client.chat.completions.create(**{"model": model, "messages": MESSAGES, **SEEDED, **options})

    for options in SAMPLING:
        first, second = chat(**options), chat(**options)
        yield check(f"same chat with the same seed, {options}", text_of(first.choices[0]) == text_of(second.choices[0]))
    shorter = chat(max_completion_tokens=5).usage.completion_tokens
    yield check("max_completion_tokens", shorter <= 5)
    yield check("role", chat().choices[0].message.role == "assistant")
    yield check("response_format", bool(chat(response_format={"type": "text"}).choices))
    yield check("n chats", [choice.index for choice in chat(n=3).choices] == [0, 1, 2])
    entries = chat(logprobs=True, top_logprobs=3).choices[0].logprobs.content
    yield check("top_logprobs of a chat", all(len(entry.top_logprobs) == 3 for entry in entries))
    if all(entry.bytes is not None for entry in entries):
        content = b"".join(bytes(entry.bytes) for entry in entries).decode(errors="replace")
        yield check("bytes of a chat", content == text_of(chat().choices[0]))


def joined(chunks: Iterable[Any], num_choices: int) -> tuple[list[str], int]:
    """Return the text of each choice of a stream, and the tokens of the answer in its last event."""
    texts, num_tokens = [""] * num_choices, -1
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += (choice.text if hasattr(choice, "text") else choice.delta.content) or ""
        num_tokens = num_tokens if chunk.usage is None else chunk.usage.completion_tokens
    return texts, num_tokens


def stream_checks(client: openai.OpenAI, model: str) -> Iterator[bool]:
    """Yield the checks of streams: they equal whole answers."""
    streamed: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    for name, create, prompt in (
        ("completion", client.completions.create, {"prompt": PROMPT}),
        ("chat", client.chat.completions.create, {"messages": MESSAGES}),
    ):
        asked: dict[str, Any] = {"model": model, **prompt, **SEEDED, "n": 2}
        whole: Any = create(**asked)
        texts, num_tokens = joined(create(**asked, **streamed), 2)
        yield check(f"stream of a {name}", texts == [text_of(choice) for choice in whole.choices])
        yield check(f"usage of a {name}'s stream", num_tokens == whole.usage.completion_tokens)


async def asynchronous_checks(client: openai.AsyncOpenAI, model: str) -> list[bool]:
    """Return the checks of concurrent requests: they equal requests one by one."""

    async def text(seed: int, *, is_stream: bool) -> str:
        asked: dict[str, Any] = {"model": model, "prompt": PROMPT, "max_tokens": 24, "seed": seed}
        answer: Any = await client.completions.create(**asked, stream=is_stream)
        if is_stream:
            return "".join([chunk.choices[0].text async for chunk in answer])
        return answer.choices[0].text

    one_by_one = [await text(seed, is_stream=False) for seed in range(6)]
    together = await asyncio.gather(*(text(seed, is_stream=seed % 2 == 0) for seed in range(6)))
    chat: Any = await client.chat.completions.create(model=model, messages=MESSAGES, stream=True, **SEEDED)
    roles = [chunk.choices[0].delta.role async for chunk in chat]
    return [
        check("concurrent answers", one_by_one == list(together)),
        check("the first event of a chat has the role", roles[0] == "assistant"),
    ]


def refusal_checks(client: openai.OpenAI, model: str) -> Iterator[bool]:
    """Yield the checks of errors."""
    for options in ({"suffix": "x"}, {"best_of": 2}, {"logprobs": 6}, {"temperature": -1}, {"prompt": ""}):
        try:
            client.completions.create(**{"model": model, "prompt": PROMPT, **options})
        except openai.BadRequestError as error:
            yield check(f"the error names the parameter, {options}", error.param in options)
        else:
            yield check(f"status 400, {options}", False)
    try:
        client.models.retrieve("another")
    except openai.NotFoundError as error:
        yield check("code of another model", error.code == "model_not_found")


def run_checks(url: str, key: str) -> list[bool]:
    """Return all checks of a server."""
    with openai.OpenAI(base_url=url, api_key=key, max_retries=0) as client:
        model = client.models.list().data[0].id
        checks = [check("models", client.models.retrieve(model).id == model)]
        for some in (completion_checks, chat_checks, stream_checks, refusal_checks):
            checks += some(client, model)

    async def run() -> list[bool]:
        async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client:
            return await asynchronous_checks(client, model)

    return checks + asyncio.run(run())


def main() -> int:
    """Check the server in the arguments and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="for example http://127.0.0.1:8000/v1")
    parser.add_argument("--key", default="none", help="API key of the server")
    options = parser.parse_args()
    checks = run_checks(options.url, options.key)
    print(f"{sum(checks)} of {len(checks)} checks hold")
    return 0 if all(checks) else 1


if __name__ == "__main__":
    sys.exit(main())
