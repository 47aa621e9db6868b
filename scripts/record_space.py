"""Evaluate every candidate of a space and write the scores to a table, which the task `recorded` searches.

    python scripts/record_space.py TABLE [--config NAME] [--task NAME] [--repeats N] [--quick] [KEY=VALUE ...]

TABLE is a new file: CSV, gzipped if its name ends in .gz. All evaluations are in the store of the run folder (log_dir)
or evaluation.store_url, so that a stopped recording continues where it was.

Record at least two trainings of each candidate, three where finalists train again: the trainings that choose a network
do not judge it. `scripts/bench_real.py` takes one column of them as the judge, another one for each seed, and hides it
from the search (task_options.seed_columns, task_options.test_column). The mean `score` contains those that choose.

The table in tests/data comes from

    python scripts/record_space.py recorded_digits.csv.gz --config recorded_digits --task digits --repeats 2
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gflownet.certificate.exact import enumerate_states
from gflownet.config import Config, load_config
from gflownet.errors import UserError
from gflownet.evaluation.dispatcher import Dispatcher
from gflownet.evaluation.job import TEST_METRIC, Request
from gflownet.evaluation.store.database import STORE_NAME
from gflownet.evaluation.store.evaluations import EvaluationRecord, EvaluationStatus, EvaluationStore
from gflownet.evaluation.store.fingerprint import context_of
from gflownet.evaluation.task import Cost
from gflownet.files import write_whole
from gflownet.graphs.canonical import Candidate
from gflownet.run.trainer import GFNTrainer
from gflownet.terminal.arguments import positive_integer

HASH_LENGTH = 19  # g1- and 64 bits: two of 10,000 candidates share them with a probability of 3e-12
NUM_QUICK = 24  # candidates of a quick recording
_CHUNK = 256  # candidates between two lines
# The candidates of a group that trains together report its time with the first, and less than this each with the rest.
_SHARED_S = 0.005
_DECIMALS = 5


@dataclass(frozen=True)
class Row:
    """A candidate's size and its evaluations."""

    cost: Cost | None
    repeats: Sequence[EvaluationRecord]


def main(arguments: Sequence[str] | None = None) -> int:
    """Record a space and return the exit status."""
    options = _parser().parse_intermixed_args(arguments)
    try:
        record_space(
            recording_config(options.config, options.task, options.overrides),
            options.table,
            num_repeats=options.repeats,
            max_states=options.max_states,
            limit=NUM_QUICK if options.quick else None,
        )
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command continues", file=sys.stderr)
        return 130
    return 0


def recording_config(source: str | None, task: str, overrides: Sequence[str]) -> Config:
    """Return a config with the task that evaluates the candidates; its options are those of the overrides.

    Args:
        source: name or path of the config.
        task: name of the task; empty: that of the config, with all its options.
        overrides: further options.
    """
    config = load_config(source, overrides)
    if task:
        config.task, config.task_options = task, load_config(None, overrides).task_options
    return config


def record_space(config: Config, table: Path, *, num_repeats: int, max_states: int, limit: int | None) -> None:
    """Evaluate all candidates of a config's space and write the table.

    Args:
        config: space, task and training of the candidates.
        table: path of a new file.
        num_repeats: evaluations of a candidate, each with another seed; the score is their mean.
        max_states: maximum number of states of the space.
        limit: maximum number of candidates; None: all.

    Raises:
        UserError: an existing table, a space that is too large, or an invalid config.
    """
    if table.exists():
        raise UserError(f"{table}: expected the path of a new file, got an existing one")
    components = GFNTrainer(config)
    candidates = space_of(components, max_states=max_states)[:limit]
    folder = Path(config.log_dir)
    folder.mkdir(parents=True, exist_ok=True)
    location = config.evaluation.store_url or folder / STORE_NAME
    with (
        EvaluationStore(location, context=context_of(components.task)) as store,
        components.build_executor() as executor,
        closing(components.build_evaluator(store, executor)) as dispatcher,
    ):
        repeats = [evaluated(dispatcher, candidates, repeat) for repeat in range(num_repeats)]
    repeats = [with_shared_seconds(records) for records in repeats]
    rows = [Row(*row) for row in zip(map(components.task.cost, candidates), zip(*repeats, strict=True), strict=True)]
    content = table_text(rows).encode()
    write_whole(table, gzip.compress(content, mtime=0) if table.suffix == ".gz" else content)
    print(f"{table}: {len(candidates)} candidates, {table.stat().st_size} bytes")


