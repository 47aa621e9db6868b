"""Compare the search with random search and regularised evolution at equal evaluations on mnist1d.

    python scripts/bench_mnist1d.py [--quick] [--evaluations N] [--seeds N] [--json FILE]

All sides use the task, the environment, the store and the executor of configs/mnist1d_large.yaml. Each evaluates N
different architectures per seed; its best ones are trained again on new seeds by the final stage, and the one with the
best mean validation score is reported with its mean test score. Random search: uniformly random legal actions.
Regularised evolution (Real et al. 2019): the best of 10 random members of the population, the 50 youngest
architectures, is mutated. A mutation undoes 1 to 6 construction steps; random actions follow, with Stop in half of the
cases where it is legal.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from time import perf_counter

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor

from gflownet.config import load_config
from gflownet.data.sampler import roll_out
from gflownet.data.uniform import uniform_candidates
from gflownet.evaluation.dispatcher import Dispatcher, EvaluationStoppedError
from gflownet.evaluation.fingerprint import context_of
from gflownet.evaluation.store import EvaluationStore
from gflownet.evaluation.store_database import STORE_NAME
from gflownet.final_stage import final_stage
from gflownet.graphs.canonical import Candidate
from gflownet.interrupts import StopRequest
from gflownet.mdp.action import ActionBatch, GraphActionType
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates
from gflownet.report.architectures import TOP_NAME
from gflownet.trainer import GFNTrainer
from scripts.bench import Row, at_least, at_most, figure, finish, parse_arguments

POPULATION, TOURNAMENT, MAX_UNDONE = 50, 10, 6
STOP_PROBABILITY = 0.5
BATCH_SIZE = 8  # candidates proposed at once: several processes stay busy
GOAL_TEST, MAX_PARAMETERS = 0.991, 5_210
EVALUATIONS, EVALUATIONS_QUICK = 400, 9
NUM_SEEDS = 3
QUICK = ("evaluation.num_epochs=1", "final.epochs=1", "final.num_seeds=2", "final.top=2", "algo.num_from_policy=3")
# The steps of the policy end with the budget; random architectures are a side of their own.
COMMON = ("num_training_steps=100000", "final.num_random=0", "wandb.mode=disabled", "print_every=20")


def mutated(env: Environment, states: GraphStates, generator: torch.Generator) -> list[Candidate]:
    """Return one mutation of each terminal state: some steps undone, then random actions until Stop."""
    num_undone = torch.randint(1, MAX_UNDONE + 1, (len(states),), generator=generator)
    children: list[Candidate] = []
    for index in range(len(states)):
        state = states[index : index + 1]
        for _ in range(int(num_undone[index])):
            masks = env.backward_masks(state)
            if int(masks.num_actions()):
                state = env.apply(state, masks.sample_uniform(generator))
        end = roll_out(env, state, lambda states, _: _next_actions(env, states, generator))[-1]
        children.append(env.terminal(end.states, 0))
    return children


def _next_actions(env: Environment, states: GraphStates, generator: torch.Generator) -> ActionBatch:
    masks = env.forward_masks(states)
    actions = masks.sample_uniform(generator)
    may_stop = masks.masks[GraphActionType.Stop].flatten(1).any(1)
    stop = may_stop & (torch.rand(len(states), generator=generator) < STOP_PROBABILITY)

    def where_stopped(value: int, others: Tensor) -> Tensor:
        return torch.where(stop, value, others)

    kind = where_stopped(int(GraphActionType.Stop), actions.kind)
    return ActionBatch(kind, where_stopped(0, actions.row), where_stopped(0, actions.column))


def search_randomly(env: Environment, dispatcher: Dispatcher, *, seed: int, num_evaluations: int) -> None:
    """Evaluate architectures from uniformly random actions until the budget is spent."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        dispatcher.evaluate(uniform_candidates(env, BATCH_SIZE, generator=generator), step=1)


