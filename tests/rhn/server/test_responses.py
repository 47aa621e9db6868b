"""Text of choices from a stream of tokens, and messages with it."""

from __future__ import annotations

import random

import pytest

from gflownet.rhn.server.responses import CompletionFormat
from gflownet.rhn.server.service import Choice, Piece
from gflownet.rhn.serving.sampling import Sampled
from gflownet.rhn.text_codec import BYTES, decode, encode


def sampled(token: int) -> Sampled:
    return Sampled(token, -float(token), ((token, -float(token)), (0, -300.0)))


def test_piece_holds_whole_characters() -> None:
    choice = Choice(2, prefix="p")
    assert choice.piece() == Piece(2, "p", (), None)
    first, second = (sampled(byte) for byte in encode("é"))
    choice.add(first)
    assert choice.piece() is None
    choice.add(second)
    assert choice.piece() == Piece(2, "é", (first, second), None)
    choice.add(first)
    assert choice.piece("length") == Piece(2, "\ufffd", (first,), "length")
    assert choice.num_tokens == 3


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


def test_message_has_openais_format() -> None:
    choice = Choice(0)
    for byte in encode("aé"):
        choice.add(sampled(byte))
    piece = choice.piece("stop")
    assert piece is not None
    form = CompletionFormat("m", BYTES, has_logprobs=True)
    message = form.message([form.choice(piece, is_event=False)], is_event=False, usage=None)
    assert message["choices"] == [
        {
            "index": 0,
            "text": "aé",
            "logprobs": {
                "tokens": ["a", "bytes:\\xc3", "bytes:\\xa9"],
                "token_logprobs": [-97.0, -195.0, -169.0],
                "top_logprobs": [{BYTES.token_name(t): -float(t), "\x00": -300.0} for t in (97, 195, 169)],
            },
            "finish_reason": "stop",
        }
    ]
    assert message["id"].startswith("cmpl-")
    assert (message["object"], message["model"], message["usage"]) == ("text_completion", "m", None)
    assert CompletionFormat("m", BYTES, has_logprobs=False).choice(piece, is_event=True)["logprobs"] is None
