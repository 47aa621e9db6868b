"""torch.export, torch.compile, ONNX (where its packages are installed) and latency."""

import sys
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.translation import export_program, measure_latency, to_onnx, to_pytorch_model
from tests.translation.graphs import chain, mixed, recurrent
from tests.translation.operation_graphs import graph_of, hidden, image_input


def small():
    """A gru and a stable sort: a state and an operation without its own ONNX form."""
    data = chain(3, 3, 2, activation="gru")
    data["nodes"][2]["attributes"] = {"aggregation": "topk_weighted_sum", "top_k": 1}
    data["edges"].append({"source": 0, "target": 2})
    return data


GRAPHS = pytest.mark.parametrize(
    "data",
    [
        pytest.param(small(), id="small"),
        pytest.param(mixed(), id="mixed", marks=pytest.mark.slow),
        pytest.param(recurrent(), id="recurrent", marks=pytest.mark.slow),
    ],
)


def convolutions():
    nodes = [image_input(3, 4, 4), hidden(1, "conv_bn_relu", features=4), hidden(2, "head", kind="output", features=2)]
    return graph_of(nodes, [(0, 1), (1, 2)])


def build(data):
    return to_pytorch_model(ComputationGraph.from_dict(data))


def example(model, batch=5):
    x = torch.randn(batch, model.plan.input_size, generator=torch.Generator().manual_seed(1))
    state = tuple(torch.randn(batch, slot.size) for slot in model.plan.slots)
    y, new = model.step(x, state)
    return (x, *state), (y, *new)


@GRAPHS
def test_an_exported_program_takes_any_batch(data):
    model = build(data)
    arguments, expected = example(model)
    got = export_program(model).module()(*arguments)
    got = got if model.plan.slots else (got,)
    assert model.training
    for one, other in zip(got, expected, strict=False):
        assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("activation", [pytest.param("relu", marks=pytest.mark.slow), "gru"])
@pytest.mark.parametrize("training", [True, False])
def test_export_is_in_eval_mode_and_keeps_the_mode(activation, training):
    data = chain(2, 3, activation=activation)
    data["nodes"].append({"id": 2, "node_type": "output", "output_size": 2})
    data["nodes"][1] |= {"node_type": "hidden", "attributes": {"aggregation": "attention", "dropout_p": 0.9}}
    data["edges"].append({"source": 1, "target": 2})
    model = build(data).train(training)
    x, *state = example(model)[0]
    program = export_program(model)
    assert model.training == training
    outputs = program.module()(x, *state)
    y, _ = model.eval().step(x, tuple(state))
    assert torch.allclose(outputs[0] if state else outputs, y)
    model.train(training)
    with pytest.raises(ValueError, match="batch_size: expected >= 2"):
        export_program(model, batch_size=1)
    assert model.training == training


@GRAPHS
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compile_captures_a_whole_step(data):
    model = build(data)
    arguments, expected = example(model)
    step = torch.compile(model.step, backend="eager", fullgraph=True)
    y, state = step(arguments[0], arguments[1:])
    for one, other in zip((y, *state), expected, strict=False):
        assert torch.allclose(one, other)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.allclose(compiled(arguments[0], True), model(arguments[0], True))