def evolve(env: Environment, dispatcher: Dispatcher, *, seed: int, num_evaluations: int) -> None:
    """Evaluate the architectures of regularised evolution until the budget is spent."""
    generator = torch.Generator().manual_seed(seed)
    size, batch_size = min(POPULATION, num_evaluations // 3), min(BATCH_SIZE, num_evaluations // 3)
    population: deque[tuple[float, Candidate]] = deque(maxlen=size)
    while True:
        if len(population) < size:
            candidates = uniform_candidates(env, batch_size, generator=generator)
        else:
            samples = torch.randint(size, (batch_size, TOURNAMENT), generator=generator).tolist()
            winners = [max((population[i] for i in sample), key=lambda member: member[0]) for sample in samples]
            candidates = mutated(env, env.states_of([candidate for _, candidate in winners]), generator)
        scores = [evaluation.score for evaluation in dispatcher.evaluate(candidates, step=1)]
        population.extend(zip(scores, candidates, strict=True))


Proposer = Callable[..., None]
BASELINES: dict[str, Proposer] = {"random search": search_randomly, "regularised evolution": evolve}


@dataclass(frozen=True)
class Result:
    """The best architecture of one side, after the final stage."""

    validation: float  # mean of the new seeds
    test: float
    num_parameters: int
    seconds: float  # of the search
    scores: tuple[float, ...]  # of all successful evaluations of the search


def search(options: Sequence[str], folder: Path) -> Result:
    """Run the product's own search."""
    trainer = GFNTrainer(load_config("mnist1d_large", [*options, f"log_dir={folder}"]))
    trainer.run()
    (best, *_) = json.loads((folder / TOP_NAME).read_text(encoding="utf-8"))
    with EvaluationStore(folder / STORE_NAME, context=context_of(trainer.task)) as store:
        scores = tuple(record.score for record in store.top(sys.maxsize))
    final = best["final"]
    return Result(final["mean"], best["test_score"], best["num_parameters"], trainer.progress.seconds, scores)


def run_baseline(proposer: Proposer, options: Sequence[str], folder: Path) -> Result:
    """Evaluate the architectures of a baseline until the budget is spent, and run the final stage."""
    trainer = GFNTrainer(load_config("mnist1d_large", options))
    folder.mkdir()
    with (
        EvaluationStore(folder / STORE_NAME, context=context_of(trainer.task)) as store,
        trainer.build_executor() as executor,
    ):
        start = perf_counter()
        dispatcher = trainer.build_evaluator(store, executor, num_evaluated=0)
        with suppress(EvaluationStoppedError):
            config = trainer.config
            proposer(trainer.env, dispatcher, seed=config.seed, num_evaluations=config.budget.evaluations)
        dispatcher.close()
        seconds = perf_counter() - start
        scores = tuple(record.score for record in store.top(sys.maxsize))
        stage = final_stage(trainer, store, executor, stop=StopRequest(), report_line=print)
    assert stage is not None
    best = stage.top[0]
    assert best.test is not None
    return Result(best.mean, best.test, best.record.num_parameters or 0, seconds, scores)


def rows_of(name: str, result: Result, *, label: str, has_goal: bool) -> list[Row]:
    """Return the figures of one side."""
    goal, cap = (GOAL_TEST, MAX_PARAMETERS) if has_goal else (None, None)
    title = f"{label}, {name}"
    return [
        figure(f"{title}: evaluations", len(result.scores)),
        figure(f"{title}: search", result.seconds, "s"),
        figure(f"{title}: mean score", mean(result.scores)),
        figure(f"{title}: best score", max(result.scores)),
        figure(f"{title}: validation, new seeds", result.validation),
        at_least(f"{title}: test, new seeds", result.test, "", goal),
        at_most(f"{title}: parameters", result.num_parameters, "", cap),
    ]


def main() -> int:
    """Run the comparison and return the exit status."""
    numbers = {"evaluations": f"per side and seed, default {EVALUATIONS}", "seeds": f"default {NUM_SEEDS}"}
    arguments = parse_arguments(__doc__, numbers=numbers)
    num_evaluations = arguments.evaluations or (EVALUATIONS_QUICK if arguments.quick else EVALUATIONS)
    rows = []
    for seed in range(arguments.seeds or (1 if arguments.quick else NUM_SEEDS)):
        options = [*(QUICK if arguments.quick else ()), f"seed={seed}", *COMMON]
        options += [f"budget.evaluations={num_evaluations}"]
        with tempfile.TemporaryDirectory() as folder:
            results = {"search": search(options, Path(folder, "search"))}
            for name, proposer in BASELINES.items():
                results[name] = run_baseline(proposer, options, Path(folder, name))
        for name, result in results.items():
            has_goal = name == "search" and not arguments.quick
            rows += rows_of(name, result, label=f"seed {seed}", has_goal=has_goal)
    return finish(rows, json_path=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
