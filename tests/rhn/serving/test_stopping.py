"""Stopping criteria: where answers end, and which tokens are held back."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest

from gflownet.rhn.serving.requests import Answer
from gflownet.rhn.serving.sampling import FinishReason, Sampled, SamplingParams
from gflownet.rhn.text_codec import BYTES, ByteCodec, StreamDecoder, TokenizerCodec


def answer_of(
    *, stops: tuple[tuple[int, ...], ...] = (), ends: tuple[int, ...] = (), most: int, least: int = 0
) -> Answer:
    texts = tuple(BYTES.decode(stop) for stop in stops)
    return Answer(SamplingParams(stop_token_ids=ends, stop=texts, max_tokens=most, min_tokens=least), BYTES)


def run(answer: Answer, tokens: list[int]) -> tuple[list[int], FinishReason | None]:
    shown: list[int] = []
    for token in tokens:
        reason = answer.add(Sampled(token))
        shown += [sampled.token for sampled in answer.sampled[len(shown) : answer.num_shown]]
        if reason is not None:
            return shown, reason
    return shown, None


def test_stop_token_ends_the_answer_after_min_tokens() -> None:
    assert run(answer_of(ends=(9,), most=9), [5, 9, 6]) == ([5], FinishReason.STOP)
    assert run(answer_of(ends=(9,), most=9, least=2), [5, 9, 9]) == ([5, 9], FinishReason.STOP)


def random_tokens(rng: Random, *, most: int) -> list[int]:
    return [rng.randint(0, 2) for _ in range(rng.randint(1, most))]


def test_shown_tokens_end_before_the_first_stop_string() -> None:
    for rng in map(Random, range(150)):
        stops = [tuple(random_tokens(rng, most=4)) for _ in range(rng.randint(0, 3))]
        check_shown_tokens(random_tokens(rng, most=12), stops, rng.randint(1, 12))


def check_shown_tokens(tokens: list[int], stops: list[tuple[int, ...]], most: int) -> None:
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


PIECES = [b"a", b"b", b"ab", b"ba", b"aab", b"", b"\xc3", b"\xa9", b"\xc3\xa9b", b"c"]  # \xc3\xa9 is one character


class Pieces(ByteCodec):
    """Some bytes per token."""

    vocabulary_size = len(PIECES)

    def decode(self, tokens: Iterable[int]) -> str:
        return super().decode(b"".join(PIECES[token] for token in tokens))

    def stream(self) -> StreamDecoder:
        return PieceStream()


class PieceStream(StreamDecoder):
    def text(self, tokens: Iterable[int]) -> str:
        return super().text(b"".join(PIECES[token] for token in tokens))


def texts_after(tokens: list[int]) -> list[str]:
    """Return the whole characters after each token."""
    stream, texts = Pieces().stream(), [""]
    for token in tokens:
        texts.append(texts[-1] + stream.text([token]))
    return texts


def text_answer(stops: list[str], most: int, least: int) -> Answer:
    return Answer(SamplingParams(stop=tuple(stops), max_tokens=most, min_tokens=least), Pieces())


def test_shown_text_ends_before_the_first_stop_string_of_any_codec() -> None:
    for rng in map(Random, range(150)):
        tokens = [rng.randrange(len(PIECES)) for _ in range(rng.randint(1, 12))]
        stops = rng.choices(["a", "ab", "ba", "abab", "é", "éb", "bé", "bb", "aabc"], k=rng.randint(0, 3))
        check_shown_text(tokens, stops, rng.randint(1, 12), rng.randint(0, 4))


def check_shown_text(tokens: list[int], stops: list[str], most: int, least: int) -> None:
    """Compare with a search for every stop string in the text after every token."""
    least = min(least, most)
    answer, texts, shown = text_answer(stops, most, least), texts_after(tokens), 0
    for number, token in enumerate(tokens, 1):
        reason = answer.add(Sampled(token))
        assert shown <= answer.num_shown <= number
        text, before = texts[number], texts[number - 1]
        starts = [
            start
            for stop in stops
            for start in range(len(text) - len(stop) + 1)
            if text.startswith(stop, start) and start + len(stop) > len(before)
        ]
        if starts and number > least:
            assert reason is FinishReason.STOP
            shown_text = texts[answer.num_shown]
            wanted = text[: min(starts)]
            # Text that was shown while min_tokens suppressed a stop string stays.
            assert shown_text[: len(shown_text) - answer.cut] == max(wanted, texts[shown], key=len)
            assert answer.cut == 0 or answer.cut < len(shown_text) - len(texts[answer.num_shown - 1])
            return
        if number == most:
            assert (reason, answer.num_shown, answer.cut) == (FinishReason.LENGTH, number, 0)
            return
        assert reason is None
        shown = answer.num_shown
        # The shown tokens hold no incomplete character and no beginning of a stop string.
        if stops:
            assert shown == 0 or len(texts[shown]) > len(texts[shown - 1])
            held = text[len(texts[shown]) :]
            assert not any(held == "" and text.endswith(stop[:n]) for stop in stops for n in range(1, len(stop)))


def test_stop_string_of_a_tokenizer(tmp_path: Path) -> None:
    """With min_tokens and stop tokens."""
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(["one stop and two stops, three stopped"] * 9, vocab_size=300, min_frequency=1)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    codec = TokenizerCodec(tmp_path / "tokenizer.json")
    tokens = codec.encode("one stops two stopped")
    assert len(tokens) < 8
    for stop, min_tokens, text in (("opp", 0, "one stops two st"), ("op", 0, "one st"), ("op", 3, "one stops two st")):
        answer = Answer(SamplingParams(stop=(stop,), min_tokens=min_tokens, max_tokens=99), codec)
        reason = next(reason for token in tokens if (reason := answer.add(Sampled(token))) is not None)
        shown = codec.decode(sampled.token for sampled in answer.sampled[: answer.num_shown])
        assert (reason, shown[: len(shown) - answer.cut]) == (FinishReason.STOP, text)
    answer = Answer(SamplingParams(stop_token_ids=(tokens[2],), stop=("three",), max_tokens=99), codec)
    assert [answer.add(Sampled(token)) for token in tokens[:3]] == [None, None, FinishReason.STOP]
    assert (answer.num_shown, answer.cut) == (2, 0)
