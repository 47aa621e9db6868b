"""Measure translated models against hand-written PyTorch, the construction of models, and joint training.

    python scripts/bench_translation.py [--quick] [--json FILE]

Both sides of a ratio run in turn within one run, on copied weights, after their outputs were compared; figures are
medians over the rounds. One thread, CPU time.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.translation import DirectTraining, TranslatedModel, clear_translation_cache, to_pytorch_model
from scripts.bench import Row, at_most, cpu_seconds, finish, interleaved, median_ratio, parse_arguments
from scripts.bench_candidates import sample_architectures

MLP_SIZES = (64, 128, 127, 10)
DAG_WIDTH = 32
# Sources and activation of every node. Each reads the node before it (so that all are live) and an earlier one.
SECOND_SOURCES = (0, 1, 0, 2, 3, 1, 4, 6, 5, 2, 8, 7, 3, 12, 9, 10, 11, 16)
ACTIVATIONS = "tanh gelu relu gelu tanh relu tanh relu gelu tanh relu gelu relu tanh gelu relu tanh relu"
DAG: list[tuple[tuple[int, ...], str]] = [((), "linear"), ((0,), "relu")]
DAG += [
    ((node, second), name)
    for node, (second, name) in enumerate(zip(SECOND_SOURCES, ACTIVATIONS.split(), strict=True), 1)
]
NUM_CANDIDATES = 16
PROJECTED = {"projection": "always"}  # as the search tasks
CALLS_PER_ROUND = 20


def main() -> int:
    """Run the benchmark and return the exit status."""
    options = parse_arguments(__doc__)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rounds = 15 if options.quick else 100
    rows = [*mlp_rows(rounds), *dag_rows(rounds), *construction_rows(rounds), *together_rows(max(rounds // 3, 5))]
    return finish(rows, json_path=options.json)


def mlp_rows(rounds: int) -> list[Row]:
    """Return the time of the MLP over the time of an equal nn.Sequential."""
    layers: list[nn.Module] = []
    for before, after in pairwise(MLP_SIZES):
        layers += [nn.Linear(before, after), nn.ReLU()]
    model = to_pytorch_model(mlp_graph(MLP_SIZES))
    sequential = _copied_layers(model, nn.Sequential(*layers[:-1]))
    return _forward_and_training("MLP 64-128-127-10 / nn.Sequential", model, sequential, (32, 256), 1.10, rounds)


def dag_rows(rounds: int) -> list[Row]:
    """Return the time of the DAG, with a matrix or a scalar per edge, over hand-written modules."""
    rows = []
    for name, config, by_hand in (
        ("DAG of 20 live nodes, matrices / by hand, fused", PROJECTED, HandWrittenDag()),
        ("DAG of 20 live nodes, scalars / by hand", {}, HandWrittenScalarDag()),
    ):
        model = to_pytorch_model(dag_graph(), config)
        assert len(model.plan.live_neurons) == len(DAG) - 1
        by_hand.copy_weights(model)
        rows += _forward_and_training(name, model, by_hand, (32, 256), 1.05, rounds)
    return [*rows, _dag_training_row(rounds)]


def _dag_training_row(rounds: int) -> Row:
    """Return the time of a training step of the search over one of the hand-written module, both with fused Adam."""
    x, targets = torch.randn(1, 32, DAG_WIDTH), torch.randint(0, DAG_WIDTH, (1, 32))
    by_hand = HandWrittenDag()
    model = to_pytorch_model(dag_graph(), PROJECTED)
    by_hand.copy_weights(model)
    ratio = _ratio(
        _direct_step([model], x, targets), _training_step(by_hand, x[0], targets[0]), rounds, CALLS_PER_ROUND
    )
    name = "DAG of 20 live nodes, matrices, training step by DirectTraining / by hand, fused, batch 32"
    return at_most(name, ratio, "x", 1.0)


def construction_rows(rounds: int) -> list[Row]:
    """Return the time of to_pytorch_model for the DAG, with an empty and a filled cache."""
    graph = dag_graph()

    def cold() -> None:
        clear_translation_cache()
        to_pytorch_model(graph)

    sides = {"cold": partial(cpu_seconds, cold), "warm": partial(cpu_seconds, lambda: to_pytorch_model(graph))}
    values = [1000 * median(times) for times in interleaved(sides, rounds=5 * rounds).values()]
    return [
        Row("construction of 20 nodes, cold cache", values[0], "ms", "< 1", values[0] < 1),
        Row("construction of 20 nodes, warm cache", values[1], "ms", "< 0.3", values[1] < 0.3),
    ]


def together_rows(rounds: int) -> list[Row]:
    """Return the time of 16 training steps one by one over one joint step, all with fused Adam."""
    same = [mlp_graph((64, 32, 16, 10))] * NUM_CANDIDATES
    different = sample_architectures(NUM_CANDIDATES)[1]
    rows = []
    for name, graphs, batch, goal in (
        ("16 MLPs of one topology, direct", same, 32, 2.0),
        ("16 random graphs of the digits space, direct", different, 32, 2.0),
        ("16 random graphs of the digits space, direct", different, 64, 2.0),
    ):
        x, targets = torch.rand(NUM_CANDIDATES, batch, 64), torch.randint(0, 10, (NUM_CANDIDATES, batch))
        models = [to_pytorch_model(graph, PROJECTED) for graph in graphs]
        steps = [_training_step(model, rows, labels) for model, rows, labels in zip(models, x, targets, strict=True)]
        together = _direct_step([to_pytorch_model(graph, PROJECTED) for graph in graphs], x, targets)
        ratio = _ratio(lambda steps=steps: [step() for step in steps], together, rounds, 3)
        rows.append(Row(f"{name}, batch {batch}", ratio, "x", f">= {goal:g}", ratio >= goal))
    return rows


def mlp_graph(sizes: Sequence[int]) -> ComputationGraph:
    """Return a chain of layers with relu between them."""
    graph = ComputationGraph()
    for node_id, size in enumerate(sizes):
        kind = "input" if node_id == 0 else "output" if node_id == len(sizes) - 1 else "hidden"
        graph.add_node(node_id, kind, output_size=size, activation_function="relu" if kind == "hidden" else "linear")
        if node_id:
            graph.add_edge(node_id - 1, node_id)
    return graph


def dag_graph() -> ComputationGraph:
    """Return the DAG as a graph; all nodes have one width and sum their inputs."""
    graph = ComputationGraph()
    for node_id, (sources, activation) in enumerate(DAG):
        kind = "input" if node_id == 0 else "output" if node_id == len(DAG) - 1 else "hidden"
        graph.add_node(node_id, kind, output_size=DAG_WIDTH, activation_function=activation)
        for source in sources:
            graph.add_edge(source, node_id, weight=1.0 + 0.01 * node_id)
    return graph


class HandWrittenDag(nn.Module):
    """The DAG with a matrix per edge as an expert writes it: one linear layer per node over concatenated inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(DAG_WIDTH * len(sources), DAG_WIDTH) for sources, _ in DAG[1:])

    def forward(self, x: Tensor) -> Tensor:
        """Return the output [B, 32] of rows [B, 32]."""
        n1, n2, n3, n4, n5, n6, n7, n8, n9, n10, n11, n12, n13, n14, n15, n16, n17, n18, n19 = self.layers
        x1 = F.relu(n1(x))
        x2 = F.tanh(n2(torch.cat((x1, x), 1)))
        x3 = F.gelu(n3(torch.cat((x2, x1), 1)))
        x4 = F.relu(n4(torch.cat((x3, x), 1)))
        x5 = F.gelu(n5(torch.cat((x4, x2), 1)))
        x6 = F.tanh(n6(torch.cat((x5, x3), 1)))
        x7 = F.relu(n7(torch.cat((x6, x1), 1)))
        x8 = F.tanh(n8(torch.cat((x7, x4), 1)))
        x9 = F.relu(n9(torch.cat((x8, x6), 1)))
        x10 = F.gelu(n10(torch.cat((x9, x5), 1)))
        x11 = F.tanh(n11(torch.cat((x10, x2), 1)))
        x12 = F.relu(n12(torch.cat((x11, x8), 1)))
        x13 = F.gelu(n13(torch.cat((x12, x7), 1)))
        x14 = F.relu(n14(torch.cat((x13, x3), 1)))
        x15 = F.tanh(n15(torch.cat((x14, x12), 1)))
        x16 = F.gelu(n16(torch.cat((x15, x9), 1)))
        x17 = F.relu(n17(torch.cat((x16, x10), 1)))
        x18 = F.tanh(n18(torch.cat((x17, x11), 1)))
        return F.relu(n19(torch.cat((x18, x16), 1)))

    def copy_weights(self, model: TranslatedModel) -> None:
        """Copy the products of the model's matrices and edge weights, concatenated per node."""
        with torch.no_grad():
            for node, layer in zip(model.plan.neurons, self.layers, strict=True):
                matrices = [
                    model.get_parameter(node.named("proj.weight", edge))
                    * model.get_parameter(node.named("weight", edge))
                    for edge in sorted(node.edges, key=lambda edge: -edge.source)
                ]
                assert isinstance(layer, nn.Linear)
                layer.weight.copy_(torch.cat(matrices, 1))
                layer.bias.fill_(model.get_parameter(f"bias_{node.node_id}").item())


