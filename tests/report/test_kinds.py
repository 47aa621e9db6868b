"""Closing lines at 80 columns and the first screen of eight kinds of runs, from their stored results: golden texts."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path
from textwrap import fill
from typing import Any

import pytest
from rich.console import Console

from gflownet.report.closing import print_results
from gflownet.report.results import read_results
from tests.report.page.folders import Page, page, status_of, write_run

KINDS = Path(__file__).with_name("kinds")  # NAME.json: results.json of a small run; NAME.txt: what is shown
# Config and options, and the plan of its status.
RUNS: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "mnist1d": ("mnist1d", (), {"method": "surrogate", "num_search": 67, "num_verified": 8, "num_final": 25}),
    "latency": ("digits", ("evaluation.objectives=[accuracy,latency]",), {"method": "surrogate"}),
    "table": ("table", (), {"method": "surrogate"}),
    "masks": ("images", ("evaluation.objectives=[]",), {"method": "surrogate"}),
    "text": ("text_blocks", (), {"method": "surrogate"}),
    "own_code": ("choices", (), {"method": "surrogate"}),
    "own_environment": (  # the trees of docs/extending.md, with noise in the score
        "coloured_graphs",
        ("task=trees:ColourfulTrees", "env.name=trees:TreeContext", "search.method=surrogate", "budget.evaluations=40"),
        {
            "about": "Rewards edges between different colours.",
            "method": "surrogate",
            "num_search": 26,
            "num_verified": 4,
        },
    ),
    "exact": ("exact", (), {}),
}


@pytest.mark.parametrize("kind", RUNS)
def test_closing_lines_and_first_screen_are_golden(tmp_path: Path, kind: str) -> None:
    """GFLOWNET_GOLDEN=1 writes the texts, whose difference is then read."""
    config, options, plan = RUNS[kind]
    files = {"results.json": json.loads((KINDS / f"{kind}.json").read_text(encoding="utf-8"))}
    status = status_of("completed") | {"plan": plan}
    folder = write_run(tmp_path, status=status, config=config, options=options, files=files)
    output = io.StringIO()
    print_results(read_results(folder), folder, Console(file=output, width=80))
    lines = [line.rstrip() for line in output.getvalue().replace(str(tmp_path), "RUN").splitlines()]
    words = re.sub(r"<figure.*?</figure>", "", page(folder).text, flags=re.DOTALL)  # charts have golden texts elsewhere
    header = Page(words).sections["header"].replace(str(tmp_path), "RUN")
    text = "\n".join([*lines, "", fill(header, 80, break_long_words=False, break_on_hyphens=False), ""])
    golden = KINDS / f"{kind}.txt"
    if os.environ.get("GFLOWNET_GOLDEN"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")
