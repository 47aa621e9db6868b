"""Damaged and hostile inputs of every reader: a value, or an error of ours in one line; no other exception and no hang.

The cases are changes of valid inputs, the same in every session: 25 per reader, 2,000 in `make test-all`.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import io
import json
import signal
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import httpx
import pytest
import torch
import yaml

import gflownet
from gflownet.config import load_config
from gflownet.errors import UserError
from gflownet.evaluation.store.evaluations import EvaluationStore, Identity
from gflownet.evaluation.store.overview import StoreOverview
from gflownet.evaluation.store.rows import checksum_of
from gflownet.files import read_yaml
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.listed_graphs import read_listed_graphs
from gflownet.rhn.server.requests import CompletionRequest
from gflownet.rhn.server.service import Service
from gflownet.run import checkpoint
from gflownet.run.extensions import validate
from tests.evaluation.candidates import StubCandidate, record
from tests.known_networks.references import FOLDER as NETWORKS
from tests.rhn.server.in_process import PATH, check_answer, talk
from tests.translation.graphs import chain, mixed, recurrent

NUM_CASES = pytest.mark.parametrize("num", [25, pytest.param(2_000, marks=pytest.mark.slow)])
Case = TypeVar("Case")
CASE_S = 20.0  # no case takes a second
EXTREMES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 3, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**400),
    *(0.5, -0.0, 5e-324, 1e308, float("inf"), float("-inf"), float("nan")),
    *(
        "",
        "a",
        "relu",
        "ok",
        "running",
        "a" * 3000,
        "\x00",
        "\ud83d",
        "\ufeff",
        "é🙂",
        "\x1b[31m",
        "1e5",
        "../..",
        "os:system",
    ),
    *("${oc.env:HOME}", "${a", "[[[", "{", "__class__", "2026-11-24"),
    *([], [[]], [None], [1, 2], {}, {"a": 1}, {"": {"": []}}, [[[[[[]]]]]]),
)
KINDS = (bool, (int, float), str, list, dict)
WORDS = (
    b"",
    b"\n",
    b"\t",
    *rb'[ ] { } : , " & * \ud83d ${ ... 1e999 -1 null # | % << <<: &a *a - !!python/object:os.system'.split(),
    b"\0\xff\xe2\x80\xa8",
)


def damaged(rng: Random, originals: Sequence[bytes]) -> bytes:
    """Return bytes with some of them changed, cut out, repeated or inserted."""
    data = rng.choice(originals)
    for _ in range(rng.randint(1, 4)):
        first, length = rng.randint(0, len(data)), rng.choice((0, 1, 1, 8, 100, 10**6))
        word = rng.choice((rng.choice(WORDS), rng.randbytes(rng.randint(0, 4))))
        middle = rng.choice((b"", data[first : first + length] * 2))
        data = data[:first] + middle + word + data[first + length :]
    return data


def changed(rng: Random, originals: Sequence[Any], names: Sequence[str] = ()) -> Any:
    """Return a tree of JSON with some of its values replaced, removed or added, also under further names."""
    tree = copy.deepcopy(rng.choice(originals if rng.random() < 0.95 else EXTREMES))
    for _ in range(rng.randint(1, 3)):
        places = list(_places(tree))
        if not places:
            return copy.deepcopy(rng.choice(EXTREMES))
        container, key = rng.choice(places)
        match rng.choice(("replace", "replace", "remove", "add")):
            case "replace":
                container[key] = _value_like(rng, container[key])
            case "remove":
                del container[key]
            case _ if isinstance(container, dict):
                name = rng.choice(("", "a", "id", "\ud83d", "a" * 300, *names))
                container[name] = copy.deepcopy(rng.choice(EXTREMES))
            case _:
                container.append(copy.deepcopy(container[key]))
    return tree


def _value_like(rng: Random, value: Any) -> Any:
    """Return in half of the cases a value of the same kind, which passes the first checks, else any other."""
    kind = next((kind for kind in KINDS if isinstance(value, kind)), object)
    similar = [each for each in EXTREMES if isinstance(each, kind)]
    return copy.deepcopy(rng.choice(rng.choice((similar, EXTREMES))))


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ():
        yield tree, key
        yield from _places(tree[key])


@contextmanager
def limited() -> Iterator[None]:
    """Raise TimeoutError in a block that hangs."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"a case takes {CASE_S:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, CASE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def fuzz(
    make: Callable[[Random], Case], check: Callable[[Case], object], num: int, *, known: Sequence[Case] = ()
) -> None:
    """Check cases that once failed, and some others."""
    for number, case in enumerate((*known, *(make(Random(seed)) for seed in range(num)))):
        try:
            check(case)
        except BaseException as error:
            error.add_note(f"case {number}: {case!r:.2000}")
            raise


def read(reader: Callable[[], object], error: type[ValueError] = UserError) -> bool:
    """Return whether a reader accepts its input; any error but one of ours in one line is raised."""
    refusal: Exception | None = None
    try:
        with limited():
            reader()
    except error as caught:
        refusal = caught
    assert refusal is None or len(str(refusal).splitlines()) == 1, repr(refusal)
    return refusal is None


@NUM_CASES
def test_config(num: int, checkout: Path, tmp_path: Path) -> None:
    files = tuple(path.read_bytes() for path in sorted((checkout / "configs").glob("*.yaml")))
    trees = tuple(map(yaml.safe_load, files))
    path = tmp_path / "config.yaml"
    kinds = set()

    def check(case: tuple[bytes, Callable[[Path], object]]) -> None:
        text, reader = case
        path.write_bytes(text)
        kinds.add(read(lambda: reader(path), ValueError))

    known = (
        '"1e5"',
        f"opt: {{lr_decay: {10**400}}}",
        "seed: 0x" + "f" * 5_000,
        "cond: {temperature: {dist_params: ['${oc.env:HOME}']}}",
    )
    fuzz(lambda rng: (damaged(rng, files), read_yaml), check, num)
    fuzz(
        lambda rng: (json.dumps(changed(rng, trees)).encode(), validated),
        check,
        num // 2,
        known=[(text.encode(), validated) for text in known],
    )
    assert kinds == {True, False}


def validated(path: Path) -> None:
    """Read a config and check its values, as the command does before a run."""
    validate(load_config(str(path)))


@NUM_CASES
def test_graph(num: int, tmp_path: Path) -> None:
    names = ("transformer_encoder_layer", "resnet18")
    graphs = (
        chain(4, 5, 3),
        recurrent(),
        mixed(),
        *(json.loads((NETWORKS / f"{name}.json").read_text()) for name in names),
    )
    path, top = tmp_path / "graphs.jsonl", tmp_path / "top_architectures.json"
    kinds = set()

    def check(text: bytes) -> None:
        line = text.replace(b"\n", b" ")
        path.write_bytes(b'{"graph": ' + line + b"}")
        top.write_bytes(b'[{"rank": 0, "graph": ' + line + b"}]")
        kinds.add(read(lambda: used(ComputationGraph.from_json(text.decode(errors="replace"))), ValueError))
        read(lambda: read_listed_graphs(str(path), key="graphs"))
        read(lambda: used(gflownet.load_graph(top)), ValueError)

    texts = [json.dumps(graph).encode() for graph in graphs]

    def make(rng: Random) -> bytes:
        return damaged(rng, texts) if rng.random() < 1 / 3 else json.dumps(changed(rng, graphs)).encode()

    fuzz(make, check, num)
    assert kinds == {True, False}


def used(graph: ComputationGraph) -> None:
    """Validate a graph, and identify and write it if it is valid."""
    graph.validate()
    graph.canonical_key()
    graph.to_json()


@NUM_CASES
def test_rows_of_a_store(num: int, tmp_path: Path) -> None:
    """Rows with changed values, with matching checksums or without, are listed and found."""
    location = tmp_path / "evaluations.sqlite"
    with EvaluationStore(location, context="context") as store:
        store.add([record(str(i), metrics={"accuracy": 0.5}, curve=(0.1, 0.5)) for i in range(3)])
    with closing(sqlite3.connect(location)) as connection:
        connection.row_factory = sqlite3.Row
        rows = tuple(map(dict, connection.execute("SELECT * FROM evaluations")))
    kinds = set()

    def check(case: tuple[Any, bool]) -> None:
        row, is_signed = case
        names = list(rows[0])
        values = [row.get(name) if isinstance(row, dict) else None for name in names]
        if is_signed:
            values[names.index("checksum")] = signed(dict(zip(names, values, strict=True)))
        with closing(sqlite3.connect(location)) as connection, connection:
            connection.execute("DELETE FROM evaluations")
            try:
                connection.execute(f"INSERT INTO evaluations VALUES ({','.join('?' * len(names))})", values)
            except (sqlite3.Error, OverflowError, ValueError):  # refused by the database
                return
        kinds.add(read(lambda: list_rows(location)))

    fuzz(lambda rng: (changed(rng, rows), rng.random() < 0.5), check, num, known=[(rows[0], True)])
    assert True in kinds


def signed(row: Any) -> Any:
    """Return the checksum of the values of a row, where it can be computed."""
    try:
        return checksum_of(row)
    except (TypeError, KeyError, AttributeError, ValueError):
        return row["checksum"]


def list_rows(location: Path) -> None:
    """Read a store as commands and runs do."""
    with closing(StoreOverview(str(location))) as overview:
        num_rows = len(list(overview.results())) + len(overview.matching("a")) + len(overview.runs())
        assert len(overview.best(3)) <= num_rows
    with EvaluationStore(location, context="context") as store:
        store.find_many([Identity.of(StubCandidate(str(i))) for i in range(3)])
        assert len(store.top(3)) <= sum(store.num_by_context().values())


@NUM_CASES
def test_checkpoint(num: int, tmp_path: Path) -> None:
    """Bytes of a file, and of one whose digest is that of its damaged payload."""
    state = {
        "model": {"weight": torch.arange(6.0).reshape(2, 3)},
        "step": 3,
        "names": ["a", None],
        "rng": torch.get_rng_state()[:8],
    }
    path = tmp_path / "step_00000003.pt"
    run = "0" * 32
    checkpoint.save(path, state, run=run)
    whole = path.read_bytes()
    payload = whole.partition(b"\n")[2]
    kinds = set()

    def check(case: tuple[bytes, bool]) -> None:
        data, is_payload = case
        if is_payload:
            digest = hashlib.sha256(run.encode() + data).hexdigest()
            data = (
                f"gflownet checkpoint, format {checkpoint.FORMAT_VERSION}, run {run}, sha256 {digest}\n".encode() + data
            )
        path.write_bytes(data)
        kinds.add(read(lambda: checkpoint.load(path)))

    pickled = io.BytesIO()
    torch.save(state, pickled, _use_new_zipfile_serialization=False)
    payloads = (payload, payload, pickled.getvalue())

    def make(rng: Random) -> tuple[bytes, bool]:
        return (damaged(rng, payloads), True) if rng.random() < 0.5 else (damaged(rng, (whole,)), False)

    fuzz(make, check, num, known=[(b"", True), (payload, True)])
    assert kinds == {True, False}


@NUM_CASES
def test_http_body(num: int) -> None:
    """Each gets an answer or a 4xx in OpenAI's form from one server, which goes on."""
    whole = {
        "model": "m",
        "prompt": "a",
        "max_tokens": 2,
        "n": 1,
        "stop": ["a"],
        "logit_bias": {"1": 1.0},
        "seed": 1,
        "temperature": 0,
    }
    whole |= {"stream": False, "logprobs": 1, "top_p": 0.5, "echo": False, "best_of": 1, "suffix": None, "user": "a"}
    statuses = set()

    async def conversation(client: httpx.AsyncClient, service: Service) -> None:
        loop = asyncio.get_running_loop()

        def check(body: bytes) -> None:
            response = asyncio.run_coroutine_threadsafe(client.post(PATH, content=body), loop).result(CASE_S)
            check_answer(response, body)
            statuses.add(response.status_code)

        small = {"model": "m", "prompt": "a", "max_tokens": 2, "logit_bias": {"1": 1.0}, "temperature": 0}
        names = (*CompletionRequest.model_fields, "beam_width", "\x00")

        def make(rng: Random) -> bytes:
            if rng.random() < 1 / 4:
                return damaged(rng, (json.dumps(whole).encode(),))
            return json.dumps(changed(rng, (whole, small), names)).encode()

        await asyncio.to_thread(fuzz, make, check, num)
        assert (await client.post(PATH, json={"model": "m", "prompt": "a", "max_tokens": 1})).status_code == 200

    assert not talk(conversation).failed
    assert {200, 400} <= statuses
