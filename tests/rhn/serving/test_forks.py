"""Several answers to one prompt, log-probabilities of prompts, and prompts without an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from gflownet.rhn.decoding import RHNDecoder
from gflownet.rhn.serving.requests import Event, FinishEvent, PromptEvent, Request, TokenEvent
from gflownet.rhn.serving.sampling import FinishReason, Sampled, SamplingParams
from gflownet.rhn.serving.scheduler import QueueFullError
from tests.rhn.random_networks import random_network
from tests.rhn.serving.engines import (
    CONFIG,
    Clock,
    assert_close,
    drain,
    ends_of,
    engine_of,
    prompts_of,
    sampled_of,
    tokens_of,
)

PROMPT = [1, 2, 3, 4, 5, 6]
SCORED = SamplingParams(max_tokens=0, prompt_logprobs=9)


def prompt_scores(prompt: list[int], count: int) -> list[Sampled]:
    """Return the tokens of a prompt with log-probabilities from whole prefills."""
    model, scores = RHNDecoder(random_network(CONFIG, 0)), [Sampled(prompt[0])]
    for end in range(1, len(prompt)):
        row = model.prefill(torch.tensor([prompt[:end]]), None)[0][0].log_softmax(-1)
        values, tokens = (each.tolist() for each in row.topk(count))
        scores.append(Sampled(prompt[end], row[prompt[end]].item(), tuple(zip(tokens, values, strict=True))))
    return scores


def test_prompt_without_answer_ends_after_its_last_token() -> None:
    engine = engine_of()
    request_id = engine.submit(Request(PROMPT, SamplingParams(max_tokens=0), keep_state=True))
    (end,) = drain(engine)
    assert isinstance(end, FinishEvent)
    assert (end.finish_reason, end.num_tokens, end.first_token_after) == (FinishReason.LENGTH, 0, None)
    assert (end.request_id, end.num_prompt_tokens, end.unread) == (request_id, 6, ())
    _, state = RHNDecoder(random_network(CONFIG, 0)).prefill(torch.tensor([PROMPT]), None)
    assert end.state is not None
    torch.testing.assert_close(end.state, state[:, 0], rtol=0, atol=1e-12)
    assert engine.metrics().num_running == 0


@pytest.mark.parametrize(("length", "count"), [(1, 3), (2, 0), (6, 3), (6, 9)])
def test_prompt_log_probabilities_equal_prefills(length: int, count: int) -> None:
    prompt = PROMPT[:length]
    engine = engine_of(prefix_bytes=10**6)
    params = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=count)
    for _ in range(2):  # the second one may not start from the cached prompt
        request_id = engine.submit(Request(prompt, params))
        events = drain(engine)
        kinds = [type(event) for event in events]
        num_prompt_events = kinds.index(TokenEvent)
        assert kinds[:num_prompt_events] == [PromptEvent] * num_prompt_events
        assert PromptEvent not in kinds[num_prompt_events:]
        assert_close(prompts_of(events)[request_id][1:], prompt_scores(prompt, count)[1:])
        assert prompts_of(events)[request_id][0] == Sampled(prompt[0])
        assert ends_of(events)[request_id].num_cached_tokens == 0
    plain = engine.submit(Request([*prompt, 7], SamplingParams(max_tokens=1)))
    assert ends_of(drain(engine))[plain].num_cached_tokens == length


def test_infinite_prompt_logits_end_a_prompt_without_answer() -> None:
    network = random_network(CONFIG, 0)
    with torch.no_grad():
        network.embedding.weight[3] = torch.nan
    network.unembedding = torch.nn.Embedding(9, 8, dtype=torch.float64)
    engine = engine_of(model=RHNDecoder(network))
    ids = [engine.submit(Request([1, token, 2], SCORED)) for token in (2, 3)]
    ends = ends_of(drain(engine))
    assert ends[ids[0]].finish_reason is FinishReason.LENGTH
    assert (ends[ids[1]].finish_reason, ends[ids[1]].error) == (FinishReason.ERROR, "the model's logits are not finite")
    assert engine.metrics().num_running == 0


@pytest.mark.parametrize(("length", "max_slots", "prefix_bytes"), [(1, 2, 0), (2, 8, 0), (6, 1, 10**6), (6, 8, 10**6)])
def test_forked_answers_equal_separate_ones(length: int, max_slots: int, prefix_bytes: int) -> None:
    params = SamplingParams(2.0, max_tokens=5, logprobs=2, prompt_logprobs=1)
    seeds = [5, 3, None, 3, 8]
    engine = engine_of(max_slots=max_slots, prefix_bytes=prefix_bytes)
    other = engine.submit(Request([7] * 3, replace(params, seed=1)))
    ids = engine.submit_many(Request(PROMPT[:length], params), seeds)
    events = drain(engine)
    assert sorted(ends_of(events)) == sorted([other, *ids])
    for request_id, seed in zip(ids, seeds, strict=True):
        alone = engine_of()
        alone_id = alone.submit(Request(PROMPT[:length], replace(params, seed=seed)))
        expected = drain(alone)
        assert_close(prompts_of(events)[request_id][1:], prompts_of(expected)[alone_id][1:])
        if seed is not None:
            assert_close(sampled_of(events, request_id), sampled_of(expected))
    assert_close(sampled_of(events, ids[1]), sampled_of(events, ids[3]))
    # The prompt is read once, and its last token for each answer.
    num_read = 3 + 4 + (length - 1) + len(seeds) * (1 + 4)
    assert engine.metrics().sums.num_rows == num_read
    ends = ends_of(events)
    assert [ends[request_id].num_cached_tokens for request_id in ids] == [0] + [length - 1] * 4


def assert_answers(events: Sequence[Event], ids: Sequence[int], seeds: Sequence[int], params: SamplingParams) -> None:
    """Compare answers to PROMPT with those of an engine without other requests."""
    for request_id, seed in zip(ids, seeds, strict=True):
        alone = engine_of()
        alone.submit(Request(PROMPT, replace(params, seed=seed)))
        assert tokens_of(events)[request_id] == tokens_of(drain(alone))[0]


@pytest.mark.parametrize("num_cancelled", [1, 2, 3])
def test_another_answer_reads_the_prompt_of_a_cancelled_reader(num_cancelled: int) -> None:
    engine, params = engine_of(max_slots=2), SamplingParams(2.0, max_tokens=4)
    ids = engine.submit_many(Request(PROMPT, params), [1, 2, 3])
    events = engine.step()
    for request_id in ids[:num_cancelled]:
        assert engine.cancel(request_id)
    events += drain(engine)
    reasons = [ends_of(events)[request_id].finish_reason for request_id in ids]
    assert reasons == [FinishReason.CANCELLED] * num_cancelled + [FinishReason.LENGTH] * (3 - num_cancelled)
    assert_answers(events, ids[num_cancelled:], [1, 2, 3][num_cancelled:], params)
    assert engine.metrics().num_waiting == engine.metrics().num_running == 0


def test_another_answer_reads_the_prompt_of_an_expired_reader() -> None:
    clock = Clock()
    engine, params = engine_of(max_slots=1, max_waiting=5, clock=clock), SamplingParams(2.0, max_tokens=4)
    engine.submit(Request([1], SamplingParams(max_tokens=2)))
    events = engine.step()
    ids = engine.submit_many(Request(PROMPT, params), [1, 2])
    clock.now = 6
    events += drain(engine)
    assert ends_of(events)[ids[0]].error == "it waited longer than 5 s for a slot"
    assert_answers(events, ids[1:], [2], params)


def test_submit_many_is_refused_as_a_whole() -> None:
    engine = engine_of(max_slots=1, max_queue=2, token_budget=100)
    request = Request(PROMPT, SamplingParams(max_tokens=10))
    with pytest.raises(QueueFullError, match="0 requests wait, the maximum is 2"):
        engine.submit_many(request, [1, 2, 3, 4])
    with pytest.raises(ValueError, match="at most 100 tokens of prompt and answer, got 112"):
        engine.submit_many(request, range(7))
    with pytest.raises(ValueError, match="seeds: expected at least one, got none"):
        engine.submit_many(request, [])
    with pytest.raises(ValueError, match="seed: expected a whole number"):
        engine.submit_many(request, [1, 2**64])
    assert not engine.has_work
    assert engine.metrics().num_waiting == 0
    assert len(engine.submit_many(request, [1, 2, 3])) == 3


def test_forks_continue_from_a_state_of_the_user() -> None:
    engine, whole = engine_of(), engine_of()
    engine.submit(Request([1, 2], SamplingParams(max_tokens=0), keep_state=True))
    state = ends_of(drain(engine))[0].state
    ids = engine.submit_many(Request([3, 4], SamplingParams(2.0, max_tokens=4), state=state), [1, 2])
    whole_ids = [whole.submit(Request([1, 2, 3, 4], SamplingParams(2.0, max_tokens=4, seed=seed))) for seed in (1, 2)]
    tokens, expected = tokens_of(drain(engine)), tokens_of(drain(whole))
    assert [tokens[each] for each in ids] == [expected[each] for each in whole_ids]
