"""Text of choices from a stream of tokens, and messages with it."""

from __future__ import annotations

import random

import pytest

from gflownet.rhn.server.service import Choice
from gflownet.rhn.serving.sampling import Sampled
from gflownet.rhn.text_codec import decode, encode


def sampled(token: int) -> Sampled:
    return Sampled(token, -float(token), ((token, -float(token)), (0, -300.0)))


@pytest.mark.parametrize("seed", range(20))
def test_joined_pieces_equal_the_text(seed: int) -> None:
    chance = random.Random(seed)
    tokens = [chance.choice([chance.randrange(256), *encode("é🙂")]) for _ in range(60)]
    pieces, choice, whole = [], Choice(0), Choice(0)
    for token in tokens:
        choice.add(sampled(token))
        whole.add(sampled(token))
        if chance.random() < 0.4 and (piece := choice.piece()) is not None:
            pieces.append(piece)
    pieces.append(choice.piece("stop"))
    expected = whole.piece("stop")
    assert expected is not None
    assert "".join(piece.text for piece in pieces if piece) == expected.text == decode(tokens)
    assert tuple(token for piece in pieces if piece for token in piece.tokens) == expected.tokens


def test_cut_ends_the_last_token_inside() -> None:
    choice = Choice(0, "prompt ")
    for byte in b"abc":
        choice.add(sampled(byte))
    piece = choice.piece("stop", cut=2)
    assert piece is not None
    assert piece.text == "prompt a"
