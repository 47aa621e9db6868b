"""Contract of operations: shape, costs, gradients and errors of the real module of every row of OPERATIONS.

A new row is picked up by its class attribute `examples`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from gflownet.graphs import ComputationGraph
from gflownet.graphs.operation import OPERATIONS, WEIGHT_PORT, Example, Operation, operation, read_operation
from gflownet.graphs.operation_costs import graph_cost
from gflownet.graphs.tensor_shape import NUM_AXES, Layout, Shape, ShapeError
from gflownet.operations.standalone import StandaloneOperation
from gflownet.translation import to_onnx, to_pytorch_model, to_source

BATCH = 3
VOCABULARY = 5  # tokens of the examples are below this


def cases() -> Iterator[Any]:
    """Yield every example of every row."""
    for name in OPERATIONS:
        for index, example in enumerate(operation(name).examples):
            yield pytest.param(name, example, id=f"{name}-{index}")


CASES = list(cases())
FIRST_CASES = [pytest.param(name, operation(name).examples[0], id=name) for name in OPERATIONS]


def parts(name: str, example: Example) -> tuple[type[Operation], dict[str, Shape], dict]:
    """Return the class, the shapes by port and the complete settings."""
    applied = read_operation({"name": name, **example.settings})
    return applied.row, dict(zip(applied.row.ports, example.inputs, strict=True)), applied.settings


def inferred(row: type[Operation], inputs: dict[str, Shape], settings: dict) -> Shape | str:
    """Return the output shape, or the reason for which there is none."""
    try:
        return row.infer_shape(inputs, settings)
    except ShapeError as error:
        return str(error)


def sample(port: str, shape: Shape, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a random batch for a port; no two values are closer than 1e-3: finite differences cross no kink."""
    size = shape.sizes if port == WEIGHT_PORT else (BATCH, *shape.sizes)
    if shape.layout is Layout.TOKENS:
        return torch.randint(VOCABULARY, size)
    count = math.prod(size)
    return ((torch.randperm(count) - count / 2 + 0.25) * (4 / count)).view(size).to(dtype)


@pytest.mark.parametrize(("name", "example"), CASES)
def test_operation_output_shape_and_costs_equal_module(name: str, example: Example) -> None:
    torch.manual_seed(0)
    row, inputs, settings = parts(name, example)
    module = StandaloneOperation(row, inputs, settings)
    values = [sample(*item) for item in inputs.items()]
    output = module(*values)
    # On the CPU the counter does not see fused attention and LSTM layers.
    with FlopCounterMode(display=False) as counter:
        module.to("meta")(*(value.to("meta") for value in values))
    assert list(output.shape) == [BATCH, *row.infer_shape(inputs, settings).sizes]
    assert row.num_parameters(inputs, settings) == sum(each.numel() for each in module.parameters())
    assert row.multiply_adds(inputs, settings) * 2 * BATCH == counter.get_total_flops()


@pytest.mark.parametrize(("name", "example"), CASES)
def test_operation_gradients_equal_finite_differences(name: str, example: Example) -> None:
    torch.manual_seed(0)
    row, inputs, settings = parts(name, example)
    module = StandaloneOperation(row, inputs, settings).double()
    values = [sample(*item, torch.float64) for item in inputs.items()]
    variables = [value.requires_grad_() for value in values if value.is_floating_point()]
    variables += list(module.parameters())
    with torch.no_grad():  # parameters that start at 0 or 1 hide errors
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))

    def loss() -> Tensor:
        torch.manual_seed(1)  # dropout
        output = module(*values)
        return (output * torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)).sum()

    value = loss()
    if not value.requires_grad:
        assert name == "zero"
        return
    gradients = torch.autograd.grad(value, variables)
    directions = [torch.randn_like(variable) for variable in variables]
    with torch.no_grad():
        differences = []
        for step in (1e-6, -2e-6):
            for variable, direction in zip(variables, directions, strict=True):
                variable.add_(direction, alpha=step)
            differences.append(loss())
    expected = sum((gradient * direction).sum() for gradient, direction in zip(gradients, directions, strict=True))
    torch.testing.assert_close((differences[0] - differences[1]) / 2e-6, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "example"), FIRST_CASES)
def test_operation_refuses_or_computes_every_layout(name: str, example: Example) -> None:
    row, inputs, settings = parts(name, example)
    for layout in Layout:
        others = {port: Shape((4,) * NUM_AXES[layout], layout) for port in inputs}
        shape = inferred(row, others, settings)
        if isinstance(shape, str):
            assert shape.startswith("expected ")
            assert "\n" not in shape
            continue
        values = [sample(*item) for item in others.items()]
        assert list(StandaloneOperation(row, others, settings)(*values).shape) == [BATCH, *shape.sizes]


