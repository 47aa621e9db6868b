"""The command: what a run writes, how its figures are computed, and every refusal of a wrong argument."""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import shutil
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from gflownet.envs.skeleton import read_steps
from gflownet.evaluation.candidates.language import LanguageDivergedError, LanguageSteps, LanguageTraining
from gflownet.language.__main__ import main
from gflownet.records.status import RunState, read_status
from gflownet.rhn.cell_network import CellConfig
from gflownet.rhn.checkpoint import description_of, load_language_model, load_text_model
from gflownet.rhn.config import StackConfig, StackLayer
from gflownet.rhn.network import RecurrentStack
from gflownet.rhn.serving import SamplingParams, Stream
from tasks.language import block_graph
from tests.finished_runs import FinishedRuns
from tests.language.tiny import OPTIONS, TEXT, differences, last_state, metric_rows, train, write_files

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def run(finished_runs: FinishedRuns) -> Path:
    return finished_runs("language")


def oracle_bits(run: Path, pieces: tuple[str, ...]) -> float:
    """Return the bits per byte of the saved model on a text, token by token in one stream."""
    model, codec = load_language_model(run / "model"), load_text_model(run / "model").codec
    text = "".join(pieces)
    tokens, state, nats = [token for piece in pieces for token in codec.encode(piece)], None, 0.0
    with torch.no_grad():
        for token, following in pairwise(tokens):
            logits, state = model(torch.tensor([[token]]), state)
            nats -= float(logits[0, 0].double().log_softmax(-1)[following])
    return nats / (len(tokens) - 1) * len(tokens) / len(text.encode()) / math.log(2)


def test_run_writes_metrics_samples_status_and_model(run: Path) -> None:
    rows = metric_rows(run)
    assert [row["step"] for row in rows] == list(range(1, 21))
    assert [row["step"] for row in rows if "validation_bits_per_byte" in row] == [6, 12, 18, 20]
    assert rows[-1]["tokens"] == 20 * 2 * 8
    assert max(row["learning_rate"] for row in rows) == pytest.approx(0.008)
    samples = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    assert [sample["step"] for sample in samples] == [5, 10, 15, 20]
    assert len({sample["text"] for sample in samples}) > 1
    status = read_status(run)
    assert status is not None
    assert status.state is RunState.COMPLETED
    best = min(row["validation_bits_per_byte"] for row in rows if "validation_bits_per_byte" in row)
    assert best < rows[0]["loss"] / math.log(2)


def test_closing_lines_name_the_next_commands(tmp_path: Path, capsys: Captured) -> None:
    assert train(tmp_path, "--quiet", "steps=3") == 0
    lines = capsys.readouterr().out.splitlines()
    model = tmp_path / "run" / "model"
    assert re.fullmatch(r"trained [\d,]+ parameters, 3 steps in 0:00:\d\d, [\d,]+ tokens/s", lines[0])
    assert re.fullmatch(r"bits per byte: test [\d.]+, validation [\d.]+ \(weights of step \d+\)", lines[1])
    assert lines[2:] == [
        "next:",
        f"  gflownet generate {model}",
        f"  python -m gflownet.rhn.server {model}",
        f"  gflownet language log_dir={tmp_path / 'run'} resume=true steps=6",
    ]


def test_training_learns_the_text(tmp_path: Path) -> None:
    options = ("steps=60", "rows=8", "sequence_length=16", "learning_rate=0.04", "sample.every=0")
    assert train(tmp_path, *options, "evaluate_every=60", model="gru.yaml") == 0
    first, *_, last = metric_rows(tmp_path / "run")
    assert first["loss"] / math.log(2) > 5
    assert last["validation_bits_per_byte"] < 2.5


