"""Kill workers, database and main process of a search while it goes on, and count what is lost, doubled or wrong.

    python scripts/soak_run.py [--minutes N] [--quick] [--json FILE]

A search with `python -m gflownet.train resume=auto` runs for half of 30 minutes on the pool and for the other half on
two Ray nodes, with its evaluations in PostgreSQL. Every 10 s one of them is killed by SIGKILL, in turn: an evaluating
worker, the main process, the database, and a Ray node; then it is started again. At the end the search ends in peace.
Lost: an evaluation that was started or stored and has no stored score at the end. Doubled: an evaluation that was
started again although its result was stored, or without a kill in between, where a kill lasts until its victim runs
again. Wrong: a stored score that is not the one computed from the graph's key. Growth compares the last third of the
samples with the middle third, each by its ninth decile: where all processes run, not where one starts again.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psutil

from gflownet.evaluation.task import GFNTask, Score
from scripts.bench import Row, at_most, figure, finish, parse_arguments, skip
from tests.postgres_server import PostgresServer, missing_server, new_database, running_server

CHECKOUT = Path(__file__).resolve().parent.parent
LOG_VARIABLE = "GFLOWNET_SOAK_LOG"
EVALUATION_S = 0.1
SAMPLE_EVERY_S = 2.0
START_S, END_S = 120.0, 5.0  # until a search evaluates; until the processes of a killed one have ended
STORED_S = 1.0  # from a result to its row
LONG_MINUTES = 5.0  # growth is smaller than its noise in shorter runs
MAX_GROWTH = 0.05
STORE_BYTES = 80_000_000  # of shared memory per Ray node
DATABASE_ENDED, STOPPED = 2, 128 + signal.SIGTERM  # exit statuses
OPTIONS = (
    *("task=scripts.soak_run:ScoresTheKey", "search.method=gflownet", "resume=auto", "wandb.mode=disabled"),
    *("report.every=null", "final.top=0", "checkpoint_every=5", "evaluation.capacity=2", "algo.num_from_policy=8"),
    *("replay.num_from_replay=4", "replay.capacity=100", "replay.warmup=8", "model.num_emb=16", "model.num_layers=1"),
    *("env.max_hidden_nodes=8", "env.max_edges=16"),
)


def name_of(key: str) -> str:
    """Return a short name of a graph's key."""
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def score_of(name: str) -> float:
    """Return the score of a graph by its name."""
    return int(name[:8], 16) / 2**32


class ScoresTheKey(GFNTask):
    """Note every evaluation with its process, wait, and score the graph's key."""

    input_sizes = (4,)
    output_sizes = (2,)

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.log = os.environ[LOG_VARIABLE]

    def evaluate(self, graph: Any, *, seed: int) -> Score:
        """Return the score of the graph's key."""
        name = name_of(graph.canonical_key())
        with open(self.log, "a", encoding="utf-8") as log:
            log.write(f"{time.time():.3f} {name} {os.getpid()}\n")
        time.sleep(EVALUATION_S)
        return Score(score_of(name))


@dataclass(frozen=True)
class Sample:
    """Resources of all processes of the soak except its own."""

    memory: float  # bytes that are not shared
    files: int
    processes: int

    @classmethod
    def take(cls) -> Sample:
        """Measure all processes below this one."""
        memory = files = processes = 0
        for process in psutil.Process().children(recursive=True):
            try:
                size = process.memory_info()
                memory, files, processes = memory + size.rss - size.shared, files + process.num_fds(), processes + 1
            except psutil.Error:  # it has ended
                continue
        return cls(memory, files, processes)


@dataclass(frozen=True)
class Kill:
    """A kill, from the signal until what it ended runs again."""

    victim: str
    start: float
    end: float