class HandWrittenScalarDag(nn.Module):
    """The DAG with a scalar per edge as an expert writes it: all scalars in two vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.ones(sum(len(sources) for sources, _ in DAG)))
        self.biases = nn.Parameter(torch.zeros(len(DAG) - 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return the output [B, 32] of rows [B, 32]."""
        w, b, outputs = iter(self.weights.unbind()), self.biases.unbind(), [x]
        for (sources, activation), total in zip(DAG[1:], b, strict=True):
            for source in sources:
                total = torch.addcmul(total, outputs[source], next(w))
            outputs.append(getattr(F, activation)(total))
        return outputs[-1]

    def copy_weights(self, model: TranslatedModel) -> None:
        """Copy the model's scalars."""
        values: list[Tensor] = [
            model.get_parameter(f"weight_{s}_{node}") for node, (sources, _) in enumerate(DAG) for s in sources
        ]
        with torch.no_grad():
            self.weights.copy_(torch.stack(values))
            biases: list[Tensor] = [model.get_parameter(f"bias_{node}") for node in range(1, len(DAG))]
            self.biases.copy_(torch.stack(biases))


def _copied_layers(model: TranslatedModel, layers: nn.Sequential) -> nn.Sequential:
    """Copy the products of the chain's matrices and edge weights into the layers and return them."""
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    with torch.no_grad():
        for node, layer in zip(model.plan.neurons, linear, strict=True):
            (edge,) = node.edges
            matrix = model.get_parameter(node.named("proj.weight", edge))
            layer.weight.copy_(matrix * model.get_parameter(node.named("weight", edge)))
            layer.bias.fill_(model.get_parameter(f"bias_{node.node_id}").item())
    return layers


def _forward_and_training(
    name: str, model: TranslatedModel, other: nn.Module, batches: tuple[int, ...], goal: float, rounds: int
) -> list[Row]:
    rows = []
    for batch in batches:
        x = torch.randn(batch, model.plan.input_size)
        torch.testing.assert_close(model(x), other(x))
        for kind, make in (("forward", _forward), ("forward+backward", _backward)):
            ratio = _ratio(make(model, x), make(other, x), rounds, CALLS_PER_ROUND)
            rows.append(at_most(f"{name}, {kind}, batch {batch}", ratio, "x", goal))
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
    """Return the time of `first` over the time of `second`, the median of rounds measured in turn."""
    times = interleaved({side: partial(cpu_seconds, side, calls) for side in (first, second)}, rounds=rounds, warm_up=2)
    return median_ratio(times[first], times[second])


if __name__ == "__main__":
    sys.exit(main())
