"""Models of tokenizers: a file or a new one, in the model's folder, for generation, and bits per byte."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gflownet.cli.generate import main as generate
from gflownet.language.__main__ import main
from gflownet.language.text import read_text
from gflownet.rhn.checkpoint import load_text_model
from gflownet.rhn.serving import SamplingParams
from gflownet.rhn.serving import generate as answer_of
from gflownet.rhn.text_codec import TokenizerCodec
from tests.language.test_training import oracle_bits
from tests.language.tiny import OPTIONS, TEXT, train, write_files

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    assert train(folder, "train_tokenizer=300", model="gru.yaml") == 0
    return folder / "run"


def test_trained_tokenizer_reproduces_every_text(trained: Path) -> None:
    codec = TokenizerCodec(trained / "model" / "tokenizer.json")
    assert codec.vocabulary_size == 300
    for text in (TEXT, "\u4e2d\u6587 \U0001f600\r\n\t  x", " leading", "</s><unk>[PAD]"):
        assert codec.decode(codec.encode(text)) == text
    assert len(codec.encode(TEXT)) < 0.7 * len(TEXT.encode())


def test_bits_per_byte_of_tokens_equal_oracle(tmp_path: Path, capsys: Captured) -> None:
    assert train(tmp_path, "train_tokenizer=300", "test_tokens=100000", "sample.every=0", model="gru.yaml") == 0
    printed = re.search(r"bits per byte: test ([\d.]+)", capsys.readouterr().out)
    text = read_text([str(tmp_path / "text.txt")], megabytes=1, run_folder=tmp_path / "run")
    assert printed is not None
    assert float(printed[1]) == pytest.approx(oracle_bits(tmp_path / "run", text.test), abs=0.02)


def test_generate_uses_the_tokenizer_of_the_folder(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("line 7: abc\n", encoding="utf-8")
    out = tmp_path / "answers.jsonl"
    arguments = [str(trained / "model"), "--prompts", str(tmp_path / "prompts.txt"), "--out", str(out)]
    assert generate([*arguments, "--max-tokens", "9", "--seed", "4", "--logprobs", "0"]) == 0
    (answer,) = [json.loads(line) for line in out.read_text().splitlines()]
    model, codec = load_text_model(trained / "model")
    params = SamplingParams(max_tokens=9, seed=5)
    expected = answer_of(model, codec.encode("line 7: abc"), params).tokens
    assert [sampled["token"] for sampled in answer["logprobs"]] == expected
    assert answer["text"] == codec.decode(expected)


def test_terminal_streams_the_text_of_tokens(trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("line 7: abc\n"))
    assert generate([str(trained / "model"), "--max-tokens", "9", "--seed", "4"]) == 0
    model, codec = load_text_model(trained / "model")
    expected = answer_of(model, codec.encode("line 7: abc"), SamplingParams(max_tokens=9, seed=5)).tokens
    assert capsys.readouterr().out == codec.decode(expected) + "\n"


def test_given_tokenizer_is_copied(trained: Path, tmp_path: Path) -> None:
    given = tmp_path / "given.json"
    given.write_bytes((trained / "model" / "tokenizer.json").read_bytes())
    assert train(tmp_path, f"tokenizer={given}", "steps=2") == 0
    copied = tmp_path / "run" / "model" / "tokenizer.json"
    assert copied.read_bytes() == given.read_bytes()
    given.unlink()  # a resume does not need it
    assert main([f"log_dir={tmp_path / 'run'}", "resume=true", "steps=3"]) == 0


def test_tokenizer_that_loses_text_is_reported(tmp_path: Path, capsys: Captured) -> None:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "line": 1}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "lossy.json"))
    arguments = [*write_files(tmp_path), *OPTIONS, f"log_dir={tmp_path / 'run'}", "steps=1", "sample.every=0"]
    assert main([*arguments, f"tokenizer={tmp_path / 'lossy.json'}"]) == 0
    assert "tokenizer: it does not reproduce the text" in capsys.readouterr().out
