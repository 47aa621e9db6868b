"""CPU seconds per 1,000 trajectories as graphs and batches grow, in the environment of architectures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from gflownet.envs.computation_graph import ComputationGraphEnv
from gflownet.envs.config import EnvConfig
from gflownet.mdp.policy import Policy
from gflownet.policy.dense_transformer import DenseTransformerPolicy
from gflownet.policy.graph_transformer import GraphTransformerPolicy
from scripts.bench import Row, figure
from scripts.sampling.sides import Ours, Turn

POLICIES: Mapping[str, type[Policy]] = {"dense": DenseTransformerPolicy, "message passing": GraphTransformerPolicy}
INPUT_SIZES, OUTPUT_SIZES = (8,), (4,)
EDGES_PER_HIDDEN_NODE = 2


@dataclass(frozen=True)
class Plan:
    """What is measured, and what takes too long."""

    hidden: Sequence[int]
    batches: Sequence[int]  # ascending
    num_rounds: int
    most_seconds: float  # of a pass; one that is expected to take longer is skipped, but at the smallest batch
    most_seconds_again: float  # of a pass that is worth another one


FULL = Plan((5, 10, 20, 40, 80), (16, 64, 256), num_rounds=3, most_seconds=120, most_seconds_again=10)
QUICK = Plan((5, 10), (16, 64), num_rounds=1, most_seconds=2, most_seconds_again=0)


class Cell(NamedTuple):
    """A place of the table."""

    policy: str
    num_hidden: int
    batch: int


Turns = Mapping[Cell, list[Turn]]


def measure(plan: Plan) -> list[Row]:
    """Print the table, and return its figures."""
    turns: dict[Cell, list[Turn]] = defaultdict(list)
    skipped: dict[Cell, float] = {}
    for number in range(plan.num_rounds):
        for cell in _cells(plan):
            expected = _expected(cell, turns, plan)
            if expected <= (plan.most_seconds_again if number else plan.most_seconds):
                turns[cell].append(_ours(cell).sample())
            elif not number:
                skipped[cell] = expected
    _print_table(turns, plan)
    for cell, seconds in skipped.items():
        print(f"  skipped: {_label(cell)}, a pass would take about {seconds:.2g} CPU seconds")
    return [figure(_label(cell), _per_thousand(of_cell), "CPU-s per 1,000") for cell, of_cell in turns.items()]


def _cells(plan: Plan) -> Iterator[Cell]:
    for policy in POLICIES:
        for num_hidden in plan.hidden:
            for batch in plan.batches:
                yield Cell(policy, num_hidden, batch)


def _ours(cell: Cell) -> Ours:
    """Return a policy on the environment of the default search, but for the size of its graphs."""
    config = EnvConfig()
    env = ComputationGraphEnv(
        INPUT_SIZES,
        OUTPUT_SIZES,
        activations=config.activations,
        aggregations=config.aggregations,
        hidden_sizes=config.output_sizes,
        max_hidden_nodes=cell.num_hidden,
        max_edges=EDGES_PER_HIDDEN_NODE * cell.num_hidden,
    )
    return Ours(env, policy_class=POLICIES[cell.policy], batch=cell.batch)


def _expected(cell: Cell, turns: Turns, plan: Plan) -> float:
    """Return the CPU seconds of a pass: its last ones, or in proportion those of the largest batch measured."""
    for batch in sorted(plan.batches, reverse=True):
        known = turns.get(cell._replace(batch=batch))
        if batch <= cell.batch and known:
            return known[-1].cpu_seconds * cell.batch / batch
    return 0.0


def _print_table(turns: Turns, plan: Plan) -> None:
    print(f"\nCPU seconds per 1,000 trajectories of architectures, {EDGES_PER_HIDDEN_NODE} edges per hidden node")
    print(f"  {'policy':16} {'hidden nodes':>12} {'states each':>12} " + "".join(f"{b:>10}" for b in plan.batches))
    for policy in POLICIES:
        for num_hidden in plan.hidden:
            row = [turns.get(Cell(policy, num_hidden, batch)) for batch in plan.batches]
            every = [turn for of_cell in row for turn in of_cell or ()]
            length = sum(turn.num_states for turn in every) / sum(turn.num_trajectories for turn in every)
            shown = "".join(f"{_per_thousand(of_cell):10.4g}" if of_cell else f"{'-':>10}" for of_cell in row)
            print(f"  {policy:16} {num_hidden:12} {length:12.1f} {shown}")


def _per_thousand(turns: Sequence[Turn]) -> float:
    return median(1000 / turn.trajectories_per_second() for turn in turns)


def _label(cell: Cell) -> str:
    return f"growth, {cell.policy}, {cell.num_hidden} hidden nodes, batch {cell.batch}"
