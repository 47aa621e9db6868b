"""Measure the report page: its time and size with 10,000 evaluations.

    python scripts/bench_report.py [--quick] [--json FILE]

The page is that of a run folder of the product with 10,000 different computation graphs, sampled and evaluated by a toy
task and added to the store of the run. It is written by `python -m gflownet.report`, a process that imports everything
first. Goals are for CPU seconds: the commands have one thread, so that on an idle machine they take as long.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gflownet.config import command_config
from gflownet.evaluation.task import GFNTask, Score
from gflownet.graphs.computation_graph import NodeType
from scripts.bench import Row, at_most, cost_of, figure, finish, parse_arguments

NUM_EVALUATIONS = 10_000
GOAL_PAGE_S, GOAL_PAGE_MB = 3.0, 3.0
_BATCH = 500
_TASK = "scripts.bench_report:SizeAndActivations"


class SizeAndActivations(GFNTask):
    """Score from size and activations of a graph, with noise by seed: effects for the page to find."""

    is_cheap = True
    input_sizes = (4,)
    output_sizes = (2,)

    def evaluate(self, graph, *, seed):
        """Return the score of a graph."""
        hidden = [node for node in graph.nodes.values() if node.node_type is NodeType.HIDDEN]
        share = sum(node.activation_function == "relu" for node in hidden) / max(1, len(hidden))
        noise = (seed % 1_009) / 10_090
        return Score(0.4 + 0.04 * len(hidden) + 0.1 * share + noise, num_parameters=30 * len(graph.edges))

    def test(self, graph, *, seed):
        """Return the same score with other noise."""
        return self.evaluate(graph, seed=seed + 1).value


def main() -> int:
    """Run the benchmark and return the exit status."""
    arguments = parse_arguments(__doc__)
    with tempfile.TemporaryDirectory() as name:
        rows = page_rows(Path(name) / "large", rounds=3)
    return finish(rows, json_path=arguments.json)


def page_rows(folder: Path, *, rounds: int) -> list[Row]:
    """Return time and size of the page of a run with NUM_EVALUATIONS evaluations."""
    write_large_run(folder, NUM_EVALUATIONS)
    costs = [cost_of([sys.executable, "-m", "gflownet.report", str(folder)]) for _ in range(rounds)]
    megabytes = (folder / "report.html").stat().st_size / 1e6
    name = f"page of {NUM_EVALUATIONS:,} evaluations"
    return [
        at_most(name, statistics.median(cost.cpu for cost in costs), "CPU s", GOAL_PAGE_S),
        figure(name, statistics.median(cost.wall for cost in costs), "s"),
        at_most(name, megabytes, "MB", GOAL_PAGE_MB),
    ]


def write_large_run(folder: Path, num: int) -> None:
    """Write a run folder: a short run, to whose store further evaluations are added."""
    from gflownet.evaluation.fingerprint import context_of
    from gflownet.evaluation.store import EvaluationStore
    from gflownet.run.logging import METRICS_NAME, MetricsFile
    from gflownet.run.trainer import GFNTrainer

    options = [f"task={_TASK}", f"log_dir={folder}", "num_training_steps=20", "algo.num_from_policy=4"]
    options += ["model.num_emb=16", "model.num_layers=1", "final.num_seeds=2", "final.num_random=2"]
    options += ["report.every=null", "wandb.mode=disabled", "print_every=1000000000"]
    trainer = GFNTrainer(command_config(None, options))
    trainer.run()
    with EvaluationStore(folder / "evaluations.sqlite", context=context_of(trainer.task)) as store:
        num_missing = num - store.count(run=trainer.run_id)
        for step, records in enumerate(_batches(trainer, num_missing), start=trainer.step + 1):
            store.add(records)
            row = {"score_mean": statistics.fmean(record.score for record in records), "loss": 1 / step}
            file = MetricsFile(folder / METRICS_NAME, run=trainer.run_id, resume_step=step - 1)
            file.write(step, row | {"score_best": 0.9, "num_distinct": step * _BATCH, "seconds": float(step)})
            file.close()


def _batches(trainer, num: int) -> Iterator[list]:
    """Yield the evaluations of `num` graphs of the environment, sampled by uniform actions, no two isomorphic."""
    import torch

    from gflownet.data.sampler import uniform_states
    from gflownet.evaluation.job import EvaluationStatus
    from gflownet.evaluation.store import EvaluationRecord

    generator, seen = torch.Generator().manual_seed(0), set()
    while num > 0:
        states = uniform_states(trainer.env, _BATCH, generator=generator)
        records = []
        for i in range(_BATCH):
            graph = trainer.env.terminal(states, i)
            if graph.canonical_key() in seen or len(records) == num:
                continue
            seen.add(graph.canonical_key())
            score = trainer.task.evaluate(graph, seed=len(seen))
            records.append(
                EvaluationRecord(
                    hash=graph.canonical_hash(),
                    key=graph.canonical_key(),
                    graph=json.dumps(graph.to_dict()),
                    score=score.value,
                    status=EvaluationStatus.OK,
                    seconds=0.01,
                    step=trainer.step + 1,
                    run=trainer.run_id,
                    num_parameters=score.num_parameters,
                )
            )
        num -= len(records)
        yield records


if __name__ == "__main__":
    sys.exit(main())
