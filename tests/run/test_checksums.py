"""Checksums of run.json, status.json, metrics.jsonl and top_architectures.json: every changed digit is noticed."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

import gflownet
from gflownet.errors import UserError
from gflownet.files import CHECKSUM, is_intact, read_entries, read_rows, sealed
from gflownet.records.marker import read_marker
from gflownet.report.page import read_run
from tests.finished_runs import SEARCHES
from tests.small_run import run

# File -> problem in the report.
FILES = {
    "run.json": "a damaged file",
    "status.json": "status.json is damaged: state and times are unknown.",
    "metrics.jsonl": "metrics.jsonl: 1 damaged line left out (line ",
    "results.json": "results.json is damaged",
    "top_architectures.json": "top_architectures.json: 1 damaged entry left out.",
}
NUM_FLIPS = 8


def flips(path: Path) -> list[str]:
    """Return the text of a file with one changed digit, at random places that change its content."""
    text = path.read_text()
    places = [match.start() for match in re.finditer(r"\d", text)]
    changed = []
    for place in random.Random(1).sample(places, NUM_FLIPS):
        flipped = f"{text[:place]}{(int(text[place]) + 1) % 10}{text[place + 1 :]}"
        lines = zip(*([each] if path.suffix == ".json" else each.splitlines() for each in (text, flipped)), strict=True)
        changed += [] if all(same_content(*pair) for pair in lines) else [flipped]
    return changed


def same_content(before: str, after: str) -> bool:
    """Return whether two texts have one content; a digit far behind the point may not change a float."""
    try:
        return json.loads(before) == json.loads(after)
    except ValueError:  # a number with a leading zero
        return False


@pytest.mark.parametrize("name", FILES)
def test_changed_digit_is_named(name, copied_run):
    folder = copied_run("toy")
    assert not read_run(folder).problems
    texts = flips(folder / name)
    assert len(texts) > NUM_FLIPS / 2
    for text in texts:
        (folder / name).write_text(text)
        (problem,) = read_run(folder).problems
        assert FILES[name] in problem or f"{name} is damaged" in problem


def test_rest_of_damaged_files_is_used(copied_run, capsys, caplog):
    folder = copied_run("toy")
    damage(folder / "metrics.jsonl", '"step": 3', '"step": 4')
    damage(folder / "status.json", '"pid": ', '"pid": 1')
    damage(folder / "top_architectures.json", '"validation_score": 0.', '"validation_score": 0.9')
    assert len(read_rows(folder / "metrics.jsonl")[0]) == 7
    assert 0 not in [entry["rank"] for entry in read_entries(folder / "top_architectures.json")[0]]
    with pytest.raises(ValueError, match="expected rank 0 as the run wrote it, got another checksum"):
        gflownet.load_graph(folder, 0)
    assert gflownet.load_graph(folder, 1)
    assert run(folder, *SEARCHES["toy"], "num_training_steps=9", "resume=true") == 0
    assert [message.partition(": ")[2] for message in caplog.messages] == [
        "expected one row for each of 8 steps, got 7, line 3 is damaged; continuing without",
        "expected the status of the run, got a damaged file; its times are lost",
    ]
    damage(folder / "run.json", '"seed": 0', '"seed": 1')
    with pytest.raises(UserError, match=r"run.json: expected the marker of a run, got a damaged file"):
        read_marker(folder)


def damage(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))


def test_checksum_is_the_last_field_and_independent_of_the_layout(finished_runs):
    for line in (finished_runs("toy") / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        assert list(row)[-1] == CHECKSUM
        assert is_intact(json.loads(json.dumps(row, indent=3, sort_keys=True)))
        del row[CHECKSUM]  # as the last release wrote it
        assert is_intact(row)
    content = {2: (1, 2.5), 10: {"é": None}, "x": [float("inf"), 1e300, True]}
    assert is_intact(json.loads(json.dumps(sealed(content))))
    assert sealed(sealed(content)) == sealed(content)