def test_found_model_keeps_its_widths(tmp_path: Path, capsys: Captured) -> None:
    """The file of a search, as docs/rhn.md describes it."""
    stack = RecurrentStack(StackConfig((StackLayer("lstm"), StackLayer(rank=3, projections=("up",))), width=10))
    entries = [
        {"rank": 0, "graph": {}},
        {"rank": 1, "language_model": description_of(stack.config), "words": "lstm 10 > rhn 10"},
    ]
    foreign = json.loads(json.dumps(blocks_of()).replace("gflownet.operations.recurrent:Causal", "no_such_module:"))
    entries.append({"rank": 2, "language_model": foreign})
    (tmp_path / "search").mkdir()
    (tmp_path / "search" / "top_architectures.json").write_text(json.dumps(entries))
    text = write_files(tmp_path)[0]
    arguments = [text, "--from", str(tmp_path / "search"), *OPTIONS, f"log_dir={tmp_path / 'run'}"]
    assert main([*arguments, "rank=1", "steps=2"]) == 0
    assert "model: lstm 10 > rhn 10 rank 3 up, " in capsys.readouterr().out
    assert load_language_model(tmp_path / "run" / "model").config == stack.config
    shutil.rmtree(tmp_path / "search")  # a resume does not need it
    assert main([f"log_dir={tmp_path / 'run'}", "resume=true", "steps=3"]) == 0
    file = tmp_path / "top.json"
    file.write_text(json.dumps(entries))
    for options, message in {
        ("rank=0",): f"--from: {file}: expected architectures of task=language, rank 0 has no language model",
        ("rank=3",): f"rank: expected one of 0..2, the architectures of {file}, got 3",
        ("rank=2",): f"{file}: *import no_such_module:Convolution;*",
        ("model=M",): "model: expected none with --from, got M",
    }.items():
        capsys.readouterr()
        assert main([text, "--from", str(file), *OPTIONS, f"log_dir={tmp_path / 'other'}", *options]) == 2
        assert fnmatchcase(capsys.readouterr().err, f"error: {message}\n")
    assert not (tmp_path / "other").exists()


def blocks_of() -> dict[str, Any]:
    """Return kind and config of a convolution and attention in a window of five bytes, run twice."""
    attention = {"name": "self_attention", "heads": 2, "causal": True, "rotary": True, "window": 5, "carry": True}
    declared = {
        "attention": attention,
        "convolution": {"name": "gflownet.operations.recurrent:CausalConvolution", "kernel_size": 3},
    }
    blocks = {name: block_graph(read_steps(each, name), 12) for name, each in declared.items()}
    return description_of(CellConfig(blocks, ["convolution", "attention"], repeat=2, shared=True))


def test_found_blocks_train_resume_and_generate(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "top.json").write_text(json.dumps([{"rank": 0, "language_model": blocks_of()}]))
    arguments = [write_files(tmp_path)[0], "--from", str(tmp_path / "top.json"), *OPTIONS]
    for folder, options in {"whole": ("steps=9",), "parts": ("steps=4",)}.items():
        assert main([*arguments, f"log_dir={tmp_path / folder}", "schedule=constant", "warm_up=0", *options]) == 0
    assert "model: (convolution > attention) x2 shared, width 12, " in capsys.readouterr().out
    assert main([f"log_dir={tmp_path / 'parts'}", "resume=true", "steps=9"]) == 0
    assert differences(last_state(tmp_path / "whole")["model"], last_state(tmp_path / "parts")["model"]) == []
    model, codec = load_text_model(tmp_path / "parts" / "model")
    prompt, params = codec.encode("line 1: abc"), SamplingParams(temperature=0.0, max_tokens=12)
    tokens = [sampled.token for sampled in Stream(model, prompt, params)]
    network, text = load_language_model(tmp_path / "parts" / "model"), [*prompt]
    for token in tokens:  # the whole text at once, without a state
        assert int(network(torch.tensor([text]))[0][0, -1].argmax()) == token
        text.append(token)


def test_divergence_is_one_line_and_keeps_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    take = LanguageSteps.take

    def diverging(self: LanguageSteps, done: float):
        if self.step == 9:
            for parameter in self.model.parameters():
                parameter.data.fill_(float("nan"))
        return take(self, done)

    monkeypatch.setattr(LanguageSteps, "take", diverging)
    assert train(tmp_path, "--quiet") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("error: step 10: expected a loss <= 1000, got nan; the checkpoint step_00000007.pt is kept")
    weights = load_language_model(tmp_path / "run" / "model").state_dict()
    assert all(bool(tensor.isfinite().all()) for tensor in weights.values())
    status = read_status(tmp_path / "run")
    assert status is not None
    assert status.state is RunState.FAILED
    monkeypatch.undo()
    assert train(tmp_path, "resume=true", "learning_rate=0.001", "steps=9") == 0


