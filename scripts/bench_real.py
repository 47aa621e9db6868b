"""Compare the default search with random search, evolution and Optuna's TPE on five real problems.

    python scripts/bench_real.py [--front] [--only PROBLEM,...] [--seeds N] [--trainings N] [--jobs N] [--out FOLDER]
        [--quick] [--json FILE]

Every side trains the same number of candidates, final trainings included, and returns one model; its figure is the mean
test score of five more trainings on seeds that no side has used. With --front, accuracy and parameters are two
objectives: the figure is the hypervolume of the returned front, each network trained once more and measured on test
data; one more side is random search with three times the trainings. Sides of the product are runs that differ in
search.method, named on their command line, also `auto`; random search draws networks evenly over sizes
(search.random). TPE is Optuna's own loop over the decisions of a construction, with its defaults: its best trial, or
with --front its multi-objective sampler. A repeated command continues in --out, where each side's scores stay in the
order of its trainings.

Recorded spaces run where they are named (--only recorded_mnist1d,recorded_digits --seeds 20). No side enumerates them.
Of the trainings of a row, one judges, another one for each seed; the search sees the others. Without --front the other
sides get more trainings, `MULTIPLES`.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, redirect_stdout
from dataclasses import asdict, dataclass
from functools import cache
from itertools import count, pairwise, product
from pathlib import Path
from statistics import mean, stdev
from time import process_time
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from scipy.stats import t as student
from sklearn.datasets import load_digits
from torch import Tensor, nn

from gflownet.config import load_config
from gflownet.envs.slots import SlotEnv
from gflownet.evaluation.data.datasets import load_splits
from gflownet.evaluation.data.examples import Split
from gflownet.evaluation.evaluator import utilities_of
from gflownet.evaluation.job import TEST_METRIC, Request
from gflownet.evaluation.presentation import references_of
from gflownet.evaluation.statistics import hypervolume, non_dominated
from gflownet.evaluation.store.claims import NoStore
from gflownet.evaluation.store.database import STORE_NAME
from gflownet.evaluation.store.evaluations import EvaluationRecord, EvaluationStore
from gflownet.evaluation.store.fingerprint import context_of
from gflownet.files import write_whole
from gflownet.mdp.action import PAIR_TYPES, ActionBatch, GraphActionType
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates
from gflownet.report.architectures import TOP_NAME
from gflownet.run.trainer import GFNTrainer
from gflownet.search.loop import round_size
from gflownet.train import main as train
from scripts.bench import Row, at_least, figure, finish, parse_arguments

# Settings of the training script: the configuration of task=choices.
PLACES = {
    "depth": [1, 2, 3],
    "features": [4, 8, 12, 16],
    "kernel": [3, 5, 7, 9],
    "norm": ["none", "batch"],
    "activation": ["relu", "tanh", "gelu"],
    "optimizer": ["sgd", "adam"],
    "lr": [0.0003, 0.001, 0.003, 0.01, 0.03, 0.1],
    "batch": [25, 50, 100, 200],
    "dropout": [0.0, 0.1, 0.3],
}
# Settings of the module alone.
MODULE_PLACES = {name: PLACES[name] for name in ("depth", "features", "kernel", "norm", "activation", "dropout")}
_NUM_EPOCHS = 3
_SPLIT_SEED = 0
_ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}


def slant() -> tuple[np.ndarray, np.ndarray]:
    """Return handwritten digits [1797, 64] and their slants [1797]: the correlation of x and y, weighted by ink."""
    pixels = np.asarray(load_digits(return_X_y=True)[0])
    y, x = (places.ravel() - 3.5 for places in np.mgrid[:8, :8])
    ink = pixels / pixels.sum(1, keepdims=True)
    dx, dy = x - (ink @ x)[:, None], y - (ink @ y)[:, None]
    return pixels, (ink * dx * dy).sum(1) / np.sqrt((ink * dx**2).sum(1) * (ink * dy**2).sum(1))


def score(choices: Mapping[str, Any], seed: int) -> float:
    """Return the validation accuracy of a training on MNIST-1D."""
    return _accuracy(_trained(choices, seed), _signals()[1])


def test(choices: Mapping[str, Any], seed: int) -> float:
    """Return the test accuracy of a training on MNIST-1D."""
    return _accuracy(_trained(choices, seed), _signals()[2])


def _trained(choices: Mapping[str, Any], seed: int) -> nn.Module:
    torch.manual_seed(seed % 2**63)
    model, (inputs, targets) = module(choices), _signals()[0]
    optimizer: Any = torch.optim.Adam if choices["optimizer"] == "adam" else torch.optim.SGD
    momentum = {} if choices["optimizer"] == "adam" else {"momentum": 0.9}
    steps = optimizer(model.parameters(), lr=choices["lr"], **momentum)
    for _ in range(_NUM_EPOCHS):
        for rows in torch.randperm(len(targets)).split(choices["batch"]):
            steps.zero_grad()
            nn.functional.cross_entropy(model(inputs[rows]), targets[rows]).backward()
            steps.step()
    return model.eval()


def module(choices: Mapping[str, Any]) -> nn.Module:
    """Return the untrained network of some settings."""
    kernel, layers = choices["kernel"], []
    for sources, targets in pairwise([1, *[choices["features"]] * choices["depth"]]):
        layers.append(nn.Conv1d(sources, targets, kernel, stride=2, padding=kernel // 2))
        layers += [nn.BatchNorm1d(targets)] if choices["norm"] == "batch" else []
        layers.append(_ACTIVATIONS[choices["activation"]]())
    width = choices["features"] * -(-40 // 2 ** choices["depth"])
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(choices["dropout"]), nn.Linear(width, 10))


def _accuracy(model: nn.Module, examples: tuple[Tensor, Tensor]) -> float:
    inputs, targets = examples
    with torch.no_grad():
        return float((model(inputs).argmax(1) == targets).float().mean())


@cache
def _signals() -> list[tuple[Tensor, Tensor]]:
    """Return inputs [N, 1, 40] and classes [N] of training, validation and test."""
    splits = load_splits("mnist1d", key="task", seed=_SPLIT_SEED)
    return [(part.inputs, part.targets) for part in splits if isinstance(part, Split)]


NUM_TRAININGS, NUM_SEEDS, NUM_FRESH = 60, 4, 5
QUICK_TRAININGS, QUICK_SEEDS = 8, 1
SEARCHED, TPE, LONGER = "auto", "tpe", "random, 3 times"
SIDES = (SEARCHED, "random", "evolution", TPE)
FRONT_TRAININGS, FRONT_SEEDS = 100, 6
# The population of 50 would be the whole search.
EVOLUTION = ("search.options.population=15", "search.options.tournament=5")
COMMON = ("wandb.mode=disabled", "evaluation.executor=inline", "final.num_random=0", "print_every=1000")
FRESH_REPEAT = 2_000_000  # the seeds after it are those of no run
_HERE = "scripts.bench_real"
_TABLES = Path(__file__).resolve().parent.parent / "tests" / "data"
PROBLEMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "mnist1d": (
        "mnist1d",
        (
            *("evaluation.objectives=[]", "evaluation.floor_score=0.5", "cond.limit.metric=null"),
            *("cond.temperature.dist_params=[256]", "env.operation_graph.max_parameters=2500", "final.caps=[]"),
        ),
    ),
    "images": ("images", ("env.operation_graph.max_parameters=1000", "evaluation.num_epochs=3", "final.epochs=null")),
    "regression": (
        "table",
        (f"task_options.data={_HERE}:slant", "evaluation.num_epochs=2", "evaluation.batch_size=32"),
    ),
    "classification": ("table", ("task_options.data=digits", "evaluation.num_epochs=2", "evaluation.batch_size=32")),
    "choices": (
        "choices",
        (
            f"task_options.score={_HERE}:score",
            f"task_options.test={_HERE}:test",
            f"env.choices.places={json.dumps(PLACES)}",
        ),
    ),
}
# The same for a front of quality and parameters, with the parameters of utility 1/2. `choices` builds a module there.
_FRONT = (
    *("final.top=0", "search.train_sampler=false", "evaluation.floor_score=0.05"),
    "cond.temperature.dist_params=[32]",
)
QUALITY = {"regression": "r2", "recorded_mnist1d": "score", "recorded_digits": "score"}
TARGETS = {"recorded_mnist1d": 400}
BUILT = (
    *(f"task_options.build={_HERE}:module", "task_options.data=mnist1d", "evaluation.num_epochs=3"),
    *("evaluation.batch_size=100", f"env.choices.places={json.dumps(MODULE_PLACES)}"),
)
# Trainings are looked up: problems that run only when they are named, with the columns of their single trainings.
RECORDED = {"recorded_mnist1d": 3, "recorded_digits": 2}
_LOOKED_UP = ("search.train_sampler=false", "report.every=null")
# Trainings of each side on a recorded space, in those of the searched side.
MULTIPLES = {"random": 3.0, "evolution": 1.5, TPE: 1.5}


def problem_of(name: str, seed: int, *, is_front: bool) -> tuple[str, list[str]]:
    """Return the config of a problem and its options, the same for all sides of a seed."""
    if name in RECORDED:
        num, judge = RECORDED[name], f"score_seed{seed % RECORDED[name]}"
        seen = [column for column in (f"score_seed{number}" for number in range(num)) if column != judge]
        config, options = name, (f"task_options.table={_TABLES / name}.csv.gz", *_LOOKED_UP)
        options = (*options, f"task_options.seed_columns={json.dumps(seen)}", f"task_options.test_column={judge}")
    else:
        config, options = PROBLEMS[name]
    if is_front:
        objectives = f"evaluation.objectives=[{QUALITY.get(name, 'accuracy')},parameters]"
        target = f"evaluation.target_parameters={TARGETS.get(name, 1_000)}"
        options = (*(BUILT if name == "choices" else options), *_FRONT, objectives, target)
    return config, [*options, *COMMON, f"seed={seed}"]


@dataclass(frozen=True)
class Result:
    """What one side found with one seed."""

    fresh: list[float]  # test scores of the returned model, or the hypervolume of the returned front
    scores: list[float]  # of the trainings of the search, in order
    num_trainings: int
    cpu_seconds: float
    num_epochs: float = 0.0  # of all trainings, where they have epochs


def result_of(
    problem: str, side: str, seed: int, num_trainings: int, *, is_front: bool, options: Sequence[str] = ()
) -> Result:
    """Let one side search, with some more options."""
    config, overrides = problem_of(problem, seed, is_front=is_front)
    overrides += options
    start = process_time()
    with tempfile.TemporaryDirectory() as folder:
        overrides.append(f"log_dir={folder}/run")
        components = GFNTrainer(load_config(config, overrides))
        if side == TPE:
            graphs, rows = _optuna(components, num_trainings, seed)
        else:
            method = [f"search.method={side.partition(',')[0]}", f"budget.evaluations={num_trainings}"]
            method += EVOLUTION if side == "evolution" else ()
            if side == SEARCHED and problem in RECORDED:  # as for trainings
                size = round_size(num_trainings, places=1)
                method += [f"search.batch_size={size}", f"search.width={2 * size}"]
            if status := train(["--config", config, *overrides, *method]):
                raise SystemExit(status)
            with EvaluationStore(Path(folder, "run", STORE_NAME), context=context_of(components.task)) as store:
                rows = list(store)
            best, *_ = json.loads(Path(folder, "run", TOP_NAME).read_text())
            found = [json.loads(row.graph) for row in rows] if is_front else [best["graph"]]
            graphs = [components.env.terminal_type.from_dict(graph) for graph in found]
        seconds = process_time() - start
        if is_front:
            fresh = [front_volume(components, graphs, rows)]
        else:
            fresh = [tested(row) for row in trained(components, graphs[:1], NUM_FRESH)]
    num_epochs = sum(row.metrics.get("epochs", components.task.max_fidelity) for row in rows)
    return Result(fresh, [row.score for row in rows if not row.seed], len(rows), seconds, num_epochs)


def construct(env: Environment, choose: Callable[[str, int], int]) -> GraphStates:
    """Return one terminal state: kind, row and column of each action are chosen where several are legal.

    Args:
        env: of the state; named places are set in their order.
        choose: name, number of choices -> a choice; an illegal one is replaced by the next legal one, cyclically.
    """
    state, kinds = env.initial_states(1), env.forward_types
    has_places = isinstance(env, SlotEnv) and not env.vocabulary.node_attributes[0].counted
    for step in count():
        legal = env.forward_masks(state).positions()[1].parts
        actions, label = list(zip(*(part.tolist() for part in legal), strict=True)), f"step {step}"
        if has_places and (places := [row for kind, row, _ in actions if kind != GraphActionType.Stop]):
            actions = [each for each in actions if each[1] == min(places) or each[0] == GraphActionType.Stop]
            label = env.vocabulary.node_types[min(places)]
        kind = kinds[_legal(choose, f"{label}: kind", len(kinds), {kinds.index(each) for each, _, _ in actions})]
        num_rows = env.vocabulary.max_nodes ** (2 if kind in PAIR_TYPES else 1)
        row = _legal(choose, f"{label}: {kind.name} row", num_rows, {each[1] for each in actions if each[0] == kind})
        columns = {each[2] for each in actions if each[:2] == (kind, row)}
        column = _legal(choose, f"{label}: {kind.name} column", env.vocabulary.num_columns(kind), columns)
        if kind == GraphActionType.Stop:
            break
        state = env.apply(state, ActionBatch(*(torch.tensor([value]) for value in (int(kind), row, column))))
    return state


def _legal(choose: Callable[[str, int], int], name: str, num: int, legal: set[int]) -> int:
    choice = choose(name, num) if len(legal) > 1 else 0
    return min(legal, key=lambda each: (each < choice, each))


def _optuna(components: GFNTrainer, num_trainings: int, seed: int) -> tuple[list[Any], list[EvaluationRecord]]:
    """Return the candidates of Optuna's loop and their rows, those of its best trial first."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    candidates, rows, task = [], [], components.task

    def objective(trial: Any) -> Any:
        state = construct(components.env, lambda name, size: trial.suggest_categorical(name, range(size)))
        candidates.append(components.env.terminal(state, 0))
        rows.extend(trained(components, candidates[-1:], first=0))
        return utilities_of(rows[-1], task=task) or rows[-1].score

    directions: Any = ["maximize"] * max(len(task.chosen_objectives), 1)
    study = optuna.create_study(directions=directions, sampler=optuna.samplers.TPESampler(seed=seed))
    study.optimize(objective, n_trials=num_trainings)
    order = sorted(range(num_trainings), key=lambda number: number != study.best_trials[0].number)
    return [candidates[number] for number in order], [rows[number] for number in order]


