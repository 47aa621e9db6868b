"""Stopping criteria: where answers end, and which tokens are held back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gflownet.rhn.serving.sampling import (
    Answer,
    EosTokenCriteria,
    FinishReason,
    MaxLengthCriteria,
    Sampled,
    StopStringCriteria,
)


def answer_of(
    *, stops: tuple[tuple[int, ...], ...] = (), ends: tuple[int, ...] = (), most: int, least: int = 0
) -> Answer:
    return Answer(EosTokenCriteria(frozenset(ends)), StopStringCriteria(stops), MaxLengthCriteria(most), least)


def run(answer: Answer, tokens: list[int]) -> tuple[list[int], FinishReason | None]:
    """Return the shown tokens and the reason of the end."""
    shown: list[int] = []
    for token in tokens:
        reason = answer.add(Sampled(token))
        shown += answer.tokens[len(shown) : answer.num_shown]
        if reason is not None:
            return shown, reason
    return shown, None


def test_answer_ends_at_max_tokens() -> None:
    assert run(answer_of(most=3), [5, 6, 7, 8]) == ([5, 6, 7], FinishReason.LENGTH)


def test_stop_token_ends_the_answer_after_min_tokens() -> None:
    assert run(answer_of(ends=(9,), most=9), [5, 9, 6]) == ([5], FinishReason.STOP)
    assert run(answer_of(ends=(9,), most=9, least=2), [5, 9, 9]) == ([5, 9], FinishReason.STOP)


def test_beginning_of_a_stop_string_is_held_back() -> None:
    answer = answer_of(stops=((1, 2, 3),), most=9)
    shown = []
    for token, wanted in ((7, [7]), (1, [7]), (2, [7]), (1, [7, 1, 2]), (2, [7, 1, 2])):
        assert answer.add(Sampled(token)) is None
        shown += answer.tokens[len(shown) : answer.num_shown]
        assert shown == wanted
    assert answer.add(Sampled(3)) is FinishReason.STOP
    assert answer.num_shown == 3


def test_stop_string_with_the_earliest_start_counts() -> None:
    assert run(answer_of(stops=((2, 3), (1, 2, 3)), most=9), [7, 1, 2, 3]) == ([7], FinishReason.STOP)


def test_held_tokens_are_shown_at_max_tokens() -> None:
    assert run(answer_of(stops=((1, 2, 3),), most=3), [7, 1, 2]) == ([7, 1, 2], FinishReason.LENGTH)


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=12)


@given(TOKENS, st.lists(TOKENS.map(lambda tokens: tuple(tokens[:4])), max_size=3), st.integers(1, 12))
def test_shown_tokens_end_before_the_first_stop_string(
    tokens: list[int], stops: list[tuple[int, ...]], most: int
) -> None:
    """Compare with a search for every stop string in every prefix."""
    shown, reason = run(answer_of(stops=tuple(stops), most=most), tokens)
    for end in range(1, len(tokens) + 1):
        begun = [end - len(stop) for stop in stops if end >= len(stop) and tuple(tokens[end - len(stop) : end]) == stop]
        if begun:
            assert (shown, reason) == (tokens[: min(begun)], FinishReason.STOP)
            return
        if end == most:
            assert (shown, reason) == (tokens[:most], FinishReason.LENGTH)
            return
    assert reason is None
    held = tokens[len(shown) :]
    assert shown == tokens[: len(shown)]
    assert not held or any(tuple(held) == stop[: len(held)] for stop in stops)
