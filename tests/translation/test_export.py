"""torch.export, torch.compile, ONNX (where its packages are installed) and latency."""

import sys

import pytest
import torch

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.translation import export_program, measure_latency, to_onnx, to_pytorch_model
from tests.translation.graphs import chain, mixed, recurrent


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


@pytest.mark.parametrize("activation", ["relu", "gru"])
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
