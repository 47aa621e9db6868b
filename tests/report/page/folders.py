"""Run folders without a run: marker, config, status, metrics, evaluations; and pages read back."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from scipy.special import stdtrit

from gflownet.config import load_config, to_mapping, to_yaml
from gflownet.evaluation.store.evaluations import EvaluationStore
from gflownet.evaluation.store.rows import EvaluationRecord, EvaluationStatus
from gflownet.graphs.assignment import Assignment
from gflownet.records.marker import RunMarker, write_marker
from gflownet.report.page import page_of, read_run
from gflownet.report.results import Finalist, FinalResults, Results, Side
from gflownet.report.verdict import comparisons_of
from tests.evaluation.candidates import classifier_graph

RUN = "0123456789abcdef" * 2
WRITTEN = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
STARTED = "2026-11-23T11:00:00+00:00"
# Elements without an end tag.
_VOID = frozenset({"meta", "link", "br", "path", "circle", "rect", "input", "hr", "img"})


class Page(HTMLParser):
    """The elements of a page: attributes, texts by section, and the nesting of tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.ids, self.links, self.tags = text, list[str](), list[str](), list[str]()
        self.sections: dict[str, str] = {}
        self.addresses = list[str]()  # of everything that a browser loads
        self._open, self._section = list[str](), "header"
        self.feed(text.replace("<wbr>", ""))
        self.close()
        assert not self._open, f"elements without an end: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        if "id" in attributes:
            self.ids.append(attributes["id"])
        if tag == "section":
            self._section = attributes["id"]
        if tag == "a":
            self.links.append(attributes["href"])
        self.addresses += [attributes[name] for name in ("src", "srcset", "data", "poster") if name in attributes]
        if tag == "link":
            self.addresses.append(attributes["href"])
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in _VOID:
            return
        assert self._open[-1:] == [tag], f"expected the end of {self._open[-1:]}, got </{tag}>"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open[-1:] not in (["style"], ["script"]):
            words = " ".join(data.split())
            self.sections[self._section] = f"{self.sections.get(self._section, '')} {words}".strip()


def page(folder: Path, **options: Any) -> Page:
    """Return the page of a run folder, read back; every id is unique and every link leads to one."""
    read = Page(page_of(read_run(folder), written=options.get("written", WRITTEN)))
    assert "could not be written" not in read.text
    assert len(set(read.ids)) == len(read.ids)
    assert all(link.startswith("#") and link[1:] in read.ids for link in read.links)
    assert all(address.startswith("data:") for address in read.addresses)
    return read


def assignment_of(**values: Any) -> dict[str, Any]:
    return Assignment.of(values).to_dict()


def record(number: int, score: float | None, graph: Mapping[str, Any], **fields: Any) -> EvaluationRecord:
    """Return an evaluation; without a score a failed one."""
    values: dict[str, Any] = {
        "hash": f"h{number}",
        "key": str(number),
        "graph": json.dumps(graph),
        "score": 0.0 if score is None else score,
        "status": EvaluationStatus.FAILED if score is None else EvaluationStatus.OK,
        "seconds": 1.5,
        "step": number + 1,
        "run": RUN,
        "created": "2026-11-23T11:20:00.000+00:00",
    }
    return EvaluationRecord(**{**values, **fields})


def metric_rows(num: int) -> list[dict[str, Any]]:
    return [
        {
            **{"step": step, "loss": 100.0 / step, "log_Z": -5.0 + step / num, "log_reward_mean": -20.0 / step},
            **{"score_mean": 0.5 + step / num / 4, "score_best": 0.7 + step / num / 5, "num_distinct": 4 * step},
            **{"cached_share": step / num, "failed_share": 0.1, "busy_share": 0.4, "seconds": 2.0 * step, "run": RUN},
        }
        for step in range(1, num + 1)
    ]


def status_of(state: str, *, message: str = "", is_alive: bool = False, phase: str = "training") -> dict[str, Any]:
    process = psutil.Process()
    session = {
        "command": ["/somewhere/gflownet/train.py", "--config", "choices", "seed=3"],
        "started": STARTED,
        "host": platform.node(),
        "pid": os.getpid() if is_alive else 2**22 + 1,
        "process_created": process.create_time(),
        "versions": {"gflownet": "0.1.0", "python": "3.11.7", "torch": "2.13.0"},
        "phase": phase,
        "seconds": {"start-up": 2.0, "training": 90.0, "final stage": 8.0},
    }
    return {"format": 1, "state": state, "message": message, "sessions": [session], "plan": {}}


