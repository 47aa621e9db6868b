"""Tables of tabular benchmarks: the real ones where they lie beside the checkout, and a made-up one for everywhere."""

import csv
import gzip
import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest

_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def real_table(name: str) -> Path:
    """Return the path of a table; the test is skipped where it is absent."""
    path = _DATA / name
    if not path.is_file():
        pytest.skip(f"needs {name} in shared/data beside the checkout")
    return path


def real_rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a real table."""
    with gzip.open(real_table(name), "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def nb201_lines() -> list[str]:
    """Return a table with the codes of NAS-Bench-201, made-up accuracies of 10 % and more, and costs.

    The energy of every hundredth cell is missing.
    """
    lines = ["code,c10_val12,c10_test200,params_c10,flops_c10,c10_edgegpu_latency,c10_edgegpu_energy"]
    for index, digits in enumerate(product("01234", repeat=6)):
        total = sum(map(int, digits))
        accuracy, energy = 10 + 3 * total, "" if index % 100 == 99 else f"{30 + total}"
        costs = f"{1000 + 100 * total},{10_000 * (1 + total)},{2 + total / 4},{energy}"
        lines.append(f"{''.join(digits)},{accuracy},{accuracy + 5},{costs}")
    return lines


def write_nb201(path: Path) -> Path:
    """Write the table of `nb201_lines`; return its path."""
    path.write_text("\n".join(nb201_lines()) + "\n", encoding="utf-8")
    return path


def recipes(num_epochs: int = 9) -> list[dict[str, Any]]:
    """Return made-up recurrent cells with losses per epoch as lines of NAS-Bench-NLP: 24 different graphs.

    Losses fall by a tenth per epoch, from 4 + .1 * position on; those of the test are .5 lower.
    """
    lines = []
    for position, (first, second, third) in enumerate(product(("tanh", "sigm", "leaky_relu"), repeat=3)):
        recipe = {
            "f": {"op": "linear", "input": ["x", "h_prev_0"]},
            "g": {"op": f"activation_{first}", "input": ["f"]},
            "p": {"op": "elementwise_prod", "input": ["g", "h_prev_0"]},
            "s": {"op": f"activation_{second}", "input": ["p"]},
            "h_new_0": {"op": f"activation_{third}", "input": ["s"]},
        }
        losses = [4 + 0.1 * position - 0.1 * epoch for epoch in range(num_epochs)]
        results = {"val_loss": losses, "test_loss": [loss - 0.5 for loss in losses], "epoch_seconds": 10.0 + position}
        lines.append({"status": "OK", "num_params": 1000 + position, "recipe": recipe, **results})
    return lines[:24]


def write_lines(path: Path, lines: Sequence[Any]) -> Path:
    """Write JSON lines, or texts as they are; return the path."""
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def table_options(config: str, folder: Path) -> list[str]:
    """Return the options of a shipped config that name a table, which is written; none for most configs."""
    if config.startswith("cells"):
        return [f"task_options.table={write_nb201(folder / 'table.csv')}"]
    if config == "catalogue":
        return [f"env.catalogue.graphs={write_lines(folder / 'list.jsonl', recipes())}"]
    return []
