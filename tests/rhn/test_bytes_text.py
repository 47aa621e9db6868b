"""Conversion of text to bytes, and of a stream of bytes to text."""

from __future__ import annotations

import random

import pytest

from gflownet.rhn.bytes_text import StreamDecoder, decode, encode

TEXTS = ("", "plain", "naïve 数学 🙂", "\x00\x1b[0m\n")


@pytest.mark.parametrize("text", TEXTS)
def test_decode_inverts_encode(text: str) -> None:
    assert decode(encode(text)) == text


def test_half_surrogate_pair_raises() -> None:
    with pytest.raises(ValueError, match=r"text: expected characters that UTF-8 can encode, got '\\ud83d'"):
        encode("a\ud83d")


def test_stream_decoder_returns_whole_characters() -> None:
    decoder = StreamDecoder()
    assert [decoder.text([byte]) for byte in encode("é🙂")] == ["", "é", "", "", "", "🙂"]
    assert decoder.rest() == ""


def test_rest_replaces_an_incomplete_character() -> None:
    decoder = StreamDecoder()
    assert decoder.text(encode("🙂")[:2]) == ""
    assert decoder.rest() == "\ufffd"
    assert decoder.text(encode("a")) == "a"


@pytest.mark.parametrize("seed", range(50))
def test_joined_pieces_of_random_bytes_equal_decode(seed: int) -> None:
    chance = random.Random(seed)
    whole = encode("é🙂 数" * 3)
    tokens = [chance.choice([chance.randrange(256), chance.choice(whole)]) for _ in range(200)] + whole
    decoder, text, rest = StreamDecoder(), "", tokens
    while rest:
        size = chance.randint(1, 5)
        text += decoder.text(rest[:size])
        rest = rest[size:]
    assert text + decoder.rest() == decode(tokens)