def test_gradient_that_is_not_finite_leaves_the_weights() -> None:

    torch.manual_seed(0)
    model = RecurrentStack(StackConfig((StackLayer("gru"),), width=4))
    text = torch.randint(256, (100,), dtype=torch.uint8)
    steps = LanguageSteps(
        model, text, options=LanguageTraining(rows=2, sequence_length=5), generator=torch.Generator().manual_seed(0)
    )
    before = [parameter.clone() for parameter in model.parameters()]
    model.norm.weight.register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(LanguageDivergedError, match=r"step 1: expected a finite gradient, got one of norm (nan|inf)"):
        steps.take(0.5)
    assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected FILE..., a text file or a folder with text files, got nothing"),
        (["missing.txt"], "text: {folder}/missing.txt: cannot be read (No such file or directory)"),
        (["empty.txt"], "text: expected text files in {folder}/empty.txt, got 1 that are empty or not UTF-8"),
        (["folder"], "text: expected text files in {folder}/folder, got 1 that are empty or not UTF-8"),
        (["nothing"], "text: expected text files in {folder}/nothing, got none"),
        (["/dev/null"], "text: expected a file or a folder, got /dev/null, which is neither"),
        (["short.txt"], "text: expected enough for three parts, at least 3,000 bytes, got 12 bytes, none left for *"),
        (["text.txt", "stesp=3"], "stesp: unknown option, got stesp=3; did you mean steps?"),
        (["text.txt", "steps=many"], "steps: expected an integer, got 'many'"),
        (["text.txt", "steps=0"], "steps: expected a number >= 1, got 0"),
        (["text.txt", "schedule=cosin"], "schedule: expected one of cosine, linear, trapezoid, constant, got 'cosin'"),
        (["text.txt", "model=XL"], "model: expected one of S, M, L or a YAML file, got 'XL'; did you mean *"),
        (["text.txt", "model=no.yaml"], "model: no such file: no.yaml"),
        (["text.txt", "model=bad.yaml"], "model: bad.yaml: kind: expected one of *, got 'transformer'"),
        (
            ["text.txt", "width: 100000000\nlayers: [lstm]"],
            "m.yaml: expected sizes that fit into the memory of * GB, *",
        ),
        (["text.txt", "layers: 5"], "m.yaml: config: layers: expected a list of layers, got 5"),
        (["text.txt", "layers: [gru]\nwitdh: 8"], "m.yaml: config: expected some of layers, width, *, got 'witdh'"),
        (["text.txt", "--from", "m" * 300], "--from: expected a run of a search *(File name too long)"),
        (["text.txt", "--config", f"{'m' * 300}.yaml"], "--config: no such file: m*"),
        (
            ["text.txt", "rows=1000000000"],
            "rows: expected a batch that fits into the memory of * GB, got 1000000000 rows *",
        ),
        (["text.txt", "device=cuda:99999999999999999999"], "device: expected auto, cpu, cuda or cuda:N, got *"),
        (["text.txt", "device=cuda:128"], "device: expected cpu or one of * CUDA devices, got cuda:128*"),
        (["text.txt", "model=worse.yaml"], "*config: width: expected at least 1, got 0"),
        (["text.txt", "--from", "nowhere"], "--from: expected a run of a search with top_architectures.json, got *"),
        (["text.txt", "rank=1"], "rank: expected it with --from RUN, got 1 without"),
        (["text.txt", "device=gpu"], "device: expected auto, cpu, cuda or cuda:N, got 'gpu'"),
        (["text.txt", "tokenizer=text.txt"], "text.txt: expected a tokenizer of the package tokenizers (*"),
        (["text.txt", "tokenizer=no.json"], "tokenizer: no.json: cannot be read (No such file or directory)"),
        (["text.txt", "sequence_length=100000"], "text: expected at least 100,001 tokens for train, got *"),
        (["text.txt", "batches=contiguous", "rows=5000"], "text: expected at least 320,001 tokens for train, got *"),
        (["text.txt", "model=model.yaml", "precision=bfloat16"], "precision: expected float32 for a model with RHN *"),
        (["text.txt", "--config", "quikc"], "--config: expected one of quick, tokens or a path, got 'quikc'; *"),
        (["text.txt", 'sample.prompt=""'], "sample.prompt: expected at least one character, got ''"),
        (["-q", "-v"], "expected at most one of --quiet and --verbose, got both"),
        (["--confg", "x"], "--confg: unknown option; did you mean --config?*"),
    ],
)
def test_wrong_argument_is_one_line(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    for name in ("folder", "nothing"):
        (tmp_path / name).mkdir()
    (tmp_path / "empty.txt").touch()
    (tmp_path / "short.txt").write_text("hello world")
    (tmp_path / "folder" / "picture.png").write_bytes(b"\x89PNG\xff")
    (tmp_path / "bad.yaml").write_text("kind: transformer\n")
    (tmp_path / "worse.yaml").write_text("kind: recurrent_stack\nwidth: 0\nlayers: [{cell: gru}]\n")
    for number, argument in enumerate(arguments):
        if ": " in argument:  # the content of a model's file
            (tmp_path / "m.yaml").write_text(
                f"kind: recurrent_stack\n{argument}" if "kind" not in argument else argument
            )
            arguments = [*arguments[:number], "model=m.yaml", *arguments[number + 1 :]]
    assert main([*arguments, "wandb.mode=disabled"]) == 2
    assert not (tmp_path / "logs").exists()  # nothing blocks the next try
    printed = capsys.readouterr()
    pattern = re.escape(f"error: {message.format(folder=tmp_path)}\n").replace(r"\*", "[^\n]*")
    assert re.fullmatch(pattern, printed.err), printed.err


def test_folder_of_another_run_is_not_changed(tmp_path: Path, capsys: Captured) -> None:
    assert train(tmp_path, "steps=2") == 0
    content = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    for options, message in {
        (): "log_dir: expected a folder without a run",
        ("resume=true", "seed=3"): "seed: expected 0, as the run in",
        ("resume=true", str(tmp_path / "model.yaml")): "text: expected",
    }.items():
        capsys.readouterr()
        assert train(tmp_path, "steps=2", *options) == 2
        assert capsys.readouterr().err.startswith(f"error: {message}")
    (tmp_path / "text.txt").write_text(TEXT + "more\n", encoding="utf-8")
    assert main([f"log_dir={tmp_path / 'run'}", "resume=true"]) == 2
    assert "text: expected the text of the run in log_dir, got another" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in content} == content
    (tmp_path / "own" / "model").mkdir(parents=True)
    (tmp_path / "own" / "model" / "model.json").write_text("mine")
    assert train(tmp_path, f"log_dir={tmp_path / 'own'}") == 2
    assert "expected only files that the run wrote" in capsys.readouterr().err
    assert not (tmp_path / "own" / "run.json").exists()
    assert train(tmp_path, "steps=2", "overwrite_existing_exp=true") == 0
    assert len(metric_rows(tmp_path / "run")) == 2