def front_volume(components: GFNTrainer, graphs: Sequence[Any], rows: Sequence[EvaluationRecord]) -> float:
    """Return the hypervolume of the front of some trainings, each of its networks trained again and tested."""
    task = components.task
    is_on_front = non_dominated(np.array([utilities_of(row, task=task) for row in rows]))
    front = [graph for graph, is_best in zip(graphs, is_on_front, strict=True) if is_best]
    again = trained(components, front)
    return hypervolume(np.array([[tested(row), *utilities_of(row, task=task)[1:]] for row in again]))


def trained(components: GFNTrainer, graphs: Sequence[Any], num: int = 1, *, first: int = FRESH_REPEAT) -> list[Any]:
    """Return the rows of new trainings of each candidate, with test scores."""
    requests = [Request(graph, repeat=first + number, tests=True) for graph in graphs for number in range(num)]
    with components.build_executor() as executor, closing(components.build_evaluator(NoStore(), executor)) as each:
        return [future.record for future in each.complete(requests, step=0)]


def tested(row: EvaluationRecord) -> float:
    """Return the test score of a training, 0 where it failed."""
    return max(row.metrics.get(TEST_METRIC, 0.0), 0.0)


def rows_of(
    problem: str, results: Mapping[str, Sequence[Result]], *, has_goals: bool, is_front: bool = False
) -> Iterator[Row]:
    """Yield the means of what is returned and of the gains of the searched side, with intervals of 95 %."""
    means = {side: [mean(result.fresh) for result in each] for side, each in results.items()}
    for side, values in means.items():
        low, high = interval_of(values)
        yield figure(f"{problem}: {side} [{low:.4f}, {high:.4f}]", mean(values), "hypervolume" if is_front else "test")
        yield figure(f"{problem}: {side}, CPU seconds", mean(each.cpu_seconds for each in results[side]), "s")
        num_most = max(each.num_trainings for each in results[side])
        yield figure(f"{problem}: {side}, trainings", num_most)
    for other in (side for side in means if side != SEARCHED and SEARCHED in means):
        goal = "" if other == LONGER or not has_goals else "interval > 0" if is_front else ">= 0"
        yield gain_row(f"{problem}: above {other}", means[SEARCHED], means[other], goal)


