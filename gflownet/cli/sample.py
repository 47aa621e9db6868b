"""gflownet sample: graphs from the policy of a finished run, with scores and log-probabilities."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gflownet.errors import UserError, counted, printable
from gflownet.evaluation.executors.machine import check_device
from gflownet.files import cannot_write
from gflownet.records.marker import check_checkpoint
from gflownet.records.trust import HELP, limited, trusting
from gflownet.terminal.arguments import CommandLine, positive_integer, program, run_command

if TYPE_CHECKING:
    from gflownet.cli.sample_records import LogProbs, SampleRecord

_COLUMNS = ("hash", "score", "predicted", "log R(x)", "log p(x)", "log P_F", "log P_B")
_KEYS = ("score", "predicted", "log_reward", "log_prob", "log_forward", "log_backward")
_HASH_LENGTH, _WIDTH = 11, 10  # as gflownet store shows a hash


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: 0, 2 for an error of the user, 128 + a signal."""
    return run_command(lambda: sample(parse(sys.argv[1:] if argv is None else argv)))


def command_line() -> CommandLine:
    """Return the parser."""
    parser = CommandLine(
        prog=program("sample"),
        description="Sample graphs from the policy in the last checkpoint of a run, without exploration; after a "
        "search method the best new ones of 256 by prediction. Printed are scores of graphs that the run has "
        "evaluated, predicted scores, log-rewards, the log-probability log p(x) of the graph, and log P_F and log "
        "P_B of the sampled trajectory.",
    )
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="run folder")
    add("--num", type=positive_integer, default=10, metavar="N", help="number of graphs (default: 10)")
    add("--max-parameters", type=positive_integer, metavar="N", help="cap (default: the largest of the training)")
    add("--max-multiply-adds", type=positive_integer, metavar="N", help="the same for multiply-adds per example")
    add("--varied", action="store_true", help="samples as they come, known ones included")
    add("--json", action="store_true", help="print one JSON object per line, with the graph")
    add("--output", type=Path, metavar="FILE", help="write one JSON object per line to a new file")
    add("--seed", type=int, default=0, metavar="N", help="seed of the samples (default: 0)")
    add("--beta", type=float, metavar="B", help="inverse temperature (default: as in training)")
    add("--preferences", type=_numbers, metavar="W,W", help="weights of the objectives (default: as in training)")
    add(
        "--focus",
        type=_numbers,
        metavar="D,D",
        help="direction in the space of objectives, --focus=-1,1 for negative ones (default: as in training)",
    )
    add("--greediness", type=float, default=0.0, metavar="P", help="p in [0, 1] of QGFN (default: 0)")
    add(
        "--variant",
        default="p_of_max",
        choices=("p_greedy", "p_quantile", "p_of_max"),
        help="of QGFN (default: p_of_max)",
    )
    add("--trust", action="store_true", help=HELP)
    add("--device", default="cpu", help="of the networks: cpu, cuda or cuda:N (default: cpu)")
    group = parser.add_argument_group("log p(x), the probability of the graph over all its trajectories")
    add = group.add_argument
    add(
        "--trajectories",
        type=lambda text: 0 if text == "0" else positive_integer(text),
        default=10,
        metavar="M",
        help="estimate it from M backward trajectories of each graph; 0: leave it out (default: 10)",
    )
    add("--exact", action="store_true", help="compute it from all states of the space")
    add("--max-states", type=positive_integer, default=100_000, metavar="N", help="limit of --exact (default: 100000)")
    return parser


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the values of the command line. Raises UserError for wrong ones."""
    options = command_line().parse_args(arguments)
    if not 0 <= options.greediness <= 1:
        raise UserError(f"--greediness: expected a number in [0, 1], got {options.greediness}")
    return options


def sample(options: argparse.Namespace) -> None:
    """Sample, and write the records batch by batch."""
    check_checkpoint(options.run)
    check_device(options.device)
    hashes, num_scored, num_sampled = set[str](), 0, 0
    with _writer(options) as write, trusting(options.trust), limited(options.run):
        # Imported here: --help and errors of the command line do not wait for torch.
        from gflownet.cli.sample_records import EstimatedProbability, ExactProbability, known_scores, sample_records
        from gflownet.run.sampling import restore

        restored = restore(options.run, greediness=options.greediness, variant=options.variant, device=options.device)
        log_probs_of: LogProbs | None = None
        if options.exact:
            log_probs_of = ExactProbability(restored, max_states=options.max_states).log_probs
        elif num := options.trajectories:
            log_probs_of = EstimatedProbability(restored, num_trajectories=num, seed=options.seed).log_probs
        batches = restored.batches(
            options.num,
            seed=options.seed,
            varied=options.varied,
            caps={"parameters": options.max_parameters, "multiply_adds": options.max_multiply_adds},
            beta=options.beta,
            preferences=options.preferences,
            focus=options.focus,
        )
        with known_scores(restored, options.run) as store:
            for batch in batches:
                for record in sample_records(restored, batch, store=store, log_probs_of=log_probs_of):
                    write(record)
                    hashes.add(record.hash)
                    num_scored += record.evaluation is not None
                    num_sampled += 1
                sys.stdout.flush()
    if not options.json:
        where = f", written to {options.output}" if options.output else ""
        counts = f"{counted(num_sampled, 'graph')}, {len(hashes)} distinct, {num_scored} evaluated by the run"
        print(printable(f"{counts}{where}"))


@contextmanager
def _writer(options: argparse.Namespace) -> Iterator[Callable[[SampleRecord], None]]:
    """Yield a function that writes a record: to a new file, as JSON to stdout, or as a row of a table."""
    if options.output is None:
        yield (lambda record: print(_line(record))) if options.json else _table_rows()
        return
    try:
        file = options.output.open("x", encoding="utf-8")
    except FileExistsError:
        raise UserError(f"{options.output}: expected a new file, got an existing one") from None
    except OSError as error:
        raise cannot_write(options.output, error) from error

    def write(record: SampleRecord) -> None:
        line = _line(record)
        try:
            file.write(f"{line}\n")
        except OSError as error:
            raise cannot_write(options.output, error) from error
        if options.json:
            print(line)

    with file:
        try:
            yield write
        finally:
            if not file.tell():  # nothing was sampled
                options.output.unlink()


def _line(record: SampleRecord) -> str:
    return json.dumps(record.to_dict(), allow_nan=False)


def _table_rows() -> Callable[[SampleRecord], None]:
    """Return a function that prints a row for each record, the first one below the header."""
    header = [f"{_COLUMNS[0]:<{_HASH_LENGTH}} {' '.join(f'{name:>{_WIDTH}}' for name in _COLUMNS[1:])}"]

    def write(record: SampleRecord) -> None:
        if header:
            print(header.pop())
        values = map(record.to_dict().get, _KEYS)
        cells = (f"{'-' if value is None else format(value, '.4f'):>{_WIDTH}}" for value in values)
        print(f"{record.hash[:_HASH_LENGTH]:<{_HASH_LENGTH}}", *cells)

    return write


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers separated by commas, got {text!r}") from None
