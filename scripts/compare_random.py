"""Compare the digits search with uniformly random actions on as many architectures.

    python scripts/compare_random.py [--quick] [--json FILE]

Two runs of `python -m gflownet.train --config digits` per seed: the search, and the same with
`algo.train_random_action_prob=1`. Scores are read from metrics.jsonl of the run folders.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gflownet.config import load_config
from gflownet.run.logging import METRICS_NAME
from gflownet.trainer import GFNTrainer
from scripts.bench import Row, figure, finish, parse_arguments

QUICK = ("num_training_steps=30", "algo.num_from_policy=8", "env.max_hidden_nodes=3", "env.max_edges=6")


def step_scores(*overrides: str) -> tuple[list[float], int]:
    """Run the search and return the mean validation score of each step and the number of architectures."""
    with tempfile.TemporaryDirectory() as folder:
        config = load_config("digits", [*overrides, f"log_dir={folder}", "wandb.mode=disabled", "print_every=50"])
        GFNTrainer(config).run()
        lines = (Path(folder) / METRICS_NAME).read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["score_mean"] for line in lines], len(lines) * config.algo.num_from_policy


def main() -> int:
    """Run the comparison and return the exit status."""
    arguments = parse_arguments(__doc__)
    rows = []
    for seed in range(1 if arguments.quick else 3):
        options = [f"seed={seed}", *(QUICK if arguments.quick else ())]
        scores, num = step_scores(*options)
        random = mean(step_scores(*options, "algo.train_random_action_prob=1")[0])
        tenth = max(1, len(scores) // 10)
        first, last = mean(scores[:tenth]), mean(scores[-tenth:])
        label = f"seed {seed}, {num} architectures: mean validation score"
        rows += [
            figure(f"{label}, first tenth of the run", first),
            Row(f"{label}, last tenth of the run", last, "", "> first tenth and > random", last > max(first, random)),
            figure(f"{label}, uniform random actions", random),
            Row(f"seed {seed}: gain over random", last - random, "", "> 0", last > random),
            Row(f"seed {seed}: gain over the first tenth", last - first, "", "> 0", last > first),
        ]
    return finish(rows, json_path=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