@dataclass
class Soak:
    """A search under kills, and what has been seen of it."""

    folder: Path
    options: Sequence[str]  # of the executor
    server: PostgresServer
    url: str
    nodes: Nodes | None = None
    main: subprocess.Popen[bytes] | None = None
    kills: list[Kill] = field(default_factory=list)
    stored: dict[str, float] = field(default_factory=dict)  # score of every evaluation seen in the store
    changed: int = 0  # evaluations of the store that were absent or different later
    left: int = 0  # processes that outlived their main process
    ends: list[str] = field(default_factory=list)  # unexpected ends of the search
    samples: list[Sample] = field(default_factory=list)

    @property
    def log(self) -> Path:
        """File of the task's notes."""
        return self.folder / "evaluations"

    def start(self, num_steps: int = 10**6) -> None:
        """Start or resume the search."""
        overrides = (*OPTIONS, *self.options, f"evaluation.store_url={self.url}", f"num_training_steps={num_steps}")
        with (self.folder / "output").open("ab") as output:
            self.main = subprocess.Popen(
                [sys.executable, "-m", "gflownet.train", *overrides, f"log_dir={self.folder / 'run'}"],
                cwd=CHECKOUT,
                stdout=output,
                stderr=output,
            )

    def run(self, *, seconds: float, kill_every: float) -> None:
        """Kill in turn for some seconds, then let the search finish."""
        turns = {"worker": self.kill_worker, "main process": self.kill_main, "database": self.kill_database}
        turns |= {"node": self.nodes.replace} if self.nodes else {}
        self.start()
        self._wait_for_evaluations()
        end, next_sample, next_kill = time.monotonic() + seconds, 0.0, time.monotonic() + kill_every
        while time.monotonic() < end:
            if time.monotonic() > next_sample:
                self.samples.append(Sample.take())
                next_sample = time.monotonic() + SAMPLE_EVERY_S
            if time.monotonic() > next_kill:
                victim = list(turns)[len(self.kills) % len(turns)]
                self.see()
                start = time.time()
                turns[victim]()
                self.kills.append(Kill(victim, start, time.time()))
                self._wait_for_evaluations()
                next_kill = time.monotonic() + kill_every
            self._restart_ended(())
            time.sleep(0.05)
        self._finish()

    def kill_worker(self) -> None:
        """Kill the process of the last evaluation."""
        pid = int(self._lines()[-1].split()[2])
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)

    def kill_main(self) -> None:
        """Kill the main process, count which of its processes stay, and resume the search."""
        assert self.main is not None
        children = psutil.Process(self.main.pid).children(recursive=True)
        self.main.kill()
        self.main.wait()
        self.left += len(psutil.wait_procs(children, timeout=END_S)[1])
        self.start()

    def kill_database(self) -> None:
        """Kill the database, start it again, and resume the search, which ends in one line."""
        assert self.main is not None
        self.server.kill()
        self.main.wait(START_S)
        self.server.start()
        self._restart_ended((DATABASE_ENDED,))

    def see(self) -> None:
        """Read the store: every score that it had must still be there."""
        rows = {name: score for name, score, _ in self.rows()}
        self.changed += sum(rows.get(name) != score for name, score in self.stored.items())
        self.stored |= rows

    def rows(self) -> list[tuple[str, float, float]]:
        """Return name, score and time of every scored graph."""
        import psycopg

        query = "SELECT key, score, created FROM evaluations WHERE status = 'ok' AND fidelity = 0 AND seed = 0"
        with psycopg.connect(self.url) as connection:
            records = connection.execute(query).fetchall()
        return [(name_of(key), score, datetime.fromisoformat(created).timestamp()) for key, score, created in records]

    def _lines(self) -> list[str]:
        return self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []

    def _wait_for_evaluations(self) -> None:
        """Wait until evaluations go on."""
        before, end = len(self._lines()), time.monotonic() + START_S
        while len(self._lines()) < before + 4:
            if time.monotonic() > end:
                raise TimeoutError(f"no evaluation for {START_S:g} s:\n{self._output()[-2_000:]}")
            self._restart_ended(())
            time.sleep(0.05)

    def _restart_ended(self, expected: Sequence[int]) -> None:
        assert self.main is not None
        status = self.main.poll()
        if status is None:
            return
        if status not in expected:
            after = self.kills[-1].victim if self.kills else "the start"
            self.ends.append(f"status {status} after {after}: {self._output().strip().rpartition(chr(10))[2]}")
        self.start()

    def _finish(self) -> None:
        """Stop the search by SIGTERM, then let it end after some more steps."""
        assert self.main is not None
        start = time.time()
        self.main.terminate()
        if self.main.wait(START_S) != STOPPED:
            self.ends.append(f"status {self.main.returncode} after SIGTERM")
        self.kills.append(Kill("stop", start, time.time()))
        steps = sum(1 for _ in (self.folder / "run" / "metrics.jsonl").open("rb"))
        self.start(num_steps=steps + 3)
        if self.main.wait(START_S):
            self.ends.append(f"status {self.main.returncode} of the last part")
        self.see()

    def _output(self) -> str:
        return (self.folder / "output").read_text(encoding="utf-8", errors="replace")

    def report(self, name: str, *, is_long: bool) -> list[Row]:
        """Return the rows of the search."""
        for end in self.ends:
            print(f"{name}: unexpected end of the search: {end}", flush=True)
        starts: dict[str, list[float]] = defaultdict(list)
        for line in self._lines():
            at, graph, _ = line.split()
            starts[graph].append(float(at))
        rows = {graph: (score, at) for graph, score, at in self.rows()}
        again = {graph: times for graph, times in starts.items() if len(times) > 1}
        doubled = sum(num_unexplained(again[graph], self.kills, rows[graph][1]) for graph in again.keys() & rows)
        victims = Counter(kill.victim for kill in self.kills if kill.victim != "stop")
        wrong = sum(score != score_of(graph) for graph, (score, _) in rows.items())
        limit = MAX_GROWTH if is_long else None
        return [
            figure(f"{name}: evaluations", len(rows)),
            *(figure(f"{name}: kills, {victim}", number) for victim, number in victims.items()),
            at_most(f"{name}: lost evaluations", len(starts.keys() - rows.keys()) + self.changed, "", 0),
            at_most(f"{name}: wrong scores", wrong, "", 0),
            at_most(f"{name}: doubled evaluations", doubled, "", 0),
            figure(f"{name}: repeated after a kill", sum(len(times) - 1 for times in again.values()) - doubled),
            at_most(f"{name}: unexpected ends of the search", len(self.ends), "", 0),
            at_most(f"{name}: tracebacks printed", self._output().count("Traceback (most recent call last)"), "", 0),
            at_most(f"{name}: processes left {END_S:g} s after their main process", self.left, "", 0),
            *(at_most(f"{name}: growth of {what}", growth(self.samples, of), "", limit) for what, of in _RESOURCES),
            figure(f"{name}: memory of all processes", median(each.memory for each in self.samples) / 2**20, "MiB"),
        ]


