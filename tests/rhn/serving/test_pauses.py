"""Paused requests keep their slots and take no step."""

from __future__ import annotations

from gflownet.rhn.serving.requests import Request
from gflownet.rhn.serving.sampling import FinishReason, SamplingParams
from tests.rhn.serving.clock import Clock
from tests.rhn.serving.engines import drain, ends_of, engine_of, tokens_of

PARAMS = SamplingParams(2.0, max_tokens=6, seed=0)


def answer_to(prompt: list[int]) -> list[int]:
    engine = engine_of()
    engine.submit(Request(prompt, PARAMS))
    return tokens_of(drain(engine))[0]


def test_paused_request_takes_no_step_and_continues_unchanged() -> None:
    engine = engine_of(max_slots=2)
    first, second = engine.submit(Request([1, 2, 3], PARAMS)), engine.submit(Request([4], PARAMS))
    events = engine.step()
    assert engine.pause(first)  # in its prompt
    events += drain(engine)
    assert tokens_of(events) == {second: answer_to([4])}
    assert (engine.has_work, engine.metrics().num_running) == (False, 1)
    assert engine.resume(first)
    for _ in range(4):
        events += engine.step()
    assert engine.pause(first)  # in its answer
    assert (engine.step(), engine.has_work) == ([], False)
    engine.resume(first)
    events += drain(engine)
    assert tokens_of(events)[first] == answer_to([1, 2, 3])
    assert not engine.pause(first)
    assert not engine.resume(first)
    assert not engine.pause(99)


def test_paused_request_keeps_its_slot() -> None:
    engine = engine_of(max_slots=1)
    first, second = (engine.submit(Request([1], PARAMS)) for _ in range(2))
    engine.step()
    engine.pause(first)
    assert not engine.has_work  # so that the thread of the engine sleeps
    assert engine.step() == []
    assert (engine.metrics().num_running, engine.metrics().num_waiting) == (1, 1)
    assert engine.cancel(first)
    assert engine.has_work
    events = drain(engine)
    assert ends_of(events)[first].finish_reason is FinishReason.CANCELLED
    assert tokens_of(events)[second] == answer_to([1])


def test_waiting_request_paused_before_its_slot() -> None:
    clock = Clock()
    engine = engine_of(max_slots=1, max_waiting=5, clock=clock)
    first, second, third = (engine.submit(Request([1], PARAMS)) for _ in range(3))
    engine.pause(second)
    events = drain(engine)
    assert set(ends_of(events)) == {first}
    assert engine.metrics().num_running == 1
    clock.now = 6
    assert engine.has_work  # the third one has waited too long
    assert set(ends_of(drain(engine))) == {third}
    engine.resume(second)
    assert tokens_of(drain(engine))[second] == answer_to([1])


def test_followers_of_a_paused_reader_wait() -> None:
    engine = engine_of(max_slots=3)
    ids = engine.submit_many(Request([1, 2, 3], PARAMS), [0, 0])
    engine.pause(ids[0])
    assert drain(engine) == []
    assert not engine.has_work
    engine.resume(ids[0])
    events = drain(engine)
    assert [tokens_of(events)[each] for each in ids] == [answer_to([1, 2, 3])] * 2