def reference_rows(problem: str) -> Iterator[Row]:
    """Yield the mean test score of each standard method that a run of the problem compares with, on the same splits."""
    config, overrides = problem_of(problem, 0, is_front=False)
    with tempfile.TemporaryDirectory() as folder:
        task = GFNTrainer(load_config(config, [*overrides, f"log_dir={folder}/run"])).task
    for reference in references_of(task, seeds=range(FRESH_REPEAT, FRESH_REPEAT + NUM_FRESH)):
        yield figure(f"{problem}: {reference.name}", mean(reference.test or [0.0]), "test")


def front_rows(rows: Sequence[Row], num_problems: int) -> Iterator[Row]:
    """Yield how many problems have all intervals above 0, if there are enough problems for the goal."""
    failed = {row.name.partition(":")[0] for row in rows if row.goal and not row.holds}
    if num_problems >= len(PROBLEMS):
        yield at_least("problems with all intervals above 0", num_problems - len(failed), "", len(PROBLEMS) - 1)


def trainings_of(problem: str, side: str, num: int, *, is_front: bool = False) -> int:
    """Return the trainings of a side where the searched one has `num`."""
    if is_front:
        return 3 * num if side == LONGER else num
    return round(num * MULTIPLES.get(side, 1.0)) if problem in RECORDED else num


