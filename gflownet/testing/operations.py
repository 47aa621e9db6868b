"""Contract of operations: shape, costs, gradients and errors of the module of every example of a class."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from gflownet.graphs.composite import Composite
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.operation import operation, read_operation
from gflownet.graphs.typed import graph_cost
from gflownet.operations.operation import WEIGHT_PORT, Example, Operation
from gflownet.operations.probe import Probe
from gflownet.operations.tensor_shape import NUM_AXES, Layout, Shape, ShapeError
from gflownet.testing.contract import Contract, expect, expect_error
from gflownet.translation import to_pytorch_model, to_source

_BATCH = 3
_VOCABULARY = 5  # tokens of the examples are below this
_TOLERANCE = 1e-5


def check_operation(name: str) -> None:
    """Check an operation on every example of its class.

    Args:
        name: entry point, module:Class or built-in name.

    Raises:
        ContractError: the first rule that the operation breaks, in one line.
    """
    row = operation(name)
    expect(row.__doc__, f"{name}: expected a docstring, got none")
    expect(row.examples, f"{name}: expected one example or more, got none")
    for example in row.examples:
        OperationContract(name, example).run_all()


class OperationContract(Contract):
    """Checks of one example of an operation."""

    def __init__(self, name: str, example: Example) -> None:
        self.name, self.example, self.subject = name, example, name

    def parts(self) -> tuple[type[Operation], dict[str, Shape], Mapping[str, Any]]:
        """Return the class, the shapes by port and the complete settings."""
        applied = read_operation({"name": self.name, **self.example.settings})
        return applied.row, dict(zip(applied.row.ports, self.example.inputs, strict=True)), applied.settings

    def check_output_shape_and_costs_equal_the_module(self) -> None:
        torch.manual_seed(0)
        row, inputs, settings = self.parts()
        module = _module(row, inputs, settings)
        values = [sample(*item) for item in inputs.items()]
        shape, expected = list(module(*values).shape), [_BATCH, *row.infer_shape(inputs, settings).sizes]
        expect(shape == expected, f"expected {expected} as from infer_shape, got {shape}")
        probe = Probe(row, inputs, settings)
        num, counted = probe.num_parameters, sum(each.numel() for each in module.parameters())
        expect(num == counted, f"expected num_parameters {counted} as of the module, got {num}")
        # On the CPU the counter does not see fused attention and LSTM layers.
        with FlopCounterMode(display=False) as counter:
            module.to("meta")(*(value.to("meta") for value in values))
        num, counted = probe.multiply_adds * 2 * _BATCH, counter.get_total_flops()
        expect(num == counted, f"expected multiply_adds {counted // 2 // _BATCH} as counted, got {num // 2 // _BATCH}")

    def check_gradients_equal_finite_differences(self) -> None:
        torch.manual_seed(0)
        row, inputs, settings = self.parts()
        module = _module(row, inputs, settings).double()
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
            expect(self.name == "zero", "expected an output that depends on inputs or parameters, got a constant")
            return
        gradients = torch.autograd.grad(value, variables)
        directions = [torch.randn_like(variable) for variable in variables]
        with torch.no_grad():
            differences = []
            for step in (1e-6, -2e-6):
                for variable, direction in zip(variables, directions, strict=True):
                    variable.add_(direction, alpha=step)
                differences.append(loss())
        products = zip(gradients, directions, strict=True)
        expected = float(sum((gradient * direction).sum() for gradient, direction in products))
        difference = float(differences[0] - differences[1]) / 2e-6
        is_equal = abs(difference - expected) <= 1e-6 + _TOLERANCE * abs(expected)
        expect(is_equal, f"expected a derivative of {difference:.6g} as of finite differences, got {expected:.6g}")

    def check_every_layout_is_refused_or_computed(self) -> None:
        row, inputs, settings = self.parts()
        for layout in Layout:
            shapes = {port: Shape((4,) * NUM_AXES[layout], layout) for port in inputs}
            try:
                shape = row.infer_shape(shapes, settings)
            except ShapeError as error:
                message = str(error)
                valid = message.startswith("expected ") and "\n" not in message
                expect(valid, f"expected a ShapeError 'expected ..., got ...' in one line, got {message!r}")
                continue
            values = [sample(*item) for item in shapes.items()]
            got = list(_module(row, shapes, settings)(*values).shape)
            expected = [_BATCH, *shape.sizes]
            expect(got == expected, f"expected {expected} for the layout {layout.value}, got {got}")

    def check_seed_decides_the_output(self) -> None:
        row, inputs, settings = self.parts()
        outputs = []
        for _ in range(2):
            torch.manual_seed(0)
            module = _module(row, inputs, settings)
            outputs.append(module(*(sample(*item) for item in inputs.items())))
        expect(torch.equal(*outputs), "expected equal outputs with equal seeds, got different ones")

    def check_settings_are_checked(self) -> None:
        row, name, settings = self.parts()[0], self.name, self.example.settings
        for key, setting in row.settings.items():
            for value in setting.choices:
                expect(setting.parameter.accepts(value), f"expected the choice {value!r} of {key} to be accepted")
            call = _reader({"name": name, **settings, key: math.nan})
            expect_error(ValueError, f"expected .* for {key}, got", call, doing=f"{key}=nan")
        call = _reader({"name": name, **settings, "unknown": 1})
        expect_error(ValueError, r"expected settings out of .*, got 'unknown'", call, doing="unknown=1")

    def check_graph_equals_its_source_and_cost(self) -> None:
        graph = one_node_graph(self.name, self.example)
        model = to_pytorch_model(graph).eval()
        num, counted = graph_cost(graph).num_parameters, sum(each.numel() for each in model.parameters())
        expect(num == counted, f"expected a graph with {counted} parameters as its model, got {num}")
        row, inputs, settings = self.parts()
        output = model(*inputs_of(model))
        shape, expected = list(output.shape), [_BATCH, *row.infer_shape(inputs, settings).sizes]
        expect(shape == expected, f"expected {expected} as from infer_shape, got {shape}")
        namespace: dict[str, Any] = {"__name__": "network"}
        exec(to_source(graph), namespace)
        other = namespace["Model"]().eval()
        other.load_state_dict(model.state_dict())
        same = torch.allclose(other(*inputs_of(model)), output, rtol=1.3e-6, atol=1e-5, equal_nan=True)
        expect(same, "expected the code of to_source to compute the same output, got another one")
        if WEIGHT_PORT in inputs:
            return
        alone = _module(row, inputs, settings).eval()
        alone.load_state_dict(dict(zip(alone.state_dict(), model.state_dict().values(), strict=True)))
        same = torch.allclose(alone(*inputs_of(model)), output, rtol=1.3e-6, atol=1e-5, equal_nan=True)
        expect(same, "expected the operation in a graph and alone to compute the same output")


def examples(names: Iterator[str] | Any) -> Iterator[tuple[str, Example]]:
    """Yield every operation with each of its examples."""
    for name in names:
        for example in operation(name).examples:
            yield name, example


class StandaloneOperation(nn.Module):
    """The module of an operation and its call: forward maps a tensor [B, *sizes] per port to the output.

    The tensor at the port `weight` has no batch axis.
    """

    def __init__(self, row: type[Operation], inputs: dict[str, Shape], settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.node, self.probe = row.build(inputs, settings), Probe(row, inputs, settings)
        self.code = row.call(inputs, settings)

    def forward(self, *values: Tensor) -> Tensor:
        """Return the output [B, *sizes], of an operation with state for zeros."""
        return self.probe.run(self.node, dict(zip(self.probe.shapes, values, strict=True)), self.code)


def _module(row: type[Operation], inputs: dict[str, Shape], settings: Mapping[str, Any]) -> nn.Module:
    """Return an operation as a module that takes a tensor per port."""
    if issubclass(row, Composite):
        return to_pytorch_model(row.computation_graph(inputs, settings))
    return StandaloneOperation(row, inputs, settings)


def sample(port: str, shape: Shape, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a random batch for a port; no two values are closer than 1e-3: finite differences cross no kink."""
    size = shape.sizes if port == WEIGHT_PORT else (_BATCH, *shape.sizes)
    if shape.layout is Layout.TOKENS:
        return torch.randint(_VOCABULARY, size)
    count = math.prod(size)
    return ((torch.randperm(count) - count / 2 + 0.25) * (4 / count)).view(size).to(dtype)


def one_node_graph(name: str, example: Example) -> ComputationGraph:
    """Return a graph of INPUT nodes and the operation; a weight comes from a linear layer."""
    _, inputs, _ = OperationContract(name, example).parts()
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
    return graph


def inputs_of(model: Any) -> list[Tensor]:
    """Return random inputs of a model of a graph."""
    torch.manual_seed(1)
    return [x if x.dtype == torch.int64 else torch.randn_like(x) for x in model.zeros(_BATCH)]


def _reader(value: dict[str, Any]) -> Any:
    return lambda: read_operation(value)
