"""Does the search learn? The default digits search against uniform random sampling of as many architectures.

    python scripts/compare_random.py [--quick] [--json FILE]

For each seed: one whole run; the mean validation score of its first and of its last tenth; and the mean over
the same number of architectures drawn by uniformly random legal actions from the same space, evaluated the same way.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from gflownet.config import Config, load_config
from gflownet.data.sampler import sample_forward
from gflownet.evaluation.config import scoring_context
from gflownet.evaluation.store import EvaluationStore
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.run.folder import STORE_NAME
from gflownet.run.logging import METRICS_NAME
from gflownet.trainer import GFNTrainer
from scripts.bench import Row, figure, finish, parse_arguments

NUM_SEEDS = 3
QUICK = ("num_training_steps=30", "algo.num_from_policy=8", "env.max_hidden_nodes=3", "env.max_edges=6")


def run_config(folder: Path, *, seed: int, quick: bool) -> Config:
    """Return the default search with a seed, in a folder of its own."""
    overrides = [f"seed={seed}", f"log_dir={folder}", "wandb.mode=disabled", "print_every=50"]
    return load_config("digits", [*overrides, *(QUICK if quick else ())])


def tenths(folder: Path) -> tuple[float, float]:
    """Return the mean score of what a run sampled in its first and in its last tenth."""
    scores = [json.loads(line)["score_mean"] for line in (folder / METRICS_NAME).read_text().splitlines()]
    num = max(1, len(scores) // 10)
    return sum(scores[:num]) / num, sum(scores[-num:]) / num


def random_scores(config: Config, folder: Path, *, num: int) -> tuple[torch.Tensor, TrajectoryBatch]:
    """Return the scores [num] of architectures drawn by uniformly random actions, and how they were drawn."""
    trainer = GFNTrainer(config)
    generator = torch.Generator().manual_seed(config.seed)
    conditioning = trainer.task.sample_conditioning(num, generator=generator)
    batch = sample_forward(
        trainer.context, trainer.policy, conditioning=conditioning, generator=generator, random_action_prob=1.0
    )
    graphs = [trainer.env.terminal(batch.terminal, i) for i in range(num)]
    with EvaluationStore(folder / STORE_NAME, context=scoring_context(config)) as store:
        evaluations = trainer.build_evaluator(store).evaluate(graphs, step=0)
    masks = trainer.env.forward_masks(batch.states)
    log_forward = torch.zeros(num).index_add(0, batch.trajectory, -masks.num_actions().log())
    log_backward = torch.zeros(num).index_add(0, batch.trajectory, batch.log_backward)
    log_weight = log_backward + batch.log_symmetry - log_forward
    return torch.tensor([e.score for e in evaluations]), batch.with_rewards(log_weight)


def main() -> int:
    """Run everything and return the exit status."""
    arguments = parse_arguments(__doc__)
    rows = []
    for seed in range(1 if arguments.quick else NUM_SEEDS):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            config = run_config(folder, seed=seed, quick=arguments.quick)
            GFNTrainer(config).run()
            first, last = tenths(folder)
            num = config.num_training_steps * config.algo.num_from_policy
            scores, drawn = random_scores(config, folder, num=num)
        # Weights that turn draws by uniform actions into draws that are uniform over architectures.
        weight = drawn.log_reward.double().softmax(0)
        uniform, effective = float((weight * scores).sum()), float(1 / weight.square().sum())
        random = float(scores.mean())
        label = f"seed {seed}, {num} architectures: mean validation score"
        rows += [
            figure(f"{label}, first tenth of the run", first),
            Row(f"{label}, last tenth of the run", last, "", "> first tenth and > random", last > max(first, random)),
            figure(f"{label}, uniform random actions", random),
            figure(f"{label}, uniform over architectures (reweighted)", uniform),
            figure(f"{label}, effective sample size of the line above", effective),
            Row(f"seed {seed}: gain over random", last - random, "", "> 0", last > random),
            Row(f"seed {seed}: gain over the first tenth", last - first, "", "> 0", last > first),
        ]
    return finish(rows, json_path=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
