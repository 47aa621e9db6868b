"""The text of a training, its three parts, and tokenizers: a file or a new one, for generation and bits per byte."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import torch

from gflownet.language.__main__ import main
from gflownet.language.generate import main as generate
from gflownet.language.text import Text, read_text
from gflownet.rhn.checkpoint import load_language_model, load_text_model
from gflownet.rhn.serving import SamplingParams
from gflownet.rhn.serving import generate as answer_of
from gflownet.rhn.text_codec import TokenizerCodec
from tests.language.test_training import oracle_bits
from tests.language.tiny import OPTIONS, TEXT, train, write_files


def read(*paths: Path, megabytes: float = 1.0, run_folder: Path = Path("/nowhere"), include: str = "") -> Text:
    return read_text([str(path) for path in paths], megabytes=megabytes, run_folder=run_folder, include=include)


def lines(name: str, number: int) -> str:
    return "".join(f"{name} {line} gr\u00f6\u00dfer\n" for line in range(number))


def test_single_file_is_cut_at_lines_into_three_parts(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text(lines("book", 5000), encoding="utf-8")
    text = read(path)
    pieces = [*text.train, *text.validation, *text.test]
    assert sorted("".join(pieces).splitlines()) == sorted(path.read_text(encoding="utf-8").splitlines())
    assert all(piece.endswith("\n") for piece in pieces)
    assert len(pieces) > 50
    size = path.stat().st_size
    for part, share in ((text.train, 0.8), (text.validation, 0.1), (text.test, 0.1)):
        assert len("".join(part).encode()) == pytest.approx(share * size, rel=0.2)
    assert read(path).digest() == text.digest()


def test_long_line_is_cut_between_characters(tmp_path: Path) -> None:
    path = tmp_path / "line.txt"
    path.write_text("\u00e9\u20ac\U0001f600" * 5000, encoding="utf-8")
    text = read(path)
    pieces = [*text.train, *text.validation, *text.test]
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces)
    assert sum(map(len, pieces)) == 15_001  # with the newline at the end


def test_folder_is_searched_for_text(tmp_path: Path) -> None:
    for number in range(150):
        folder = tmp_path / f"sub{number % 7}"
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.txt").write_text(lines(f"f{number}", 20), encoding="utf-8")
    for name in (".hidden", "site-packages"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "other.txt").write_text(lines("secret", 9))
    (tmp_path / "sub0" / ".dot").write_text(lines("secret", 9))
    (tmp_path / "empty").touch()
    (tmp_path / "latin.txt").write_bytes(b"gr\xf6\xdfer\n" * 100)
    (tmp_path / "table.db").write_bytes(b"abc\0def\n")
    os.mkfifo(tmp_path / "pipe")  # reading it would wait for ever
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nothing")
    other_run, this_run = tmp_path / "logs" / "other", tmp_path / "logs" / "this"
    for run in (other_run, this_run):
        run.mkdir(parents=True)
        (run / "samples.jsonl").write_text(lines("secret", 9))
    (other_run / "run.json").write_text("{}")
    text = read(tmp_path, run_folder=this_run)
    assert (text.num_files, text.num_skipped) == (150, 3)
    assert "skipped 3 that are empty or not UTF-8" in text.line()
    pieces = [*text.train, *text.validation, *text.test]
    assert not any("secret" in piece for piece in pieces)
    assert all(len({line.split()[0] for line in piece.splitlines()}) == 1 for piece in pieces)  # whole files
    assert read(tmp_path, run_folder=this_run, include="9.txt,x.txt").num_files == 15
    # files given one by one, or twice, are the same text
    assert read(tmp_path, tmp_path / "sub0", run_folder=this_run).num_files == 150


def test_held_out_files_stay_held_out_in_a_smaller_text(tmp_path: Path) -> None:
    for number in range(400):
        (tmp_path / f"{number}.txt").write_text(lines(f"f{number}", 40), encoding="utf-8")
    whole, half = read(tmp_path), read(tmp_path, megabytes=0.12)
    assert half.num_omitted > 100
    assert set(half.test) <= set(whole.test)
    assert not set(half.validation) & set(whole.train)
    assert len("".join([*half.train, *half.validation, *half.test]).encode()) == pytest.approx(120_000, abs=50)


def test_copies_of_a_file_are_left_out(tmp_path: Path) -> None:
    """A copy in the training part would make the held-out text known."""
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        for number in range(150):
            (tmp_path / folder / f"{number}.txt").write_text(lines(f"f{number}", 20), encoding="utf-8")
    text = read(tmp_path)
    assert (text.num_files, text.num_copies, text.num_omitted) == (150, 150, 0)
    assert text.line().endswith("; left out 150 with the content of another")
    assert not {*text.test, *text.validation} & set(text.train)
    assert not set(text.test) & set(text.validation)
    for name in ("7", "8", "9"):
        (tmp_path / name).write_text(lines("few", 400 if name == "8" else 300), encoding="utf-8")
    few = read(*(tmp_path / name for name in ("7", "8", "9")))
    assert (few.num_files, few.num_copies) == (2, 1)


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
    stop, stopped = answer["text"][3:5], tmp_path / "stopped.jsonl"
    assert generate([*arguments[:3], "--out", str(stopped), "--max-tokens", "9", "--seed", "4", "--stop", stop]) == 0
    assert json.loads(stopped.read_text())["text"] == answer["text"].partition(stop)[0]
    network = load_language_model(trained / "model")
    assert network.generate("line 7: abc", max_new_tokens=9, seed=5) == answer["text"]
    assert network.generate(torch.tensor(codec.encode("line 7: abc")), max_new_tokens=9, seed=5) == expected


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
