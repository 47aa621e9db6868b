"""Continuous batching: answers do not depend on the requests that share a batch; several answers to one prompt."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence

import pytest
import torch

from gflownet.rhn.config import RHNConfig, StackConfig, StackLayer
from gflownet.rhn.decoding import LanguageModel, RHNDecoder
from gflownet.rhn.network import RHN, RecurrentStack
from gflownet.rhn.serving.engine import Engine, EngineConfig, QueueFullError, SchedulerConfig
from gflownet.rhn.serving.requests import FinishEvent, Request
from gflownet.rhn.serving.sampler import TokenSampler
from gflownet.rhn.serving.sampling import FinishReason, Sampled, SamplingParams
from tests.rhn.random_networks import random_network
from tests.rhn.rounding import num_terms_of_token, rounding_tolerance
from tests.rhn.serving.engines import CONFIG, Clock, assert_close, drain, ends_of, engine_of, sampled_of, tokens_of

STACK = StackConfig(tuple(StackLayer(cell=cell) for cell in ("rhn", "lstm", "gru")))
NETWORK = RHNConfig(hidden_size=32, intermediate_size=48, depth=3)
# The longest path through one token of the stack: an RHN layer as in a network of depth 1, then products of x and of
# the state in each of the two cells, and the unembedding.
NUM_TERMS = {
    "stack": num_terms_of_token(RHNConfig(hidden_size=64, intermediate_size=128, depth=1)) + 4 * 64 + 64,
    "rhn": num_terms_of_token(NETWORK),
}


def model_of(name: str, dtype: torch.dtype) -> LanguageModel:
    torch.manual_seed(0)
    network = {"stack": lambda: RecurrentStack(STACK), "rhn": lambda: RHN(NETWORK)}[name]()
    with torch.no_grad():
        for parameter in network.to(dtype).parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return network.decoder()


def answers_in_two_batches(model: LanguageModel, requests: Sequence[Request]) -> Iterator[tuple[Sampled, Sampled]]:
    """Yield every token of the answers to requests that share batches, with the token of the same request alone."""
    together = Engine(model, EngineConfig(SchedulerConfig(max_slots=7), prefix_bytes=0))
    alone = Engine(model, EngineConfig(SchedulerConfig(max_slots=7)))
    events, alone_events = [], []
    for request in requests:
        together.submit(request)
        alone.submit(request)
        alone_events += drain(alone)
    while together.has_work:
        events += together.step()
    for request_id in range(len(requests)):
        sampled, alone_sampled = (
            sampled_of([event for event in of_all if event.request_id == request_id])
            for of_all in (events, alone_events)
        )
        yield from zip(sampled, alone_sampled, strict=True)


@pytest.mark.parametrize("name", ["rhn", "stack"])
def test_float32_log_probabilities_in_any_batch_agree_within_rounding(name: str) -> None:
    model, chance = model_of(name, torch.float32), random.Random(1)
    prompts = [[chance.randrange(256) for _ in range(chance.randint(1, 4))] for _ in range(20)]
    requests = [Request(prompt, SamplingParams(max_tokens=1, logprobs=20)) for prompt in prompts]
    logits = torch.cat([model.prefill(torch.tensor([prompt]), None)[0] for prompt in prompts])
    tolerance = rounding_tolerance(
        torch.float32, num_terms=4 * NUM_TERMS[name], magnitude=2 * logits.abs().max().item()
    )
    assert tolerance < 0.01
    for sampled, alone in answers_in_two_batches(model, requests):
        # Sorted values differ no more than the largest difference, whichever tokens they are of.
        for (_, value), (_, value_alone) in zip(sampled.likeliest, alone.likeliest, strict=True):
            assert abs(value - value_alone) <= tolerance


def test_prompts_and_states_are_copied() -> None:
    engine, params = engine_of(prefix_bytes=10**5), SamplingParams(temperature=0, max_tokens=4)
    prompt = [1, 2, 3]
    engine.submit(Request(prompt, params, keep_state=True))
    prompt.clear()
    events = drain(engine)
    end = ends_of(events)[0]
    assert end.num_prompt_tokens == 3
    assert end.state is not None
    end.state.zero_()
    engine.submit(Request([1, 2, 3, *tokens_of(events)[0], 5], params))
    fresh = engine_of()
    fresh.submit(Request([1, 2, 3, *tokens_of(events)[0], 5], params))
    again = drain(engine)
    assert ends_of(again)[1].num_cached_tokens == 6
    assert tokens_of(again)[1] == tokens_of(drain(fresh))[0]


def test_cancelled_request_frees_its_slot_within_one_step() -> None:
    engine = engine_of(max_slots=1)
    running, queued = (engine.submit(Request([1], SamplingParams(max_tokens=100))) for _ in range(2))
    engine.step()
    assert engine.cancel(running)
    assert not engine.cancel(running)
    events = engine.step()
    assert ends_of(events)[running].finish_reason is FinishReason.CANCELLED
    assert tokens_of(events).keys() == {queued}
    waiting = engine.submit(Request([1]))
    assert engine.cancel(waiting)
    assert engine.cancel(queued)
    events = drain(engine)
    assert {key: end.finish_reason for key, end in ends_of(events).items()} == {
        waiting: FinishReason.CANCELLED,
        queued: FinishReason.CANCELLED,
    }
    assert not tokens_of(events)
    assert engine.metrics().num_running == engine.metrics().num_waiting == 0
    assert not engine.cancel(12345)


def test_full_queue_and_order_of_arrival() -> None:
    engine = engine_of(max_slots=1, max_queue=2)
    asked = SamplingParams(max_tokens=50)
    first = engine.submit(Request([1], asked))
    engine.step()
    second, _ = (engine.submit(Request([1], asked)) for _ in range(2))
    with pytest.raises(QueueFullError, match="2 requests wait, the maximum is 2"):
        engine.submit(Request([1]))
    engine.cancel(first)
    assert tokens_of(engine.step()).keys() == {second}
    assert engine.metrics().num_waiting == 1


def test_invalid_requests_raise() -> None:
    engine = engine_of()
    for request, message in (
        (Request([]), "prompt: expected at least one token, got none"),
        (Request([9]), r"prompt: expected tokens of 0 .. 8, got 9"),
        (Request([1], SamplingParams(stop=("a",))), "stop: strings need a vocabulary of 256 bytes"),
        (Request([1], state=torch.zeros(2, 8)), r"state: expected \(3, 8\) as \(layers, width\), got \(2, 8\)"),
    ):
        with pytest.raises(ValueError, match=message):
            engine.submit(request)
    assert not engine.has_work
    with pytest.raises(ValueError, match="prefix_interval: expected at least 1 token, got 0"):
        EngineConfig(prefix_interval=0)
    with pytest.raises(ValueError, match="prefix_bytes: expected at least 0, got -1"):
        EngineConfig(prefix_bytes=-1)
    with pytest.raises(ValueError, match="max_slots: expected at least 1, got 0"):
        SchedulerConfig(max_slots=0)
    with pytest.raises(ValueError, match="max_queue: expected at least 0, got -1"):
        SchedulerConfig(max_queue=-1)


def test_cached_prefix_is_skipped_and_counted() -> None:
    params = SamplingParams(temperature=0, max_tokens=3, logprobs=9)
    head = [1, 2, 3, 4, 5, 6]
    engine, fresh = engine_of(prefix_bytes=10**5), engine_of()
    engine.submit(Request(head, params))
    first_events = drain(engine)
    answer = tokens_of(first_events)[0]
    assert ends_of(first_events)[0].num_cached_tokens == 0
    for prompt, num_cached in (
        ([*head, 7], 6),  # the whole prompt
        ([*head[:4], 7], 4),  # kept every 4 tokens
        (head, 4),  # one token has to be read
        ([*head, *answer, 8], 8),  # prompt and answer, of which the last token was never read
        ([2, *head], 0),
    ):
        request_id, fresh_id = engine.submit(Request(prompt, params)), fresh.submit(Request(prompt, params))
        events, wanted = drain(engine), drain(fresh)
        assert ends_of(events)[request_id].num_cached_tokens == num_cached
        assert ends_of(wanted)[fresh_id].num_cached_tokens == 0
        assert_close(sampled_of(events), sampled_of(wanted))
    metrics = engine.metrics()
    assert (metrics.sums.prefix_hits, metrics.sums.prefix_misses) == (4, 2)
    assert metrics.prefix_bytes == len(engine._prefixes) * 3 * 8 * 8


def test_request_continues_from_the_state_of_a_finish_event() -> None:
    engine = engine_of(prefix_bytes=10**5)
    engine.submit(Request([1, 2, 3], SamplingParams(temperature=0, max_tokens=9, logprobs=0)))
    whole = sampled_of(drain(engine))
    first_id = engine.submit(Request([1, 2, 3], SamplingParams(temperature=0, max_tokens=4), keep_state=True))
    end = ends_of(drain(engine))[first_id]
    assert end.state is not None
    params = SamplingParams(temperature=0, max_tokens=5, logprobs=0)
    ids = [engine.submit(Request(end.unread, params, state=end.state)) for _ in range(2)]
    events = drain(engine)
    for request_id in ids:
        assert_close(sampled_of([event for event in events if event.request_id == request_id]), whole[4:])
    assert all(event.state is None for event in ends_of(events).values())
    # A state of the user is not a prefix: the same tokens at the beginning of a sequence have another state.
    plain = engine.submit(Request([*end.unread, *(sampled.token for sampled in whole[4:])], params))
    assert ends_of(drain(engine))[plain].num_cached_tokens == 0


def test_metrics_follow_the_clock() -> None:
    clock = Clock()
    engine = engine_of(max_slots=1, clock=clock)
    for _ in range(2):
        engine.submit(Request([1, 2], SamplingParams(max_tokens=3)))
    ends = {}
    while engine.has_work:
        clock.now += 1
        ends.update(ends_of(engine.step()))
    # Each takes four steps: one token of the prompt, then one answered with each token read.
    assert [(end.waited, end.first_token_after, end.took) for end in ends.values()] == [(1, 2, 4), (5, 6, 8)]
    sums = engine.metrics().sums
    assert (sums.num_steps, sums.num_rows, sums.num_tokens, sums.num_admitted) == (8, 8, 6, 2)
    assert (sums.waited_seconds, sums.finished) == (6, {FinishReason.LENGTH: 2})
    assert (sums.first_token_seconds, sums.num_first_tokens) == (8, 2)
    assert (sums.later_token_seconds, sums.num_later_tokens) == (4, 4)


def test_failing_placement_ends_one_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    place = TokenSampler.place

    def place_or_raise(self: TokenSampler, slot: int, params: SamplingParams, prompt: Sequence[int]) -> None:
        if params.seed == 1:
            raise MemoryError("tables")
        place(self, slot, params, prompt)

    monkeypatch.setattr(TokenSampler, "place", place_or_raise)
    engine = engine_of(max_slots=2)
    ids = [engine.submit(Request([1, 2], SamplingParams(max_tokens=3, seed=seed))) for seed in (0, 1, 0, 1)]
    ends = ends_of(drain(engine))
    assert [ends[request_id].error for request_id in ids] == ["", "sampling failed: MemoryError: tables"] * 2
    assert engine.metrics().num_running == 0


def test_threads_may_submit_and_cancel_while_the_engine_steps() -> None:
    engine = engine_of(max_slots=3, max_queue=1000)
    submitted: list[int] = []

    def submit(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(20):
            request_id = engine.submit(Request([1, 2], SamplingParams(max_tokens=chance.randint(1, 5))))
            submitted.append(request_id)
            if chance.random() < 0.3:
                engine.cancel(request_id)
            engine.metrics()

    threads = [threading.Thread(target=submit, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    events = []
    while any(thread.is_alive() for thread in threads) or engine.has_work:
        events += engine.step()
    for thread in threads:
        thread.join()
    assert sorted(ends_of(events)) == sorted(submitted) == list(range(80))
    assert sum(isinstance(event, FinishEvent) for event in events) == 80


PROMPT = [1, 2, 3, 4, 5, 6]


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