_RESOURCES: Sequence[tuple[str, Callable[[Sample], float]]] = (
    ("memory", lambda sample: sample.memory),
    ("descriptors", lambda sample: sample.files),
    ("processes", lambda sample: sample.processes),
)


def num_unexplained(times: Sequence[float], kills: Sequence[Kill], stored: float) -> int:
    """Return the number of evaluations of a graph after its result was stored, or without a kill since the last one."""
    pairs = itertools.pairwise(sorted(times))
    return sum(
        now > stored + STORED_S or not any(last < kill.end and kill.start < now for kill in kills)
        for last, now in pairs
    )


def growth(samples: Sequence[Sample], of: Callable[[Sample], float]) -> float:
    """Return the ninth decile of the last third of the samples over that of the middle third, minus 1."""
    third = max(1, len(samples) // 3)
    last, middle = samples[-third:], samples[-2 * third : -third] or samples
    return _ninth_decile(map(of, last)) / _ninth_decile(map(of, middle)) - 1


def _ninth_decile(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[9 * (len(ordered) - 1) // 10]


class Nodes:
    """Two Ray nodes with one CPU each on this machine, of which the second can be replaced."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        size = {"num_cpus": 1, "object_store_memory": STORE_BYTES}
        self._cluster = Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
        self.address = self._cluster.address
        self._second = self._add()

    def replace(self) -> None:
        """Kill the second node and add another one."""
        self._cluster.remove_node(self._second, allow_graceful=False)
        self._second = self._add()

    def _add(self) -> Any:
        return self._cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)

    def close(self) -> None:
        """End both nodes."""
        self._cluster.shutdown()


def soak(executor: str, *, minutes: float, kill_every: float) -> list[Row]:
    """Return the rows of a search on an executor."""
    with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as name, running_server() as server:
        os.environ[LOG_VARIABLE] = str(Path(name) / "evaluations")
        soaked = Soak(Path(name), (f"evaluation.executor={executor}",), server, new_database(server.folder))
        try:
            with closing(Nodes()) if executor == "ray" else nullcontext() as nodes:
                if nodes is not None:
                    soaked.nodes = nodes
                    soaked.options = (*soaked.options, f"evaluation.ray.address={nodes.address}")
                soaked.run(seconds=60 * minutes, kill_every=kill_every)
            return soaked.report(executor, is_long=minutes >= LONG_MINUTES)
        finally:
            if soaked.main is not None:
                soaked.main.kill()
                soaked.main.wait()


def missing(executor: str) -> str | None:
    """Return why a search on an executor cannot run here, None if it can."""
    if executor == "ray":
        try:
            import ray  # noqa: F401
        except ImportError as error:
            return f"needs the extra [ray] ({error})"
    return missing_server()


def main() -> int:
    """Run both searches and return the exit status."""
    options = parse_arguments(__doc__, numbers={"minutes": "minutes of both together (default 30, quick: 1)"})
    minutes = options.minutes or (1 if options.quick else 30)
    # Workers of Ray inherit these.
    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    os.environ["PYTHONPATH"] = str(CHECKOUT)
    rows = []
    for executor in ("pool", "ray"):
        reason = missing(executor)
        if reason is not None:
            skip(executor, reason)
            continue
        rows += soak(executor, minutes=minutes / 2, kill_every=5.0 if options.quick else 10.0)
    return finish(rows, json_path=options.json)


if __name__ == "__main__":
    sys.exit(main())
