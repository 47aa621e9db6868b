"""Models of padded signals: what an example is padded with changes no output, also in sets, exports and sources."""

import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.translation import can_stack, to_onnx, to_pytorch_model, to_source
from gflownet.translation.array_inputs import padded
from gflownet.translation.model_set import ModelSet
from tests.translation.operation_graphs import graph_of

_LENGTH = 16
# Operations from the input to the head, which averages the positions that are left.
CHAINS: dict[str, list[dict[str, Any]]] = {
    "convolutions": [
        {"name": "conv1d", "features": 4, "kernel_size": 3},
        {"name": "conv_bn_relu", "features": 4, "kernel_size": 5},
    ],
    "separable": [
        {"name": "separable_conv_bn_relu", "features": 4, "kernel_size": 3},
        {"name": "separable_conv_bn_relu", "features": 4, "kernel_size": 5},
    ],
    "strides": [
        {"name": "conv1d", "features": 4, "kernel_size": 3, "stride": 2},
        {"name": "batch_norm"},
        {"name": "avg_pool1d"},
    ],
    "global mean": [{"name": "conv1d", "features": 4, "kernel_size": 3}, {"name": "global_pool"}],
    "global maximum": [{"name": "conv1d", "features": 4}, {"name": "global_pool", "reduction": "max"}],
    "modules": [{"name": "torch.nn:Conv1d", "out_channels": 4, "kernel_size": 3, "padding": "same"}],
    "sequence": [{"name": "conv1d", "features": 4, "kernel_size": 3}, {"name": "to_sequence"}],
}


def chain(operations: list[dict[str, Any]], length: int) -> ComputationGraph:
    """Return a graph of operations one after the other for padded signals of two channels and their mask."""
    source = {"id": 0, "node_type": "input", "shape": [3, length], "layout": "signal"}
    nodes = [{"id": k, "operation": each} for k, each in enumerate(operations, 1)]
    output = {"id": 99, "node_type": "output", "operation": {"name": "head", "features": 2}, "align": "pool"}
    ids = [0, *range(1, len(operations) + 1), 99]
    more = [(1, 99)] if len(operations) > 1 else []  # a signal is averaged where it meets a vector or a shorter one
    return graph_of([source, *nodes, output], [*pairwise(ids), *more])


def translated(name: str, length: int) -> Any:
    torch.manual_seed(0)
    model = to_pytorch_model(chain(CHAINS[name], length), {"padded": True})
    for key, value in model.state_dict().items():  # biases and running means that are not 0
        if value.is_floating_point():
            value += 0.3 if "var" in key else 0.2
    return model.eval()


def signals(*lengths: int) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.standard_normal((2, length)).astype(np.float32) for length in lengths]


@pytest.mark.parametrize("name", CHAINS)
def test_outputs_do_not_depend_on_the_padding(name):
    models = {length: translated(name, length) for length in (_LENGTH, 20, 64)}
    for signal in signals(_LENGTH, 13):
        alone, *others = (model(torch.from_numpy(padded([signal], each))) for each, model in models.items())
        others.append(models[64](torch.from_numpy(padded([signal, *signals(3, 7)], 64)))[:1])
        for other in others:
            torch.testing.assert_close(other, alone)


def test_copies_sources_traces_and_sets_have_the_mask():
    inputs = torch.from_numpy(padded(signals(5, 16), 16))
    model = translated("separable", 16)
    expected = model(inputs)
    namespace: dict[str, Any] = {}
    exec(to_source(chain(CHAINS["separable"], 16).with_translation({"padded": True})), namespace)
    source = namespace["Model"]().eval()
    source.load_state_dict(model.state_dict())
    for other in (pickle.loads(pickle.dumps(model)), source, torch.fx.symbolic_trace(model)):
        torch.testing.assert_close(other(inputs), expected)
    together = ModelSet([model, model], [0.5, 0.5], has_classes=False)
    torch.testing.assert_close(together(inputs), expected)
    assert not can_stack(model, model)
    plain = to_pytorch_model(chain(CHAINS["separable"], 16))
    plain.load_state_dict(model.state_dict())
    assert not torch.allclose(plain.eval()(inputs), expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch 2.13's exporter warns about itself
@pytest.mark.parametrize("name", ["strides", "global maximum"])
def test_onnx_has_the_mask(name, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model, inputs = translated(name, 20), padded(signals(5, 20, 11), 20)
    to_onnx(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (outputs,) = session.run(None, {"x": inputs})
    np.testing.assert_allclose(outputs, model(torch.from_numpy(inputs)).detach(), atol=1e-5)


def test_graph_without_one_signal_is_refused():
    graph = graph_of(
        [
            {"id": 0, "node_type": "input", "shape": [3, 4, 4]},
            {"id": 1, "node_type": "output", "operation": {"name": "head", "features": 2}},
        ],
        [(0, 1)],
    )
    with pytest.raises(ValueError, match=r"^padded: expected one signal as input, got image \[3, 4, 4\]$"):
        to_pytorch_model(graph, {"padded": True})
