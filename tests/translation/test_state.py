"""State of operations: recurrent edges among tensors, layers that carry their state, subgraphs with state."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.typed import graph_cost, infer_shapes
from gflownet.translation import TranslatedModel, export_program, summary, to_onnx, to_pytorch_model, to_source
from tests.oracles.operation_evaluation import evaluate_steps
from tests.translation.operation_graphs import graph_of, hidden, image_input, random_graph, random_stateful_graph
from tests.translation.test_operation_oracle import randomised

LATE = {"attributes": {"is_recurrent": True}}
NUM_STEPS = 3


def convolutional_cell() -> ComputationGraph:
    """h_t = tanh(conv(x_t) + conv(h_{t-1})) over images."""
    nodes = [
        image_input(3, 6, 5),
        hidden(1, "conv2d", features=4),
        hidden(2, "conv2d", features=4),
        hidden(3, "identity", activation_function="tanh"),
        hidden(4, "head", kind="output", features=5),
    ]
    return graph_of(nodes, [(0, 1), (3, 2, LATE), (1, 3), (2, 3), (3, 4)])


def recurrent_layer(name: str, length: int, **settings: object) -> ComputationGraph:
    node = hidden(1, name, kind="output", **({} if name == "rhn" else {"features": 4}), **settings)
    return graph_of([{"id": 0, "node_type": "input", "shape": [length, 4]}, node], [(0, 1)])


def sequence_of(model: TranslatedModel, batch: int = 2) -> list[Tensor]:
    """Return random inputs [B, T, ...] of a model."""
    zeros = [x.unsqueeze(1).repeat(1, NUM_STEPS, *[1] * (x.dim() - 1)) for x in model.zeros(batch)]
    return [torch.randn(x.shape, dtype=x.dtype) for x in zeros]


def steps_of(model: nn.Module, inputs: list[Tensor]) -> Tensor:
    """Return the outputs of single calls, stacked."""
    return torch.stack([model(*(x[:, t] for x in inputs), reset_states=t == 0) for t in range(NUM_STEPS)], 1)


@pytest.mark.parametrize("name", ["lstm", "gru", "rhn"])
def test_carried_state_equals_one_long_sequence(name):
    torch.manual_seed(0)
    short, long = (
        to_pytorch_model(recurrent_layer(name, 2, carry=True)),
        to_pytorch_model(recurrent_layer(name, 2 * NUM_STEPS)),
    )
    assert short.plan.slots
    assert not long.plan.slots
    long.load_state_dict(short.state_dict())
    x = torch.randn(3, NUM_STEPS, 2, 4)
    expected = long(x.flatten(1, 2)).unflatten(1, (NUM_STEPS, 2))
    assert torch.allclose(short.forward_sequence(x), expected, atol=1e-6)
    assert torch.allclose(steps_of(short, [x]), expected, atol=1e-6)
    cost = graph_cost(recurrent_layer(name, 2, carry=True))
    assert cost.num_parameters == sum(each.numel() for each in short.parameters())


def test_repetitions_of_a_subgraph_have_states_of_their_own():
    inner = {
        "nodes": [{"id": 0, "node_type": "input"}, hidden(1, "gru", features=4, carry=True, kind="output")],
        "edges": [{"source": 0, "target": 1}],
    }
    nodes = [
        {"id": 0, "node_type": "input", "shape": [2, 4]},
        {"id": 1, "node_type": "output", "subgraph": "layer", "repeat": 2},
    ]
    graph = graph_of(nodes, [(0, 1)], subgraphs={"layer": inner})
    model = to_pytorch_model(graph)
    assert [slot.shape for slot in model.plan.slots] == [(4,), (4,)]
    assert summary(graph).state_size == 8
    layers = [nn.GRU(4, 4, batch_first=True) for _ in range(2)]
    for layer, values in zip(layers, model.layer_1, strict=True):
        layer.load_state_dict(values.gru_1.state_dict())
    x = torch.randn(3, NUM_STEPS, 2, 4)
    expected = layers[1](layers[0](x.flatten(1, 2))[0])[0].unflatten(1, (NUM_STEPS, 2))
    assert torch.allclose(model.forward_sequence(x), expected, atol=1e-6)


def test_neuron_with_a_cell_among_tensors():
    nodes = [
        image_input(3, 4, 4),
        hidden(1, "global_pool"),
        {"id": 2, "node_type": "output", "output_size": 3, "activation_function": "lstm"},
    ]
    model = to_pytorch_model(graph_of(nodes, [(0, 1), (1, 2)]))
    x = torch.randn(2, NUM_STEPS, 3, 4, 4)
    state, outputs = (torch.zeros(2, 3), torch.zeros(2, 3)), []
    for moment in x.unbind(1):
        state = model.lstm_2(moment.mean(dim=(2, 3)) * model.weight_1_2 + model.bias_2, state)
        outputs.append(state[0])
    assert torch.allclose(model.forward_sequence(x), torch.stack(outputs, 1), atol=1e-6)


def test_program_of_a_model_with_state_takes_and_returns_it():
    model = to_pytorch_model(convolutional_cell()).eval()
    program = export_program(model).module()
    x, state = torch.randn(5, 3, 6, 5), torch.randn(5, 4, 6, 5)
    y, next_state = program(x, state)
    expected, (expected_state,) = model.step(x, (state,))
    assert torch.allclose(y, expected, atol=1e-6)
    assert torch.allclose(next_state, expected_state, atol=1e-6)


def test_recurrent_edge_that_shrinks_its_target_is_refused():
    nodes = [
        {"id": 0, "node_type": "input", "shape": [3, 8, 8]},
        hidden(1, "conv2d", features=3, stride=2),
        hidden(2, "identity", align="pool"),
        hidden(3, "head", kind="output", features=2),
    ]
    graph = graph_of(nodes, [(0, 2), (2, 1), (1, 2, LATE), (2, 3)])
    (problem,) = graph.validate()
    assert (problem.code, problem.node_id) == ("shape_mismatch", 2)
    assert "expected recurrent edges that fit image [3, 8, 8], got image [3, 4, 4] with them" in problem.message


def test_state_shares_no_memory_with_outputs():
    nodes = [image_input(3, 2), hidden(1, "linear", kind="output", features=2), hidden(2, "identity", kind="output")]
    model = to_pytorch_model(graph_of(nodes, [(0, 1), (0, 2), (1, 2, LATE)]))
    x = torch.randn(2, 3, 2)
    with torch.no_grad():
        first = model(x)[1].clone()
        expected = model(x)[1].clone()
        model(x, reset_states=True)[0].zero_()  # outputs belong to the caller
        assert torch.equal(model(x)[1], expected)
    assert not torch.equal(first, expected)


def test_carry_at_its_default_keeps_the_identity():
    for name in ("lstm", "rhn"):
        key = recurrent_layer(name, 3).canonical_key()
        assert recurrent_layer(name, 3, carry=False).canonical_key() == key
        assert recurrent_layer(name, 3, carry=True).canonical_key() != key


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ([(0, 1), (1, 3), (3, 4), (0, 2), (2, 3, LATE)], None),
        ([(0, 1), (1, 3), (3, 2, LATE), (2, 3), (3, 4)], "averages positions"),
        ([(0, 1), (1, 4), (3, 2, LATE), (2, 3, LATE)], "on a path from an input"),
    ],
)
def test_recurrent_edges_that_do_not_fit_are_refused(edges, message):
    nodes = [
        {"id": 0, "node_type": "input", "shape": [3, 8, 8]},
        hidden(1, "conv2d", features=4, stride=2),
        hidden(2, "conv2d", features=4, stride=2),
        hidden(3, "identity"),
        hidden(4, "head", kind="output", features=2),
    ]
    problems = [each.message for each in graph_of(nodes, edges).validate()]
    assert (message is None and not problems) or (message is not None and message in " ".join(problems)), problems


@pytest.mark.parametrize("seeds", [range(5), pytest.param(range(5, 200), marks=pytest.mark.slow)])
def test_random_graphs_with_state(seeds):
    num_stateful = 0
    for seed in seeds:
        torch.manual_seed(seed)
        graph = random_stateful_graph(seed)
        model = to_pytorch_model(graph, {"dtype": "float64"}).eval()
        randomised(model)
        assert graph_cost(graph).num_parameters == sum(each.numel() for each in model.parameters()), seed
        inputs = sequence_of(model)
        expected = steps_of(model, inputs)
        assert torch.allclose(model.forward_sequence(*inputs), expected, rtol=1e-9, atol=1e-9), seed
        num_stateful += bool(model.plan.slots)
        if all(slot.kind == "output" for slot in model.plan.slots):
            names = graph.input_node_ids
            moments = [{name: x[:, t] for name, x in zip(names, inputs, strict=True)} for t in range(NUM_STEPS)]
            sizes = {node_id: each.output for node_id, each in infer_shapes(graph).items()}
            outputs = [value for (value,) in evaluate_steps(graph, model.state_dict(), moments, sizes)]
            assert torch.allclose(torch.stack(outputs, 1), expected, rtol=1e-8, atol=1e-8), seed
    assert num_stateful > len(seeds) / 3


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(200)])
def test_source_of_random_graphs_in_a_new_interpreter(seeds, tmp_path):
    expected = {}
    for seed in seeds:
        torch.manual_seed(seed)
        graph = random_stateful_graph(seed)
        model = to_pytorch_model(graph).eval()
        (tmp_path / f"network_{seed}.py").write_text(to_source(graph), encoding="utf-8")
        inputs = sequence_of(model)
        torch.save((model.state_dict(), inputs, bool(model.plan.slots)), tmp_path / f"{seed}.pt")
        expected[seed] = steps_of(model, inputs)
    program = tmp_path / "compute.py"
    program.write_text(COMPUTE, encoding="utf-8")
    subprocess.run([sys.executable, program, *map(str, seeds)], cwd=tmp_path, check=True, timeout=300)
    for seed, value in expected.items():
        assert torch.allclose(torch.load(tmp_path / f"{seed}.out"), value, atol=1e-5), seed


COMPUTE = """
import importlib, sys, torch
for seed in sys.argv[1:]:
    state, inputs, has_state = torch.load(f"{seed}.pt")
    model = importlib.import_module(f"network_{seed}").Model().eval()
    model.load_state_dict(state)
    options = [{"reset_states": t == 0} if has_state else {} for t in range(inputs[0].shape[1])]
    with torch.no_grad():
        y = torch.stack([model(*(x[:, t] for x in inputs), **each) for t, each in enumerate(options)], 1)
    torch.save(y, f"{seed}.out")
assert not any(name.startswith("gflownet") for name in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch 2.13's exporter warns about itself
def test_onnx_of_random_graphs(tmp_path: Path):
    runtime = pytest.importorskip("onnxruntime")
    for seed in range(12):
        torch.manual_seed(seed)
        model = to_pytorch_model(random_graph(seed)).eval()
        to_onnx(model, tmp_path / f"{seed}.onnx")
        session = runtime.InferenceSession(tmp_path / f"{seed}.onnx", providers=["CPUExecutionProvider"])
        inputs = [torch.randn_like(x) for x in model.zeros(4)]
        names = [value.name for value in session.get_inputs()]
        (got,) = session.run(None, {name: value.numpy() for name, value in zip(names, inputs, strict=True)})
        assert torch.allclose(torch.from_numpy(got), model(*inputs), atol=1e-4), seed