@cache
def _config(name: str, options: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    config = load_config(name, list(options))
    return to_yaml(config), to_mapping(config)


def write_run(
    folder: Path,
    records: Sequence[EvaluationRecord] = (),
    *,
    rows: Sequence[Mapping[str, Any]] = (),
    status: Mapping[str, Any] | None = None,
    config: str = "choices",
    options: Sequence[str] = (),
    files: Mapping[str, Any] | None = None,
) -> Path:
    """Write a run folder and return it; `files` are further JSON files by name."""
    folder.mkdir(parents=True, exist_ok=True)
    text, tree = _config(config, tuple(options))
    (folder / "config.yaml").write_text(text)
    write_marker(folder, RunMarker(RUN, tree))
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    if status is not None:
        (folder / "status.json").write_text(json.dumps(status))
    for name, content in (files or {}).items():
        (folder / name).write_text(json.dumps(content))
    with EvaluationStore(folder / "evaluations.sqlite", context="test") as store:
        store.add(records)
    return folder


def side(name: str, mean: float, half: float, num: int = 5, **fields: Any) -> Side:
    """Return a mean of several scores, half of whose 95 % interval of Student's t is `half`."""
    places = np.arange(num) - (num - 1) / 2
    spread = half * math.sqrt(num) / (float(stdtrit(num - 1, 0.975)) * places.std(ddof=1)) if num > 1 else 0.0
    return Side(name, mean, mean - half, mean + half, half, scores=tuple((mean + spread * places).tolist()), **fields)


def results_of(
    top: Sequence[Mapping[str, Any]],
    references: Sequence[Side] = (),
    *,
    random: tuple[Finalist, ...] = (),
    **fields: Any,
) -> dict[str, Any]:
    """Return results.json of entries of top_architectures.json, of references, and of random finalists."""
    finalists = []
    for entry in top:
        rank, final, own = entry["rank"], entry.get("final"), None
        if final is not None:
            low, high = final["interval"]
            test, size = (entry.get("test_score"),), entry.get("num_parameters")
            half, num = (high - low) / 2, len(final["scores"])
            own = side(f"rank {rank}", final["mean"], half, num, tests=test, num_parameters=size)
        load = f'import gflownet; model = gflownet.load("none/top_architectures.json", rank={rank}, weights=False)'
        named = {key: entry[key] for key in ("num_parameters", "metrics", "test_score", "words") if key in entry}
        finalists.append(Finalist(rank, entry["validation_score"], final=own, load=load, **named))
    comparisons = comparisons_of(finalists[0].final, [(each, None) for each in references])
    cost = "parameters" if random else ""
    final = FinalResults(tuple(finalists), random, comparisons, cost=cost, has_trainings=True)
    return json.loads(Results(final=final, **fields).to_json(Path("none")))


def front_run(folder: Path) -> Path:
    """Write a finished run with two objectives: a front of two, one with new seeds."""

    def measured(place: int, accuracy: float, size: float, **fields: Any) -> Any:
        graph = classifier_graph((4 + place, "relu")).to_dict()
        return record(place, accuracy, graph, metrics={"accuracy": accuracy, "parameters": size}, **fields)

    search = [measured(i, i / 10, 100.0 * i) for i in range(10)]
    new_seeds = [measured(9, accuracy, 900.0, seed=seed) for seed, accuracy in ((1, 0.78), (2, 0.82))]
    front = [
        {"rank": rank, "metrics": dict(search[i].metrics), "graph": json.loads(search[i].graph), "num_parameters": 100}
        for rank, i in enumerate((9, 5))
    ]
    options = ["evaluation.objectives=[accuracy,parameters]"]
    plan = {"directions": {"accuracy": "max", "parameters": "min"}, "score": "accuracy"}
    final = {"mean": 0.8, "interval": [0.7, 0.9], "scores": [0.78, 0.82]}
    top = {**front[0], "validation_score": 0.9, "test_score": None, "final": final}
    random_mean = side("best of 3 random architectures", 0.5, 0.1)
    random = Finalist(0, 0.6, 700, {"parameters": 700.0, "accuracy": 0.6}, final=random_mean)
    return write_run(
        folder,
        [*search, *new_seeds],
        config="digits",
        options=options,
        files={
            "pareto_front.json": front,
            "top_architectures.json": [top],
            "results.json": results_of([top], [random_mean], random=(random,), score="accuracy"),
        },
        status=status_of("completed") | {"plan": plan},
    )