@pytest.mark.parametrize(("name", "example"), FIRST_CASES)
def test_operation_of_equal_seeds_gives_equal_outputs(name: str, example: Example) -> None:
    row, inputs, settings = parts(name, example)
    outputs = []
    for _ in range(2):
        torch.manual_seed(0)
        module = StandaloneOperation(row, inputs, settings)
        outputs.append(module(*(sample(*item) for item in inputs.items())))
    assert torch.equal(*outputs)


@pytest.mark.parametrize(("name", "example"), FIRST_CASES)
def test_operation_settings_are_checked(name: str, example: Example) -> None:
    row, _, _ = parts(name, example)
    for key, setting in row.settings.items():
        assert all(setting.parameter.accepts(value) for value in setting.choices)
        with pytest.raises(ValueError, match=f"^{name}: expected .* for {key}, got"):
            read_operation({"name": name, **example.settings, key: math.nan})
    with pytest.raises(ValueError, match=f"^{name}: expected settings out of .*, got 'unknown'"):
        read_operation({"name": name, **example.settings, "unknown": 1})


def test_operations_have_docstrings_and_examples() -> None:
    for name in OPERATIONS:
        assert operation(name).__doc__, name
        assert operation(name).examples, name


def one_node_graph(name: str, example: Example) -> ComputationGraph:
    """Return a graph of INPUT nodes and the operation; a weight comes from a linear layer."""
    row, inputs, _ = parts(name, example)
    graph = ComputationGraph()
    output = len(inputs) + 1
    attributes = {"operation": {"name": name, **example.settings}}
    graph.add_node(output, "output", output_size=None, attributes=attributes)
    for node_id, (port, shape) in enumerate(inputs.items()):
        source, sizes = node_id, shape.sizes
        if port == WEIGHT_PORT:
            source, sizes = len(inputs), shape.sizes[1:]
            linear = {"name": "linear", "features": shape.sizes[0], "bias": False}
            graph.add_node(source, "hidden", output_size=None, attributes={"operation": linear})
            graph.add_edge(node_id, source)
        declared = {"shape": list(sizes), **({"dtype": "token"} if shape.layout is Layout.TOKENS else {})}
        if shape.layout is Layout.SIGNAL:
            declared["layout"] = "signal"
        graph.add_node(node_id, "input", output_size=None, attributes=declared)
        graph.add_edge(source, output, attributes={"port": port})
    assert row.ports == tuple(edge.attributes["port"] for edge in graph.in_edges(output))
    return graph


def inputs_of(model: Any) -> list[Tensor]:
    """Return random inputs of a model of a graph."""
    torch.manual_seed(1)
    return [x if x.dtype == torch.int64 else torch.randn_like(x) for x in model.zeros(BATCH)]


@pytest.mark.parametrize(("name", "example"), CASES)
def test_operation_in_a_graph_equals_its_source_and_cost(name: str, example: Example) -> None:
    graph = one_node_graph(name, example)
    model = to_pytorch_model(graph).eval()
    cost = graph_cost(graph)
    assert cost.num_parameters == sum(each.numel() for each in model.parameters())
    row, inputs, settings = parts(name, example)
    output = model(*inputs_of(model))
    assert list(output.shape) == [BATCH, *row.infer_shape(inputs, settings).sizes]
    namespace: dict[str, Any] = {"__name__": "network"}
    exec(to_source(graph), namespace)
    other = namespace["Model"]().eval()
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(*inputs_of(model)), output)
    if WEIGHT_PORT not in inputs:
        alone = StandaloneOperation(row, inputs, settings).eval()
        if alone.node is not None:
            alone.node.load_state_dict(dict(zip(alone.node.state_dict(), model.state_dict().values(), strict=True)))
        torch.testing.assert_close(alone(*inputs_of(model)), output)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "example"), CASES)
@pytest.mark.filterwarnings("ignore")  # torch 2.13's exporter warns about itself
def test_operation_onnx_equals_model(name: str, example: Example, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = to_pytorch_model(one_node_graph(name, example)).eval()
    to_onnx(model, tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    inputs = inputs_of(model)
    values = {value.name: tensor.numpy() for value, tensor in zip(session.get_inputs(), inputs, strict=False)}
    torch.testing.assert_close(torch.from_numpy(session.run(None, values)[0]), model(*inputs), rtol=1e-4, atol=1e-5)
