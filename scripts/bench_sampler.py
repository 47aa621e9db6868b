"""Train what the sampler of a run returns within caps of parameters, beside mutations and random networks.

    python scripts/bench_sampler.py [--only PROBLEM,...] [--seeds N] [--trainings N] [--out FOLDER] [--quick]
        [--json FILE]

Each seed is a search of `--trainings` evaluations for accuracy and parameters, with a sampler that is conditioned on a
cap of parameters. At each of four caps three groups of twelve networks are trained once, on seeds that no run has, and
judged by their test scores: the best by prediction of 256 samples (`gflownet.sample`), the best by prediction of
200 mutations of the ten best evaluated networks within the cap, and networks of random actions with a third of the cap
to the cap. All are new. A repeated command continues in --out.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from time import process_time
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

import gflownet
from gflownet.files import write_whole
from gflownet.learning.sampler import uniform_states
from gflownet.mdp.states import GraphStates
from gflownet.run.sampling import RestoredPolicy, restore
from gflownet.search.proposals import distinct, mutations, unknown_mask
from gflownet.train import main as train
from scripts.bench import Row, at_least, at_most, cpu_seconds, figure, finish, parse_arguments
from scripts.bench_real import FRESH_REPEAT, gain_row, tested, trained

NUM_TRAININGS, NUM_SEEDS, QUICK_TRAININGS = 100, 5, 12
NUM_BEST, NUM_SAMPLES, NUM_MUTATIONS, NUM_PARENTS = 12, 256, 200, 10
NUM_DRAWN = 2_000  # random networks, of which some have a size within a third of the cap to the cap
SAMPLER, MUTATIONS, RANDOM = GROUPS = ("sampler", "mutations", "random")
_TRAINING, _AGAIN = "training of the sampler", "the same samples again"
MOST_SECONDS = {_TRAINING: 12.0, _AGAIN: 0.1}  # CPU
_VECTORS = "env.operation_graph.choices={linear: {features: [4, 8, 16, 24, 32]}}"
# Config, options and caps of each problem.
PROBLEMS: dict[str, tuple[str, tuple[str, ...], tuple[int, ...]]] = {
    "mnist1d": ("mnist1d", (), (300, 600, 1200, 2500)),
    "images": ("images_small", ("evaluation.num_epochs=3",), (300, 600, 1200, 2500)),
    "classification": (
        "table",
        (
            *("task_options.data=digits", "evaluation.num_epochs=2", "evaluation.batch_size=32"),
            *("env.name=operation_graph", "env.operation_graph.operations=[linear]", _VECTORS),
            *("env.operation_graph.max_hidden_nodes=4", "env.operation_graph.max_edges=8"),
            "env.operation_graph.activations=[relu, tanh, gelu]",
        ),
        (1000, 1800, 3200, 6000),
    ),
}
_COMMON = (
    *("evaluation.objectives=[accuracy,parameters]", "evaluation.target_parameters=1000"),
    *("evaluation.floor_score=0.05", "cond.limit.metric=parameters", "search.sampler.num_verified=0"),
    *("final.top=0", "wandb.mode=disabled", "evaluation.executor=inline", "report.every=null", "print_every=1000"),
)


def result_of(problem: str, seed: int, num_trainings: int, folder: Path, *, num: int) -> dict[str, Any]:
    """Search, sample and train; return the scores of each cap and group, and CPU seconds."""
    config, options, caps = PROBLEMS[problem]
    limit = f"env.operation_graph.max_parameters={caps[-1]}"
    arguments = [*options, limit, *_COMMON, f"seed={seed}", f"budget.evaluations={num_trainings}", f"log_dir={folder}"]
    if status := train(["--config", config, *arguments, "search.train_sampler=false"]):
        raise SystemExit(status)
    start = process_time()
    run = restore(folder)  # trains the sampler
    seconds = {_TRAINING: process_time() - start}
    generator, env, found = torch.Generator().manual_seed(seed), run.trainer.env, dict[str, Any]()
    for cap in caps:
        start = process_time()
        sampled = gflownet.sample(folder, num, max_parameters=cap, seed=seed)
        seconds[f"256 samples, at most {cap:,}"] = process_time() - start
        seconds[_AGAIN] = cpu_seconds(lambda cap=cap: gflownet.sample(folder, num, max_parameters=cap, seed=seed))
        raw = next(run.batches(NUM_SAMPLES, seed=seed, varied=True, caps={"parameters": cap})).terminal
        groups = {
            SAMPLER: sampled,
            MUTATIONS: _graphs(run, _best_mutations(run, cap, num, generator)),
            RANDOM: _graphs(run, _random(run, cap, num, generator)),
        }
        first = FRESH_REPEAT + seed
        rows = {name: trained(run.trainer, each, first=first) for name, each in groups.items()}
        found[str(cap)] = {name: [tested(row) for row in each] for name, each in rows.items()}
        found[str(cap)]["within"] = int((env.sizes(raw)[:, 0] <= cap).sum())
    return {"caps": found, "seconds": seconds}


def _graphs(run: RestoredPolicy, states: GraphStates) -> list[Any]:
    return [run.trainer.env.terminal(states, place) for place in range(len(states))]


def _within(run: RestoredPolicy, states: GraphStates, low: float, cap: int) -> GraphStates:
    """Return the new ones of states, each once, with sizes above `low` and at most `cap`."""
    states = distinct(run.trainer.env, states)
    size = run.trainer.env.sizes(states)[:, 0]
    return states[unknown_mask(run.trainer.search.history, states) & (size > low) & (size <= cap)]


def _best_mutations(run: RestoredPolicy, cap: int, num: int, generator: torch.Generator) -> GraphStates:
    search, env = run.trainer.search, run.trainer.env
    assert run.predict is not None
    states = search.history.states
    small = (env.sizes(states)[:, 0] <= cap).nonzero().squeeze(1).tolist()
    best = sorted(small, key=lambda place: -search.history.scores[place])[:NUM_PARENTS]
    near = _within(run, mutations(env, states[torch.tensor(best)], NUM_MUTATIONS, generator), 0, cap)
    values = run.predict(near).reshape(len(near), -1)[:, 0]
    return near[values.argsort(descending=True, stable=True)[:num]]


def _random(run: RestoredPolicy, cap: int, num: int, generator: torch.Generator) -> GraphStates:
    return _within(run, uniform_states(run.trainer.env, NUM_DRAWN, generator=generator), cap / 3, cap)[:num]


def rows_of(problem: str, results: Sequence[Mapping[str, Any]], *, has_goals: bool) -> Iterator[Row]:
    """Yield the mean scores of the groups at each cap, and their differences over the seeds."""
    gains = list[float]()
    for cap in results[0]["caps"]:
        means = {name: [mean(each["caps"][cap][name]) for each in results] for name in GROUPS}
        for name, values in means.items():
            yield figure(f"{problem}, at most {cap}: {name}", mean(values), "test")
        within = min(each["caps"][cap]["within"] for each in results)
        yield at_least(f"{problem}, at most {cap}: samples within the cap", within, "of 256", NUM_SAMPLES)
        gain = [one - other for one, other in zip(means[SAMPLER], means[MUTATIONS], strict=True)]
        errors = [stdev(each["caps"][cap][MUTATIONS]) / len(each["caps"][cap][MUTATIONS]) ** 0.5 for each in results]
        gains += gain
        goal = -mean(errors) if has_goals else None
        yield at_least(f"{problem}, at most {cap}: sampler - mutations", mean(gain), "", goal)
        label = f"{problem}, at most {cap}: sampler - random"
        yield gain_row(label, means[SAMPLER], means[RANDOM], "interval > 0" if has_goals else "")
    yield at_least(f"{problem}: sampler - mutations, mean of the caps", mean(gains), "", 0.0 if has_goals else None)
    for name in results[0]["seconds"]:
        goal = MOST_SECONDS.get(name) if has_goals else None
        yield at_most(f"{problem}: {name}", mean(each["seconds"][name] for each in results), "CPU s", goal)


def main() -> int:
    """Run the comparison and return the exit status."""
    arguments = parse_arguments(
        __doc__,
        texts={"only": f"of {', '.join(PROBLEMS)}; default: all"},
        numbers={"seeds": f"default: {NUM_SEEDS}", "trainings": f"default: {NUM_TRAININGS}"},
        paths={"out": "folder of results that stay"},
    )
    torch.set_num_threads(1)
    names = arguments.only.split(",") if arguments.only else ["classification"] if arguments.quick else list(PROBLEMS)
    num_trainings, num = (QUICK_TRAININGS, 2) if arguments.quick else (arguments.trainings or NUM_TRAININGS, NUM_BEST)
    rows, seeds = list[Row](), range(1 if arguments.quick else arguments.seeds or NUM_SEEDS)
    with tempfile.TemporaryDirectory() as temporary:
        out = arguments.out or Path(temporary)
        found: dict[str, list[Any]] = {name: [] for name in names}
        for seed, name in product(seeds, names):
            path = out / f"{name}_{seed}_{num_trainings}.json"
            if not path.exists():
                with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
                    result = result_of(name, seed, num_trainings, Path(folder, "run"), num=num)
                out.mkdir(parents=True, exist_ok=True)
                write_whole(path, json.dumps(result, indent=1))
            found[name].append(json.loads(path.read_text()))
    for name, results in found.items():
        rows += rows_of(name, results, has_goals=len(results) > 1)
    return finish(rows, json_path=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
