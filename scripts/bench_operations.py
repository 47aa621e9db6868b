"""Measure translated operation graphs against the original modules: published networks with copied weights.

    python scripts/bench_operations.py [--quick] [--json FILE]

The graph files of tests/known_networks/ against package transformers and torch.nn, on small images and short
sequences. Both sides run in turn within one run, after their outputs were compared; a figure is the ratio of the
fastest rounds. Evaluation mode, one thread, CPU time. The last rows are the times of a translation.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor, nn

from gflownet.translation import clear_translation_cache, copy_weights, to_pytorch_model
from scripts.bench import Row, at_most, cpu_seconds, figure, finish, interleaved, parse_arguments, skip
from tests.known_networks.references import KNOWN_NETWORKS, KnownNetwork

GOAL = 1.05
# Height and width, or number of tokens; batch size; calls per round.
CASES = {
    "transformer_encoder_layer": (None, 4, 4),
    "resnet18": (64, 2, 2),
    "resnet50": (64, 2, 1),
    "mobilenet_v2": (64, 2, 2),
    "vit_b16": (64, 2, 1),
    "bert_base": (16, 1, 1),
    "gpt2": (16, 1, 1),
}
QUICK_ROUNDS, ROUNDS = 7, 60
TOLERANCE = 1e-5


def main() -> int:
    """Run the benchmark and return the exit status."""
    options = parse_arguments(__doc__)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows: list[Row] = []
    for name in CASES:
        try:
            rows += network_rows(KNOWN_NETWORKS[name], QUICK_ROUNDS if options.quick else ROUNDS)
        except ModuleNotFoundError as error:
            skip(name, str(error))
    rows += construction_rows(QUICK_ROUNDS if options.quick else ROUNDS)
    return finish(rows, json_path=options.json)


def network_rows(network: KnownNetwork, rounds: int) -> list[Row]:
    """Return the time of the translated model over the time of the reference."""
    size, batch, calls = CASES[network.name]
    model, reference = to_pytorch_model(network.graph(size)).eval(), network.build(size).eval()
    copy_weights(model, network.weights(reference.state_dict()))
    inputs = tuple(x if x.dtype == torch.int64 else torch.randn_like(x) for x in model.zeros(batch))
    translated, original = partial(_outputs, model, inputs), partial(network.outputs, reference, inputs)
    for one, other in zip(translated(), original(), strict=True):
        assert (one - other).abs().max() <= TOLERANCE * other.abs().max(), network.name
    rows = []
    for kind, make in (("forward", _forward), ("forward+backward", _backward)):
        sides = {
            "ours": partial(cpu_seconds, make(model, translated), calls),
            "theirs": partial(cpu_seconds, make(reference, original), calls),
        }
        times = interleaved(sides, rounds=rounds, warm_up=1)
        ratio = min(times["ours"]) / min(times["theirs"])
        rows.append(at_most(f"{network.name}, {kind}", ratio, "x", GOAL))
    return rows


def construction_rows(rounds: int) -> list[Row]:
    """Return the time of a translation without the layers' first values."""
    graph = KNOWN_NETWORKS["mobilenet_v2"].graph(64)

    def translated(clear: bool) -> None:
        if clear:
            clear_translation_cache()
        with torch.device("meta"):
            to_pytorch_model(graph, {"device": "meta"})

    sides = {"cold": partial(translated, True), "warm": partial(translated, False)}
    times = interleaved({name: partial(cpu_seconds, side) for name, side in sides.items()}, rounds=rounds)
    return [figure(f"construction of mobilenet_v2, {name} cache", 1000 * median(times[name]), "ms") for name in sides]


def _outputs(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    result = model(*inputs)
    return result if isinstance(result, tuple) else (result,)


def _forward(model: nn.Module, outputs: Callable[[], tuple[Tensor, ...]]) -> Callable[[], object]:
    def run() -> None:
        with torch.no_grad():
            outputs()

    return run


def _backward(model: nn.Module, outputs: Callable[[], tuple[Tensor, ...]]) -> Callable[[], object]:
    def run() -> None:
        model.zero_grad(set_to_none=True)  # as in every training step
        torch.stack([output.sum() for output in outputs()]).sum().backward()

    return run


if __name__ == "__main__":
    sys.exit(main())
