"""Text streams of a tokenizer file against decoding all tokens at once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from gflownet.errors import UserError
from gflownet.rhn.text_codec import BYTES, TextCodec, TokenizerCodec, load_text_codec

TEXT = "def größe(x):\n    return x + 1  # 漢字 🎉\n"


def write_tokenizer(path: Path) -> TokenizerCodec:
    """Write a byte-level BPE of a few merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=270, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.save(str(path))
    return TokenizerCodec(path)


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TokenizerCodec:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


@pytest.fixture(params=["bytes", "tokenizer"])
def each_codec(request: pytest.FixtureRequest, codec: TokenizerCodec) -> TextCodec:
    return BYTES if request.param == "bytes" else codec


def test_encode_and_decode_round_trip(each_codec: TextCodec) -> None:
    tokens = each_codec.encode(TEXT)
    assert each_codec.decode(tokens) == TEXT
    assert max(tokens) < each_codec.vocabulary_size


def test_stream_of_random_tokens_joins_to_their_text(each_codec: TextCodec) -> None:
    chance = random.Random(0)
    for _ in range(20):
        tokens = [chance.randrange(each_codec.vocabulary_size) for _ in range(30)]
        stream, text, rest = each_codec.stream(), "", tokens
        while rest:
            size = chance.randint(1, 5)
            text, rest = text + stream.text(rest[:size]), rest[size:]
        assert text + stream.rest() == each_codec.decode(tokens)
        assert stream.rest() == ""


def test_stream_decodes_each_token_a_few_times(codec: TokenizerCodec, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded, decode = [], codec.decode
    monkeypatch.setattr(codec, "decode", lambda tokens: decoded.append(len(tokens)) or decode(tokens))
    stream, tokens = codec.stream(), codec.encode(TEXT * 10)
    for token in tokens:
        stream.text([token])
    assert sum(decoded) < 20 * len(tokens)


def test_names_of_tokens_differ(codec: TokenizerCodec) -> None:
    names = [codec.token_name(token) for token in range(codec.vocabulary_size)]
    assert len(set(names)) == len(names)
    for token in codec.encode("aé🎉"):
        assert "\N{REPLACEMENT CHARACTER}" not in codec.token_name(token)
    assert {f"bytes:\\x{byte:02x}" for byte in range(0x80, 0x100)} <= set(names)


def test_half_of_a_surrogate_pair_raises(each_codec: TextCodec) -> None:
    with pytest.raises(ValueError, match="expected characters that UTF-8 can encode"):
        each_codec.encode("a\ud800")


@pytest.mark.parametrize(
    ("tokens", "decoder", "names"),
    [
        (["Ã©", "Ã", "æ¼", "ï¿½"], decoders.ByteLevel(), ["é", "bytes:\\xc3", "bytes:\\xe6\\xbc", "\ufffd"]),
        (["a", "<0xE2>", "<0x41>", "\ufffd"], decoders.ByteFallback(), ["a", "bytes:\\xe2", "A", "\ufffd<3>"]),
        (["a", "x\ufffd", ""], decoders.Fuse(), ["a", "x\ufffd<1>", "<2>"]),
    ],
)
def test_name_of_a_part_of_a_character_is_its_bytes(
    tokens: list[str], decoder: decoders.Decoder, names: list[str], tmp_path: Path
) -> None:
    tokenizer = Tokenizer(models.WordLevel({token: number for number, token in enumerate(tokens)}, unk_token=tokens[0]))
    tokenizer.decoder = decoder
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    codec = TokenizerCodec(tmp_path / "tokenizer.json")
    assert [codec.token_name(number) for number in range(len(tokens))] == names


@pytest.mark.parametrize("content", ["", "{}", "[1]"])
def test_file_that_is_no_tokenizer_is_a_user_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UserError, match="expected a tokenizer"):
        load_text_codec(tmp_path)


def test_folder_without_a_tokenizer_has_bytes(tmp_path: Path) -> None:
    assert load_text_codec(tmp_path) is BYTES