@GRAPHS
@pytest.mark.filterwarnings("ignore")  # torch 2.13's exporter warns about itself
@pytest.mark.slow
def test_onnx_gives_the_same_numbers(data, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = build(data)
    to_onnx(model, tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    arguments, expected = example(model)
    names = [value.name for value in session.get_inputs()]
    assert names[0] == "x"
    outputs = session.run(None, {name: value.numpy() for name, value in zip(names, arguments, strict=True)})
    for got, value in zip(outputs, expected, strict=False):
        assert torch.allclose(torch.from_numpy(got), value, atol=1e-5)


def test_onnx_refuses_bfloat16(tmp_path):
    pytest.importorskip("onnxscript")
    operations = to_pytorch_model(graph_of([image_input(3), hidden(1, "linear", features=2, kind="output")], [(0, 1)]))
    autocast = to_pytorch_model(convolutions(), {"autocast": "bfloat16"})
    for model in (build(chain(2, 2)).bfloat16(), operations.bfloat16(), autocast):
        with pytest.raises(ValueError, match="expected float16, float32 or float64 for ONNX, got bfloat16"):
            to_onnx(model, tmp_path / "model.onnx")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch 2.13's exporter warns about itself
def test_onnx_refuses_invalid_models(monkeypatch, tmp_path):
    checker = pytest.importorskip("onnx.checker")
    pytest.importorskip("onnxscript")
    # Weights in float32, values in float16: the operator takes one dtype.
    with pytest.raises(ValueError, match=r"model\.onnx: expected a valid ONNX model, got: .*inconsistent type"):
        to_onnx(to_pytorch_model(convolutions(), {"autocast": "float16"}), tmp_path / "model.onnx")

    def refuse(*_arguments, **_options):
        raise checker.ValidationError("not\nvalid")

    monkeypatch.setattr(checker, "check_model", refuse)
    with pytest.raises(ValueError, match=r"model\.onnx: expected a valid ONNX model, got: not valid"):
        to_onnx(build(chain(2, 2)), tmp_path / "model.onnx")
    assert not [*tmp_path.iterdir()]


class Merged(torch.nn.Linear):
    """A layer that merges an adapter in eval mode, as in loralib: its `train` does more than to set a flag."""

    is_merged = False

    def train(self, mode=True):
        self.is_merged = not mode
        return super().train(mode)


@pytest.mark.parametrize("fails", [False, True])
def test_functions_restore_the_mode_of_every_submodule(fails, monkeypatch):
    """avalanche#772, pytorch#49229: a frozen batch norm was put back to training."""
    model = to_pytorch_model(convolutions())
    frozen = model.conv_bn_relu_1.batch_norm_2.eval()
    model.head_2 = Merged(4, 2)
    modes = [each.training for each in model.modules()]
    encoded = np.zeros((1, 1) if fails else (1, 3, 4, 4), np.float32)
    model.columns = SimpleNamespace(encoded=lambda rows: encoded, predictions=len)
    if fails:
        monkeypatch.setattr("torch.export.export", None)
        monkeypatch.setattr("gflownet.translation.export._timed", None)
    for call in (export_program, partial(measure_latency, num_calls=1), lambda model: model.predict([])):
        with pytest.raises((TypeError, ValueError)) if fails else nullcontext():
            call(model)
        assert [each.training for each in model.modules()] == modes
        assert not frozen.training
        assert not model.head_2.is_merged


def test_missing_onnx_packages_are_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    monkeypatch.setattr("gflownet.translation.export.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"gflownet\[onnx\].*missing onnx, onnxscript"):
        to_onnx(build(chain(2, 2)), tmp_path / "model.onnx")


def test_latency_is_measured_and_leaves_the_model_as_it_was():
    model = build(recurrent())
    model(torch.ones(3, 4))
    kept = model.state_manager.tensors
    latency = measure_latency(model, batch_size=2, num_calls=7)
    assert 0 < latency.fastest_seconds <= latency.median_seconds <= latency.slowest_seconds
    assert (latency.num_calls, latency.batch_size) == (7, 2)
    assert model.training
    assert model.state_manager.tensors is kept
    with pytest.raises(ValueError, match="got 0 and 100"):
        measure_latency(model, batch_size=0)


@pytest.mark.filterwarnings("ignore")  # torch 2.13's exporter warns about itself
@pytest.mark.parametrize(
    ("sizes", "settings", "expected"),
    [
        (
            (3, 4, 4),
            {"name": "AvgPool2d", "kernel_size": 2, "divisor_override": 3},
            "outputs of the model, got others at y",
        ),
        pytest.param(
            (5, 6),
            {"name": "LSTM", "hidden_size": 4, "proj_size": 2, "output": 0},
            "an ONNX model that runs, got .*LSTM",
            marks=pytest.mark.slow,
        ),
        pytest.param((5, 6), {"name": "LSTM", "hidden_size": 4, "output": [1, 1, -1]}, "", marks=pytest.mark.slow),
    ],
    ids=["divisor", "projection", "cell state"],
)
def test_onnx_that_computes_something_else_is_refused(tmp_path, sizes, settings, expected):
    """The exporter of torch 2.13 ignores divisor_override and proj_size, and gives the cell state a wrong shape."""
    pytest.importorskip("onnxruntime")
    layer = {**settings, "name": f"torch.nn:{settings['name']}"}
    nodes = [image_input(*sizes), {"id": 1, "node_type": "output", "operation": layer}]
    model = to_pytorch_model(graph_of(nodes, [(0, 1)]))
    with pytest.raises(ValueError, match=expected) if expected else nullcontext():
        to_onnx(model, tmp_path / "model.onnx")
    assert len([*tmp_path.iterdir()]) == (not expected)
