"""Files that are deep or expand are refused in one line, before they are parsed."""

from __future__ import annotations

import gzip
import io
import json
import struct
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

import gflownet
from gflownet import files
from gflownet.__main__ import main
from gflownet.errors import UserError
from gflownet.files import MAX_DEPTH, check_yaml_depth, parse_json, read_text, read_yaml
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.listed_graphs import read_listed_graphs
from tests.finished_runs import CopiedRun

DEEP = "[" * 200_000
YAML = {
    "flow": f"seed: {DEEP}",
    "mappings": "{a: " * 200_000,
    "compact": f"seed:\n  {'- ' * 200_000}1",
    "blocks": "".join(f"{' ' * depth}a:\n" for depth in range(2_000)),
}


def refusal(*arguments: str) -> str:
    """Return the one line of a command that fails."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as errors:
        assert main(arguments) == 2
    (line,) = errors.getvalue().splitlines()
    return line


@pytest.mark.parametrize("kind", YAML)
def test_deep_config(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "deep.yaml"
    path.write_text(YAML[kind])
    with pytest.raises(UserError, match=r"deep\.yaml: expected plain YAML, got an error: more than 100 nested levels"):
        read_yaml(path)
    assert "100 nested levels" in refusal("train", "--config", str(path))
    assert "100 nested levels" in refusal("language", "--config", str(path), str(path))


def test_deep_override() -> None:
    assert "seed: expected a YAML value" in refusal("train", f"seed={DEEP[:100_000]}")


def test_large_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_YAML_BYTES", 1000)
    path = tmp_path / "large.yaml"
    path.write_text("seed: 1\n" + "#" * 1000)
    assert "expected at most 1,000 bytes, got more" in refusal("train", "--config", str(path))


@pytest.mark.parametrize("text", [DEEP, '{"a":' * 200_000, json.dumps({"a": "[[["}) + DEEP])
def test_deep_json(text: str) -> None:
    with pytest.raises(UserError, match="JSON: expected at most 100 nested levels, got more"):
        parse_json(text)
    with pytest.raises(ValueError, match="100 nested levels"):
        ComputationGraph.from_json(text)


def test_json_within_the_limits() -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH):
        value = [value]
    assert parse_json(json.dumps(value)) == value
    flat = [{"text": '[{"\\', "values": [[1], [2]]}] * 1000
    assert parse_json(json.dumps(flat).encode()) == flat
    check_yaml_depth(json.dumps(value))
    with pytest.raises(UserError):
        parse_json(json.dumps([value]))


@pytest.mark.parametrize("name", ["run.json", "top_architectures.json", "config.yaml", "status.json", "metrics.jsonl"])
def test_deep_files_of_a_run(name: str, copied_run: CopiedRun) -> None:
    folder = copied_run("toy")
    (folder / name).write_text(f"{DEEP}\n{DEEP}" if name == "metrics.jsonl" else DEEP)  # half a last line is no damage
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as errors:
        status = main(["report", str(folder)])
    assert status == 2 or name.split(".")[0] in (folder / "report.html").read_text()
    assert len(errors.getvalue().splitlines()) <= 1
    if name == "top_architectures.json":
        for reader in (gflownet.load, gflownet.load_graph):
            with pytest.raises(ValueError, match="100 nested levels"):
                reader(folder)
    if name == "run.json":
        assert "damaged file" in refusal("train", f"log_dir={folder}", "resume=true")


def test_deep_graph_file(tmp_path: Path) -> None:
    path = tmp_path / "graphs.jsonl.gz"
    path.write_bytes(gzip.compress(DEEP.encode()))
    with pytest.raises(UserError, match="line 1: JSON: expected at most 100 nested levels"):
        read_listed_graphs(str(path), key="env.catalogue.graphs")


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".csv.gz"])
def test_gzip_that_expands(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_BYTES", 2**20)
    path = tmp_path / f"bomb{suffix}"
    path.write_bytes(gzip.compress(b"0" * 2**24))
    readers: dict[str, Callable[[], Any]] = {
        ".jsonl.gz": lambda: read_text(path, key="env.catalogue.graphs"),
        ".csv.gz": lambda: files.read_bytes(path),
    }
    with pytest.raises(UserError, match=r"bomb\..*: expected at most 1,048,576 bytes, got more"):
        readers[suffix]()


@pytest.mark.parametrize("length", [2**62, 200_000])
def test_header_of_weights(length: int, copied_run: CopiedRun) -> None:
    """A header of a claimed length, and one of brackets."""
    folder = copied_run("language") / "model"
    header = DEEP[:length].encode() if length < 2**32 else b"{}"
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", length) + header)
    assert "model.safetensors" in refusal("generate", str(folder))