def interval_of(values: Sequence[float]) -> tuple[float, float]:
    """Return the interval of 95 % of a mean."""
    half = student.ppf(0.975, len(values) - 1) * stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return float(mean(values) - half), float(mean(values) + half)


def gain_row(name: str, values: Sequence[float], others: Sequence[float], goal: str) -> Row:
    """Return the mean of paired differences and its interval; goal: empty or as in `holds`."""
    low, high = interval_of([a - b for a, b in zip(values, others, strict=True)])
    gain = (low + high) / 2
    holds = {"": True, ">= 0": gain >= 0, "interval > 0": low > 0, "interval not below 0": high >= 0}
    return Row(f"{name} [{low:+.4f}, {high:+.4f}]", gain, "", goal, holds[goal])


def _job(path: Path, problem: str, side: str, seed: int, num_trainings: int, is_front: bool) -> None:
    """Write the result of one side, unless it is there."""
    if not path.exists():
        with redirect_stdout(io.StringIO()):
            result = result_of(problem, side, seed, num_trainings, is_front=is_front)
        write_whole(path, json.dumps(asdict(result), indent=1))
        print(f"{problem}, {side}, seed {seed}: {mean(result.fresh):.4f}, {result.cpu_seconds:.0f} CPU s", flush=True)


def main() -> int:
    """Run the comparison and return the exit status."""
    arguments = parse_arguments(
        __doc__,
        texts={"only": f"of {', '.join(PROBLEMS)} (default: all), {', '.join(RECORDED)}"},
        numbers={
            "seeds": f"default: {NUM_SEEDS}, with --front {FRONT_SEEDS}",
            "trainings": f"default: {NUM_TRAININGS}, with --front {FRONT_TRAININGS}",
            "jobs": "sides at the same time; default: 2",
        },
        paths={"out": "folder of results that stay"},
        front="two objectives: accuracy and parameters",
    )
    chosen = arguments.only.split(",") if arguments.only else PROBLEMS
    names = [name for name in (*PROBLEMS, *RECORDED) if name in chosen]
    names = names[-1:] if arguments.quick and not arguments.only else names
    is_front, sides = arguments.front, (*SIDES, LONGER) if arguments.front else SIDES
    defaults = (FRONT_TRAININGS, FRONT_SEEDS) if is_front else (NUM_TRAININGS, NUM_SEEDS)
    num_trainings = QUICK_TRAININGS if arguments.quick else arguments.trainings or defaults[0]
    seeds = range(QUICK_SEEDS if arguments.quick else arguments.seeds or defaults[1])
    with tempfile.TemporaryDirectory() as temporary:
        out = arguments.out or Path(temporary)
        out.mkdir(parents=True, exist_ok=True)
        keys = list(product(names, sides, seeds))
        nums = {key: trainings_of(*key[:2], num_trainings, is_front=is_front) for key in keys}
        jobs = {key: out / "_".join(map(str, (*key, num, *["front"] * is_front))) for key, num in nums.items()}
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(arguments.jobs or 2, context, torch.set_num_threads, (1,)) as pool:
            futures = [pool.submit(_job, path, *key, nums[key], is_front) for key, path in jobs.items()]
            for future in futures:
                future.result()
        found = {key: Result(**json.loads(path.read_text())) for key, path in jobs.items()}
    rows: list[Row] = []
    for name in names:
        results = {side: [found[name, side, seed] for seed in seeds] for side in sides}
        rows += rows_of(name, results, has_goals=not arguments.quick, is_front=is_front)
        rows += () if is_front else reference_rows(name)
    if is_front:
        rows += front_rows(rows, len(names))
    return finish(rows, json_path=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