def space_of(components: GFNTrainer, *, max_states: int) -> list[Candidate]:
    """Return all terminal objects of a run's environment. Raises UserError for more than `max_states` states."""
    try:
        graph = enumerate_states(components.env, max_states=max_states)
    except ValueError as error:
        raise UserError(f"env: {error}; see --max-states") from error
    return [components.env.terminal(graph.states, index) for index in graph.terminal.tolist()]


def evaluated(dispatcher: Dispatcher, candidates: Sequence[Candidate], repeat: int) -> list[EvaluationRecord]:
    """Return the row of each candidate, in order; known ones come from the store."""
    fidelity, records, start = dispatcher.task.max_fidelity or None, [], time.monotonic()
    for first in range(0, len(candidates), _CHUNK):
        chunk = candidates[first : first + _CHUNK]
        requests = [Request(candidate, repeat=repeat, fidelity=fidelity, tests=True) for candidate in chunk]
        futures = dispatcher.complete(requests, step=0)
        dispatcher.flush()
        records += [future.record for future in futures if future.record is not None]
        seconds = time.monotonic() - start
        print(f"seed {repeat}: {len(records)} of {len(candidates)} candidates | {seconds:.0f} s", flush=True)
    return records


def with_shared_seconds(records: Sequence[EvaluationRecord]) -> list[EvaluationRecord]:
    """Return the rows with the time of each group that trained together divided evenly."""
    starts = [place for place, record in enumerate(records) if not place or record.seconds >= _SHARED_S]
    result = []
    for first, last in zip(starts, [*starts[1:], len(records)], strict=True):
        seconds = fmean(record.seconds for record in records[first:last])
        result += [replace(record, seconds=seconds) for record in records[first:last]]
    return result


def table_text(rows: Sequence[Row]) -> str:
    """Return the CSV text of the candidates, by hash; a candidate with a failed evaluation has no score.

    Raises:
        UserError: two candidates with the same first characters of their hashes.
    """
    if len({row.repeats[0].hash[:HASH_LENGTH] for row in rows}) < len(rows):
        raise UserError(f"expected candidates with different hashes in the first {HASH_LENGTH} characters")
    seeds = [f"score_seed{repeat}" for repeat in range(len(rows[0].repeats))]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["hash", "score", "test_score", "seconds", "num_parameters", "flops", *seeds])
    writer.writerows(sorted(_cells(row) for row in rows))
    return file.getvalue()


def _cells(row: Row) -> list[str]:
    """Return the cells of a candidate."""
    repeats = row.repeats
    scores = [record.score if record.status is EvaluationStatus.OK else None for record in repeats]
    return [
        repeats[0].hash[:HASH_LENGTH],
        _mean(scores),
        _mean([record.metrics.get(TEST_METRIC) for record in repeats]),
        f"{fmean(record.seconds for record in repeats):.3f}",
        *(["", ""] if row.cost is None else [str(row.cost.num_parameters), str(row.cost.flops)]),
        *(_mean([score]) for score in scores),
    ]


def _mean(values: Sequence[float | None]) -> str:
    """Return the mean as text, empty if a value is missing."""
    numbers = [value for value in values if value is not None]
    return str(round(fmean(numbers), _DECIMALS)) if len(numbers) == len(values) else ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, metavar="TABLE", help="path of the new table")
    parser.add_argument("--config", metavar="NAME", help="name or path of the config; default: the defaults")
    parser.add_argument("--task", default="", metavar="NAME", help="task of the evaluations; default: the config's")
    add, number = parser.add_argument, positive_integer
    add("--repeats", type=number, default=1, metavar="N", help="evaluations per candidate; default: 1")
    add("--max-states", type=number, default=200_000, metavar="N", help="maximum number of states; default: 200000")
    parser.add_argument("--quick", action="store_true", help=f"record the first {NUM_QUICK} candidates only")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="options of the config")
    return parser


if __name__ == "__main__":
    sys.exit(main())