def test_print_config_and_config_file(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "mine.yaml").write_text("steps: 7\nsample:\n  every: 3\n")
    assert main(["--print-config", "--config", str(tmp_path / "mine.yaml"), "rows=5", "--steps=9", "-q"]) == 0
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if line.startswith(("steps", "rows", "console", "  every"))] == [
        "steps: 9",
        "rows: 5",
        "console: quiet",
        "  every: 3",
    ]


def test_file_named_like_an_option_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.chdir(tmp_path)
    Path("steps=3").write_text(TEXT, encoding="utf-8")
    assert main(["--print-config", "steps=3"]) == 0
    assert f"- {tmp_path / 'steps=3'}" in capsys.readouterr().out
    assert os.listdir() == ["steps=3"]


def test_out_of_memory_in_a_step_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    def take(self: LanguageSteps, done: float) -> None:
        torch.empty(2**55)

    monkeypatch.setattr(LanguageSteps, "take", take)
    assert train(tmp_path, "--quiet") == 2
    assert capsys.readouterr().err == (
        "error: step 1: expected memory for rows=2, got too little; overwrite_existing_exp=true starts again, with "
        "fewer rows or a smaller model\n"
    )
    monkeypatch.undo()
    assert train(tmp_path, "steps=1", "overwrite_existing_exp=true") == 0


def test_training_from_python(tmp_path: Path) -> None:
    from gflownet.language import load_config, train_on_text

    text, model = write_files(tmp_path)
    config = load_config(None, [model, *OPTIONS, "steps=2", f"log_dir={tmp_path / 'run'}"], files=[text])
    assert train_on_text(config) is None
    assert len(metric_rows(tmp_path / "run")) == 2


@pytest.mark.parametrize("command", ["gflownet.report.__main__", "gflownet.cli.sample"])
def test_commands_of_searches_refuse_the_run(run: Path, command: str, capsys: Captured) -> None:
    assert importlib.import_module(command).main([str(run)]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert error == f"error: {run}: expected the run of a search, got the training of a language model"
