"""Times translated models against hand-written PyTorch, construction, and training many at once.

    python scripts/bench_translation.py [--quick] [--json FILE]

Both sides of a ratio run in turn within one run; the figure is the median over the rounds. One CPU thread, and its
own CPU time, so that other processes disturb less.
"""

import random
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from time import thread_time

import torch
import torch.nn.functional as F
from bench import Row, finish, parse_arguments
from torch import Tensor, nn

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.translation import (
    DirectTraining,
    StackedModel,
    TranslatedModel,
    clear_translation_cache,
    to_pytorch_model,
    to_source,
)

MLP_SIZES = (64, 128, 127, 10)
DAG_NODES, DAG_WIDTH = 20, 32
NUM_CANDIDATES = 16
PROJECTED = {"projection": "always"}  # as the search tasks
CALLS_PER_ROUND = 20


def main() -> int:
    """Runs the benchmark and returns 1 when a goal is missed."""
    options = parse_arguments(__doc__)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rounds = 15 if options.quick else 100
    rows = [*mlp_rows(rounds), *dag_rows(rounds), *construction_rows(rounds), *together_rows(max(rounds // 3, 5))]
    return finish(rows, json_path=options.json)


def mlp_rows(rounds: int) -> list[Row]:
    """The MLP against the equal nn.Sequential."""
    layers: list[nn.Module] = []
    for before, after in pairwise(MLP_SIZES):
        layers += [nn.Linear(before, after), nn.ReLU()]
    sequential, model = nn.Sequential(*layers[:-1]), to_pytorch_model(mlp_graph(MLP_SIZES))
    return _forward_and_training("MLP 64-128-127-10 / nn.Sequential", model, sequential, (32, 256), 1.10, rounds)


def dag_rows(rounds: int) -> list[Row]:
    """A 20-node DAG against the same formulas as a plain module: the text of to_source."""
    graph = dag_graph(DAG_NODES, DAG_WIDTH)
    namespace: dict[str, type[nn.Module]] = {}
    exec(to_source(graph), namespace)
    return _forward_and_training(
        "DAG of 20 nodes / hand-written", to_pytorch_model(graph), namespace["Model"](), (32,), 1.05, rounds
    )


def construction_rows(rounds: int) -> list[Row]:
    """to_pytorch_model of the 20-node DAG, the cache empty and filled."""
    graph = dag_graph(DAG_NODES, DAG_WIDTH)

    def cold() -> None:
        clear_translation_cache()
        to_pytorch_model(graph)

    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        times[0].extend(_seconds(cold, 5))
        times[1].extend(_seconds(lambda: to_pytorch_model(graph), 5))
    values = [1000 * median(side) for side in times]
    return [
        Row("construction of 20 nodes, cold cache", values[0], "ms", "< 1", values[0] < 1),
        Row("construction of 20 nodes, warm cache", values[1], "ms", "< 0.3", values[1] < 0.3),
    ]


def together_rows(rounds: int) -> list[Row]:
    """16 candidates trained at once against one by one, all with fused Adam."""
    same = [mlp_graph((64, 32, 16, 10))] * NUM_CANDIDATES
    rng = random.Random(0)
    different = [digits_graph(rng) for _ in range(NUM_CANDIDATES)]
    rows = []
    for name, graphs, batch, goal in (
        ("16 MLPs of one topology, stacked", same, 32, 5.0),
        ("16 MLPs of one topology, direct", same, 32, 2.0),
        ("16 random graphs of the digits space, direct", different, 32, 2.0),
        ("16 random graphs of the digits space, direct", different, 64, 2.0),
    ):
        x, targets = torch.rand(NUM_CANDIDATES, batch, 64), torch.randint(0, 10, (NUM_CANDIDATES, batch))
        models = [to_pytorch_model(graph, PROJECTED) for graph in graphs]
        steps = [_training_step(model, rows, labels) for model, rows, labels in zip(models, x, targets, strict=True)]
        if name.endswith("stacked"):
            stack = StackedModel(graphs, list(range(NUM_CANDIDATES)), config=PROJECTED)
            together = _training_step(stack, x, targets.flatten())
        else:
            together = _direct_step([to_pytorch_model(graph, PROJECTED) for graph in graphs], x, targets)
        ratio = _ratio(lambda steps=steps: [step() for step in steps], together, rounds, 3)
        rows.append(Row(f"{name}, batch {batch}", ratio, "x", f">= {goal:g}", ratio >= goal))
    return rows


def mlp_graph(sizes: Sequence[int]) -> ComputationGraph:
    """A chain with relu between."""
    graph = ComputationGraph()
    for node_id, size in enumerate(sizes):
        kind = "input" if node_id == 0 else "output" if node_id == len(sizes) - 1 else "hidden"
        graph.add_node(node_id, kind, output_size=size, activation_function="relu" if kind == "hidden" else "linear")
        if node_id:
            graph.add_edge(node_id - 1, node_id)
    return graph


def dag_graph(num_nodes: int, width: int) -> ComputationGraph:
    """Every node sums two random earlier ones."""
    rng, graph = random.Random(0), ComputationGraph()
    for node_id in range(num_nodes):
        kind = "input" if node_id == 0 else "output" if node_id == num_nodes - 1 else "hidden"
        activation = "linear" if kind == "input" else rng.choice(("relu", "tanh", "gelu"))
        graph.add_node(node_id, kind, output_size=width, activation_function=activation)
        for source in rng.sample(range(node_id), min(node_id, 2)):
            graph.add_edge(source, node_id)
    return graph


def digits_graph(rng: random.Random) -> ComputationGraph:
    """A random graph of the default digits search: 1-6 hidden nodes, at most 14 edges, no dead node."""
    graph, num_hidden = ComputationGraph(), rng.randint(1, 6)
    graph.add_node(0, "input", output_size=64)
    for node_id in range(1, num_hidden + 1):
        graph.add_node(
            node_id,
            "hidden",
            output_size=rng.choice((4, 8, 16, 32, 64)),
            activation_function=rng.choice(("relu", "tanh", "sigmoid", "gelu", "linear")),
            attributes={"aggregation": rng.choice(("sum", "mean", "max", "concat"))},
        )
    last = num_hidden + 1
    graph.add_node(last, "output", output_size=10)
    pairs = {(rng.randrange(node_id), node_id) for node_id in range(1, last + 1)}
    for node_id in range(1, last):
        if all(source != node_id for source, _ in pairs):
            pairs.add((node_id, rng.randint(node_id + 1, last)))
    others = [(a, b) for b in range(1, last + 1) for a in range(b) if (a, b) not in pairs]
    rng.shuffle(others)
    for source, target in sorted([*pairs, *others[: max(rng.randint(len(pairs), 14) - len(pairs), 0)]]):
        graph.add_edge(source, target)
    return graph


def _forward_and_training(
    name: str, model: TranslatedModel, other: nn.Module, batches: tuple[int, ...], goal: float, rounds: int
) -> list[Row]:
    rows = []
    for batch in batches:
        x = torch.randn(batch, model.plan.input_size)
        for kind, make in (("forward", _forward), ("forward+backward", _backward)):
            ratio = _ratio(make(model, x), make(other, x), rounds, CALLS_PER_ROUND)
            rows.append(Row(f"{name}, {kind}, batch {batch}", ratio, "x", f"<= {goal}", ratio <= goal))
    return rows


def _forward(model: nn.Module, x: Tensor) -> Callable[[], object]:
    return lambda: model(x)


def _backward(model: nn.Module, x: Tensor) -> Callable[[], object]:
    def run() -> None:
        model.zero_grad(set_to_none=True)  # as in every training step
        model(x).sum().backward()

    return run


def _training_step(model: nn.Module, x: Tensor, targets: Tensor) -> Callable[[], object]:
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)

    def run() -> None:
        optimiser.zero_grad(set_to_none=True)
        logits = model(x)
        F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets, reduction="sum").div(x.shape[-2]).backward()
        optimiser.step()

    return run


def _direct_step(models: list[TranslatedModel], x: Tensor, targets: Tensor) -> Callable[[], object]:
    training = DirectTraining(models)
    optimiser = torch.optim.Adam([training.parameter], lr=0.01, fused=True)
    inputs, labels = list(x), list(targets)

    def run() -> None:
        training.backward(inputs, labels)
        optimiser.step()

    return run


def _ratio(first: Callable[[], object], second: Callable[[], object], rounds: int, calls: int) -> float:
    """The median over rounds of the time of `first` over that of `second`, measured in turn."""
    ratios = []
    for number in range(rounds + 2):
        sides = (first, second) if number % 2 else (second, first)
        times = {side: sum(_seconds(side, calls)) for side in sides}
        ratios.append(times[first] / times[second])
    return median(ratios[2:])  # the first two warm the caches


def _seconds(function: Callable[[], object], calls: int) -> list[float]:
    seconds = []
    for _ in range(calls):
        start = thread_time()
        function()
        seconds.append(thread_time() - start)
    return seconds


if __name__ == "__main__":
    sys.exit(main())
