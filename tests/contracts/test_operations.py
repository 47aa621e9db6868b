"""Contract of operations: shape, costs, gradients and errors of the real module of every row of OPERATIONS.

A new row is picked up by its class attribute `examples`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from gflownet.graphs.operation import OPERATIONS, operation
from gflownet.testing import OperationContract
from gflownet.testing.operations import inputs_of, one_node_graph
from gflownet.translation import to_onnx, to_pytorch_model
from tests.device_with_values import device_with_values
from tests.fast_cases import slow_except
from tests.known_networks.references import KNOWN_NETWORKS, SMALL, without_dropout
from tests.translation.operation_graphs import random_graph, random_stateful_graph

ON_DEVICE = {
    *("batch_norm", "class_token", "conv2d", "cross_attention", "drop_path", "dropout", "embedding", "experts", "gru"),
    *("learned_positions", "rotary_positions", "self_attention", "selective_scan", "tied_linear", "window_attention"),
}
# They depend on the class more than on the example.
ONCE = {
    "check_every_layout_is_refused_or_computed",
    "check_gradients_equal_finite_differences",
    "check_seed_decides_the_output",
    "check_settings_are_checked",
}


@pytest.mark.parametrize("is_complete", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operation(name: str, is_complete: bool) -> None:
    for index, example in enumerate(operation(name).examples):
        contract = OperationContract(name, example)
        for check in contract.names():
            if is_complete or index == 0 or check not in ONCE:
                contract.run(check)


# Operations with modules of other kinds: tensors of their own, buffers, dropout, states, several inputs.
@pytest.mark.parametrize("name", slow_except(ON_DEVICE, OPERATIONS))
def test_operation_on_a_device_equals_that_on_the_cpu(name: str) -> None:
    for example in operation(name).examples:
        assert_equal_on_a_device(one_node_graph(name, example))


@pytest.mark.slow
@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
@pytest.mark.parametrize("make", [random_graph, random_stateful_graph])
def test_random_graphs_on_a_device_equal_those_on_the_cpu(make: Callable[[int], Any], memory_format: str) -> None:
    for seed in range(200):
        assert_equal_on_a_device(make(seed), memory_format=memory_format)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_operations_and_known_networks_on_a_gpu_equal_those_on_the_cpu() -> None:
    graphs = [one_node_graph(name, example) for name in OPERATIONS for example in operation(name).examples]
    for graph in (*graphs, *(KNOWN_NETWORKS[name].graph(SMALL.get(name)) for name in KNOWN_NETWORKS)):
        assert_equal_on_a_device(graph, nullcontext(torch.device("cuda", 0)))


def assert_equal_on_a_device(graph: Any, on: Any = None, **settings: Any) -> None:
    """Compare output, buffers and gradients of a model; on a GPU in float64, without dropout, whose numbers differ."""
    torch.manual_seed(0)
    model = to_pytorch_model(graph, settings)
    inputs, results = inputs_of(model), []
    if on is not None:
        without_dropout(model.double())
        inputs = [x.double() if x.is_floating_point() else x for x in inputs]
    with on or device_with_values() as device:
        on_device = copy.deepcopy(model).to(device)
        for each, place in ((model, torch.device("cpu")), (on_device, device)):
            torch.manual_seed(3)  # dropout
            output = each(*(x.to(place) for x in inputs))
            outputs = output if isinstance(output, tuple) else (output,)
            if outputs[0].requires_grad:
                torch.stack([x.square().sum() for x in outputs]).sum().backward()
            tensors = [*outputs, *each.buffers(), *(p.grad for p in each.parameters() if p.grad is not None)]
            assert {tensor.device.type for tensor in tensors} == {place.type}
            results.append([tensor.detach().cpu() for tensor in tensors])
    torch.testing.assert_close(*results, equal_nan=True, rtol=1e-4, atol=1e-4)


def test_operations_have_docstrings_and_examples() -> None:
    for name in OPERATIONS:
        assert operation(name).__doc__, name
        assert operation(name).examples, name


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.filterwarnings("ignore")  # torch 2.13's exporter warns about itself
def test_operation_onnx_equals_model(name: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    for example in operation(name).examples:
        model = to_pytorch_model(one_node_graph(name, example)).eval()
        to_onnx(model, tmp_path / "model.onnx")
        session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
        inputs = inputs_of(model)
        state = model.state_manager.current(inputs[0], model.reference)  # zeros
        values = {
            each.name: tensor.numpy() for each, tensor in zip(session.get_inputs(), (*inputs, *state), strict=True)
        }
        torch.testing.assert_close(torch.from_numpy(session.run(None, values)[0]), model(*inputs), rtol=1e-4, atol=1e-5)
