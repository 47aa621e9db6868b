"""Modules of torch.nn as operations: the contract of operations, sizes of the input, ports, parts, identity."""

from __future__ import annotations

import importlib
import pickle
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gflownet.graphs import ComputationGraph, to_svg
from gflownet.graphs.operation import operation, read_operation
from gflownet.graphs.operation_labels import TIMES
from gflownet.graphs.typed import graph_cost
from gflownet.operations.modules import FILLED, module_operation
from gflownet.operations.operation import Category, Example
from gflownet.operations.tensor_shape import Layout, Shape
from gflownet.operations.vocabulary import activation
from gflownet.plugins import foreign_names
from gflownet.testing import OperationContract
from gflownet.testing.operations import inputs_of, one_node_graph
from gflownet.translation import copy_weights, summary, to_onnx, to_pytorch_model, to_source
from tests.operations.user_modules import Block, Config, Mode, Scaled, Stack

VECTOR, SEQUENCE, TOKENS = Shape.of(6), Shape.of((5, 6)), Shape((4,), Layout.TOKENS)
SIGNAL, IMAGE, VOLUME = Shape((4, 9), Layout.SIGNAL), Shape.of((4, 6, 8)), Shape.of((4, 3, 6, 5))
F = "torch.nn.functional"
# Arguments that are modules.
NORM = {"name": "torch.nn:LayerNorm", "normalized_shape": 6}
LAYER = {"name": "torch.nn:TransformerEncoderLayer", "d_model": 6, "nhead": 2, "dim_feedforward": 7, "dropout": 0.0}
LAYER |= {"batch_first": True}
BATCH_SECOND = {"encoder_layer": {**LAYER, "batch_first": False}, "enable_nested_tensor": False}
# Class, inputs and arguments: the output equals the module's, its costs are the counter's.
CASES: list[tuple[str, tuple[Shape, ...], dict[str, Any]]] = [
    ("Conv1d", (SIGNAL,), {"out_channels": 3, "kernel_size": 3, "padding": "same", "dilation": 2}),
    ("Conv2d", (IMAGE,), {"out_channels": 6, "kernel_size": [1, 7], "padding": "same", "groups": 2}),
    (
        "Conv2d",
        (IMAGE,),
        {"out_channels": 2, "kernel_size": 3, "stride": [2, 1], "padding_mode": "reflect", "padding": 1},
    ),
    ("ConvTranspose2d", (IMAGE,), {"out_channels": 2, "kernel_size": [2, 4], "stride": 2, "output_padding": [0, 1]}),
    ("MaxPool2d", (IMAGE,), {"kernel_size": [3, 2], "stride": 2, "ceil_mode": True}),
    ("MaxPool2d", (IMAGE,), {"kernel_size": 2, "return_indices": True, "output": 0}),
    ("AvgPool2d", (IMAGE,), {"kernel_size": 3, "stride": 1, "padding": 1, "count_include_pad": False}),
    ("LPPool2d", (IMAGE,), {"norm_type": 2, "kernel_size": 2}),
    ("AdaptiveAvgPool2d", (IMAGE,), {"output_size": [3, 1]}),
    ("AdaptiveMaxPool1d", (SIGNAL,), {"output_size": 2}),
    ("BatchNorm1d", (VECTOR,), {}),
    ("BatchNorm2d", (IMAGE,), {"affine": False}),
    ("InstanceNorm2d", (IMAGE,), {"affine": True}),
    ("GroupNorm", (IMAGE,), {"num_groups": 2}),
    ("LayerNorm", (SEQUENCE,), {"bias": False}),
    ("LayerNorm", (IMAGE,), {}),
    ("RMSNorm", (SEQUENCE,), {"eps": 1e-5}),
    ("Linear", (SEQUENCE,), {"out_features": 4}),
    ("Bilinear", (VECTOR, Shape.of(3)), {"out_features": 2}),
    ("Embedding", (TOKENS,), {"num_embeddings": 5, "embedding_dim": 3}),
    ("EmbeddingBag", (TOKENS,), {"num_embeddings": 5, "embedding_dim": 3, "mode": "mean"}),
    ("LSTM", (SEQUENCE,), {"hidden_size": 3, "bidirectional": True, "num_layers": 2, "output": 0}),
    ("GRU", (SEQUENCE,), {"hidden_size": 3, "output": 0}),
    ("RNN", (SEQUENCE,), {"hidden_size": 3, "nonlinearity": "relu", "output": 0}),
    ("GRUCell", (VECTOR,), {"hidden_size": 3}),
    ("LSTMCell", (VECTOR,), {"hidden_size": 3, "output": 1}),
    ("MultiheadAttention", (SEQUENCE, Shape.of((3, 4)), Shape.of((3, 2))), {"num_heads": 3, "output": 0}),
    ("TransformerEncoderLayer", (SEQUENCE,), {"nhead": 2, "dim_feedforward": 7, "norm_first": True, "dropout": 0.0}),
    ("TransformerDecoderLayer", (SEQUENCE, Shape.of((3, 6))), {"nhead": 2, "dim_feedforward": 7, "dropout": 0.0}),
    ("TransformerEncoder", (SEQUENCE,), {"encoder_layer": LAYER, "num_layers": 2, "norm": {**NORM, "bias": False}}),
    (
        "TransformerEncoderLayer",
        (SEQUENCE,),
        {"nhead": 2, "dim_feedforward": 7, "dropout": 0.0, "activation": f"{F}:silu"},
    ),
    ("Dropout2d", (IMAGE,), {"p": 0.3}),
    ("PReLU", (IMAGE,), {"num_parameters": 4}),
    ("GLU", (SEQUENCE,), {}),
    ("Softmax", (SEQUENCE,), {"dim": -1}),
    ("LocalResponseNorm", (IMAGE,), {"size": 2}),
    ("Flatten", (IMAGE,), {}),
    ("Flatten", (IMAGE,), {"start_dim": 2}),
    ("Unflatten", (VECTOR,), {"dim": 1, "unflattened_size": [3, 2], "layout": "signal"}),
    ("PixelShuffle", (IMAGE,), {"upscale_factor": 2}),
    ("PixelUnshuffle", (IMAGE,), {"downscale_factor": 2}),
    ("ChannelShuffle", (IMAGE,), {"groups": 2}),
    ("Upsample", (IMAGE,), {"scale_factor": 1.5, "mode": "bilinear"}),
    ("ReflectionPad2d", (IMAGE,), {"padding": [1, 0, 2, 1]}),
    ("ZeroPad1d", (SIGNAL,), {"padding": [2, 0]}),
    ("CircularPad2d", (IMAGE,), {"padding": 1}),
    ("Softplus", (VECTOR,), {"beta": 2}),
    ("Conv3d", (VOLUME,), {"out_channels": 6, "kernel_size": [1, 3, 2], "stride": [1, 2, 1], "groups": 2}),
    ("ConvTranspose3d", (VOLUME,), {"out_channels": 3, "kernel_size": 2, "stride": [1, 2, 2]}),
    ("MaxPool3d", (VOLUME,), {"kernel_size": [1, 2, 2], "ceil_mode": True}),
    ("AvgPool3d", (VOLUME,), {"kernel_size": 2, "padding": 1, "count_include_pad": False}),
    ("AdaptiveAvgPool3d", (VOLUME,), {"output_size": [3, 2, 1]}),
    ("BatchNorm3d", (VOLUME,), {"momentum": 0.3}),
    ("InstanceNorm3d", (VOLUME,), {"affine": True}),
    ("GroupNorm", (VOLUME,), {"num_groups": 2}),
    ("LayerNorm", (VOLUME,), {}),
    ("Dropout3d", (VOLUME,), {"p": 0.3}),
    ("ConstantPad3d", (VOLUME,), {"padding": [1, 0, 2, 0, -1, 1], "value": 1.5}),
    ("Upsample", (VOLUME,), {"scale_factor": 2, "mode": "trilinear"}),
    ("Flatten", (VOLUME,), {"start_dim": 2}),
    ("Unflatten", (IMAGE,), {"dim": 1, "unflattened_size": [2, 2]}),
]
# What the exporter of torch 2.13 lacks.
NOT_IN_ONNX = {"AdaptiveMaxPool1d": "Failed to convert the exported program"}
IDS = [f"{name}-{place}" for place, (name, _, _) in enumerate(CASES)]


@pytest.mark.parametrize("is_complete", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "inputs", "arguments"), CASES, ids=IDS)
def test_module_satisfies_the_contract(
    name: str, inputs: tuple[Shape, ...], arguments: dict[str, Any], is_complete: bool
) -> None:
    contract = OperationContract(f"torch.nn:{name}", Example(inputs, arguments))
    short = ["check_output_shape_and_costs_equal_the_module", "check_graph_equals_its_source_and_cost"]
    for check in contract.names() if is_complete else short:
        contract.run(check)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "inputs", "arguments"), CASES, ids=IDS)
@pytest.mark.filterwarnings("ignore")  # torch 2.13's exporter warns about itself
def test_module_onnx_equals_model(name: str, inputs: Any, arguments: dict[str, Any], tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = to_pytorch_model(one_node_graph(f"torch.nn:{name}", Example(inputs, arguments))).eval()
    if name in NOT_IN_ONNX:
        with pytest.raises(Exception, match=NOT_IN_ONNX[name]):
            to_onnx(model, tmp_path / "model.onnx")
        return
    to_onnx(model, tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    tensors = inputs_of(model)
    values = {value.name: tensor.numpy() for value, tensor in zip(session.get_inputs(), tensors, strict=False)}
    torch.testing.assert_close(torch.from_numpy(session.run(None, values)[0]), model(*tensors), rtol=1e-4, atol=1e-5)


def one_node(
    operation: dict[str, Any], *shapes: Shape, ports: tuple[str, ...] = ("input",), **fields: Any
) -> ComputationGraph:
    nodes: list[dict[str, Any]] = [
        {"id": i, "node_type": "input", "shape": list(shape.sizes), "layout": shape.layout.value}
        for i, shape in enumerate(shapes)
    ]
    edges = [{"source": i, "target": len(shapes), "port": port} for i, port in enumerate(ports)]
    nodes.append({"id": len(shapes), "node_type": "output", "operation": operation, **fields})
    return ComputationGraph.from_dict({"nodes": nodes, "edges": edges})


def module_of(model: Any) -> Any:
    (module,) = (each for each in model.children())
    return module


@pytest.mark.parametrize(
    ("name", "arguments", "inputs", "key", "value"),
    [
        ("Conv2d", {"out_channels": 2, "kernel_size": 1}, {"input": IMAGE}, "in_channels", 4),
        ("Linear", {"out_features": 2}, {"input": SIGNAL}, "in_features", 9),  # the last axis, as in torch
        ("BatchNorm2d", {}, {"input": IMAGE}, "num_features", 4),
        ("GroupNorm", {"num_groups": 2}, {"input": SIGNAL}, "num_channels", 4),
        ("LayerNorm", {}, {"input": SEQUENCE}, "normalized_shape", (6,)),
        ("LayerNorm", {}, {"input": IMAGE}, "normalized_shape", (4, 6, 8)),
        ("LayerNorm", {}, {"input": VOLUME}, "normalized_shape", (4, 3, 6, 5)),
        ("Conv3d", {"out_channels": 2, "kernel_size": 1}, {"input": VOLUME}, "in_channels", 4),
        ("Bilinear", {"out_features": 1}, {"input2": SEQUENCE, "input1": SIGNAL}, "in1_features", 9),
        ("Bilinear", {"out_features": 1}, {"input2": SEQUENCE, "input1": SIGNAL}, "in2_features", 6),
        ("GRU", {"hidden_size": 2}, {"input": SEQUENCE}, "input_size", 6),
        ("GRU", {"hidden_size": 2}, {"input": SEQUENCE}, "batch_first", True),
        ("TransformerEncoderLayer", {"nhead": 2}, {"input": SEQUENCE}, "d_model", 6),
    ],
)
def test_sizes_of_the_input_are_filled(name: str, arguments: Any, inputs: Any, key: str, value: Any) -> None:
    applied: Any = read_operation({"name": f"torch.nn:{name}", **arguments})
    assert applied.settings[key] is None
    assert key in FILLED
    keywords = applied.row.keywords(applied.row.arguments, inputs, applied.settings)
    assert keywords[key] == repr(value)
    given: Any = read_operation({"name": f"torch.nn:{name}", **arguments, key: value})
    assert given.row.keywords(given.row.arguments, inputs, given.settings) == keywords


OWN_WIDTHS = """
from torch import nn

class Mixer(nn.Module):
    def __init__(self, dim, channels, hidden=3):
        super().__init__()
        self.up, self.down = nn.Conv1d(dim, channels, 1), nn.Conv1d(channels, dim, 1)

    def forward(self, x):
        return x + self.down(self.up(x))

class Norm(nn.LayerNorm):
    def __init__(self, num_channels, eps=0.1, **kwargs):
        super().__init__(num_channels, eps=eps, **kwargs)

    def forward(self, x):
        return super().forward(x.mT).mT

class Scaled(nn.Conv1d):
    def __init__(self, scale=2.0, **kwargs):
        super().__init__(**kwargs)
"""


def test_width_of_a_class_outside_of_torch_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first required `dim`, `channels` and the like, and what a class passes on to its base class."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_widths_57.py").write_text(OWN_WIDTHS)
    cases: list[tuple[str, Any]] = [
        ("Mixer", {"channels": 5}),
        ("Norm", {"bias": False}),
        ("Scaled", {"out_channels": 4, "kernel_size": 1}),
    ]
    for name, settings in cases:
        model = to_pytorch_model(one_node({"name": f"own_widths_57:{name}", **settings}, SIGNAL))
        assert model(torch.zeros(2, *SIGNAL.sizes)).shape == (2, *SIGNAL.sizes)
    (problem,) = one_node({"name": "own_widths_57:Mixer"}, SIGNAL).validate()
    assert "expected a setting channels, a value as in Mixer(dim, channels, hidden=3), got none" in problem.message


def test_channels_are_not_read_from_a_sequence() -> None:
    """A sequence [T, D] would be a signal of T channels."""
    operation = {"name": "torch.nn:Conv1d", "out_channels": 2, "kernel_size": 1}
    (problem,) = one_node(operation, SEQUENCE).validate()
    assert "expected channels before positions, got sequence [5, 6]; to_signal moves them" in problem.message


@pytest.mark.parametrize(
    ("applied", "shape"),
    [
        ({"name": "torch.nn:Softmax", "dim": 0}, VECTOR),
        ({"name": "torch.nn:Softmax", "dim": -3}, SEQUENCE),
        ({"name": "torch.nn:LogSoftmax", "dim": 0}, VOLUME),
        ({"name": "torch.nn:Softmax2d"}, SEQUENCE),  # reads [B, T, D] as one image of B channels
        ({"name": "torch.nn:TransformerEncoder", **BATCH_SECOND, "num_layers": 2}, SEQUENCE),
        ({"name": "torch:cumsum", "dim": 0}, VECTOR),
        ({"name": "torch:cumsum", "dim": -3}, SEQUENCE),
        ({"name": "torch:roll", "shifts": 1}, VECTOR),
        ({"name": "torch:flip", "dims": [0]}, VECTOR),
        ({"name": "torch:sort", "dim": 0, "output": 0}, SEQUENCE),
        ({"name": "torch:tril"}, VECTOR),  # by the place in the batch
        ({"name": "torch:squeeze"}, VECTOR),  # of a batch of one
        ({"name": "torch:reshape", "shape": [-1, 2]}, VECTOR),  # more rows than examples
    ],
)
def test_operation_that_mixes_the_examples_of_a_batch_is_refused(applied: Any, shape: Shape) -> None:
    (problem,) = one_node(applied, shape).validate()
    assert "expected an output" in problem.message
    assert "alone, got one that depends on the others" in problem.message or "with the batch first" in problem.message


@pytest.mark.parametrize(
    ("applied", "sizes"),
    [
        ({"name": "torch.nn:GRU", "hidden_size": 4, "num_layers": 13, "output": 1}, (13, 4)),
        ({"name": "torch:reshape", "shape": [-1, 13, 2]}, (13, 2)),
        ({"name": "torch.nn:Linear", "out_features": 13}, (2, 13)),
    ],
)
def test_batch_is_found_beside_sizes_of_any_number(applied: Any, sizes: tuple[int, ...]) -> None:
    graph = one_node(applied, Shape.of((2, 13)))
    assert graph.validate() == []
    assert to_pytorch_model(graph)(torch.zeros(5, 2, 13)).shape == (5, *sizes)


def test_number_of_the_batch_is_no_size_of_a_setting() -> None:
    assert one_node({"name": "torch.nn:BatchNorm1d", "momentum": None}, VECTOR).validate() == []  # reads its state
    messages = [p.message for p in one_node({"name": "torch:reshape", "shape": [13, -1]}, Shape.of(26)).validate()]
    assert ["expected an output with the batch first" in message for message in messages] == [True]


TWO_PORTS: dict[str, Any] = {
    "torch:sub": ({}, ("input", "other"), torch.sub),
    "torch:matmul": ({}, ("input", "other"), torch.matmul),
    "torch.nn:Bilinear": ({"out_features": 3}, ("input1", "input2"), None),
    "torch.nn:MultiheadAttention": ({"num_heads": 2, "output": 0}, ("query", "key", "value"), None),
}


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("name", TWO_PORTS)
def test_tensors_reach_the_ports_of_their_edges(name: str, is_reversed: bool) -> None:
    """Equal shapes at all ports, so that swapped tensors fit: their values tell."""
    settings, ports, function = TWO_PORTS[name]
    order = ports[::-1] if is_reversed else ports
    model = to_pytorch_model(one_node({"name": name, **settings}, *[Shape.of((6, 6))] * len(ports), ports=order))
    tensors = torch.randn(len(ports), 2, 6, 6, generator=torch.Generator().manual_seed(0))
    of_port = dict(zip(order, tensors, strict=True))
    result = (function or module_of(model))(*(of_port[port] for port in ports))
    assert torch.allclose(model(*tensors), result[0] if isinstance(result, tuple) else result)


def test_tensors_reach_the_ports_of_a_subgraph() -> None:
    inner = [{"id": p, "node_type": "input", "attributes": {"port": port}} for p, port in enumerate("ab")]
    inner.append({"id": 2, "node_type": "output", "attributes": {"operation": {"name": "torch:sub"}}})
    links = [{"source": p, "target": 2, "attributes": {"port": port}} for p, port in enumerate(("input", "other"))]
    nodes = [{"id": place, "node_type": "input", "shape": [6, 6]} for place in range(2)]
    nodes.append({"id": 2, "node_type": "output", "subgraph": "minus"})
    edges = [{"source": p, "target": 2, "attributes": {"port": port}} for p, port in enumerate("ba")]
    data = {"nodes": nodes, "edges": edges, "subgraphs": {"minus": {"nodes": inner, "edges": links}}}
    x, y = torch.randn(2, 2, 6, 6)
    assert torch.equal(to_pytorch_model(ComputationGraph.from_dict(data))(x, y), y - x)


MIXING = """
from torch import nn

class Centred(nn.Module):
    def __init__(self, in_features: int, axis: int = 0):
        super().__init__()
        self.layer, self.axis = nn.Linear(in_features, 3), axis

    def forward(self, x):
        x = self.layer(x)
        return x - x.mean(self.axis, keepdim=True)

class Gated(Centred):
    def __init__(self, in_features: int):
        super().__init__(in_features)
        self.gate = nn.Parameter(nn.Linear(1, 1).weight.detach()[0] * 0)

    def forward(self, x):
        return x + self.gate * super().forward(x).sum(1, keepdim=True)

def first(x):
    return x - x[:1]

class Statistics(Centred):
    def __init__(self, in_features: int):
        super().__init__(in_features, -1)
        self.norm = nn.BatchNorm1d(3, track_running_stats=False)

    def forward(self, x):
        return self.norm(self.layer(x))
"""


def test_class_of_a_user_is_run_to_see_whether_it_mixes_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mixing_modules_50.py").write_text(MIXING)
    state, centred = torch.random.get_rng_state(), "mixing_modules_50:Centred"
    for name in (centred, "mixing_modules_50:Gated", "mixing_modules_50:first"):
        (problem,) = one_node({"name": name}, VECTOR).validate()
        assert "expected an output for each example alone" in problem.message
    assert one_node({"name": centred, "axis": -1}, VECTOR).validate() == []
    assert one_node({"name": "mixing_modules_50:Statistics"}, VECTOR).validate() == []
    assert torch.equal(torch.random.get_rng_state(), state)


def test_no_layer_of_torch_with_weights_mixes_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """These are not run: under the name of a user's class they are."""
    monkeypatch.setitem(sys.modules, "other_layers", nn)
    for name, inputs, arguments in CASES:
        applied: Any = read_operation({"name": f"torch.nn:{name}", **arguments})
        row = module_operation(f"other_layers:{name}", getattr(nn, name))
        shapes = dict(zip(row.ports, inputs, strict=True))
        assert row.infer_shape(shapes, applied.settings) == applied.row.infer_shape(shapes, applied.settings)


def test_arguments_of_forward_are_ports() -> None:
    row = operation("torch.nn:MultiheadAttention")
    assert row.ports == ("query", "key", "value")
    assert row.optional_ports == ("key_padding_mask", "attn_mask")
    assert operation("torch.nn:TransformerDecoderLayer").ports == ("tgt", "memory")
    cell = one_node({"name": "torch.nn:GRUCell", "hidden_size": 3}, VECTOR, Shape.of(3), ports=("input", "hx"))
    assert cell.validate() == []
    model, x, hidden = to_pytorch_model(cell), torch.randn(2, 6), torch.randn(2, 3)
    assert torch.equal(model(x, hidden), module_of(model)(x, hidden))
    namespace: dict[str, Any] = {}
    exec(to_source(cell), namespace)
    (again := namespace["Model"]()).load_state_dict(model.state_dict())
    assert torch.equal(again(x, hidden), model(x, hidden))
    wrong = one_node({"name": "torch.nn:Bilinear", "out_features": 3}, VECTOR, VECTOR, ports=("input1", "y"))
    messages = [problem.message for problem in wrong.validate()]
    assert "node 2: expected edges into ports out of input1, input2, got 'y'" in messages


def test_part_of_a_result_must_be_named() -> None:
    (problem,) = one_node({"name": "torch.nn:LSTM", "hidden_size": 3}, SEQUENCE).validate()
    assert "expected a tensor, got a tuple of 0, 1; output names one of them" in problem.message


def test_first_values_are_those_of_the_module() -> None:
    graph = one_node({"name": "torch.nn:Conv2d", "out_channels": 2, "kernel_size": [1, 3]}, IMAGE)
    torch.manual_seed(3)
    model = to_pytorch_model(graph)
    torch.manual_seed(3)
    expected = nn.Conv2d(4, 2, (1, 3))
    assert torch.equal(module_of(model).weight, expected.weight)
    cast = to_pytorch_model(graph, {"dtype": "bfloat16", "memory_format": "channels_last"})
    assert module_of(cast).weight.dtype is torch.bfloat16
    assert module_of(cast).weight.is_contiguous(memory_format=torch.channels_last)


def test_weight_of_a_module_can_be_tied() -> None:
    nodes = [
        {"id": 0, "node_type": "input", "shape": [4], "dtype": "token"},
        {"id": 1, "operation": {"name": "torch.nn:Embedding", "num_embeddings": 7, "embedding_dim": 3}},
        {"id": 2, "node_type": "output", "operation": {"name": "tied_linear"}},
    ]
    edges = [{"source": 0, "target": 1}, {"source": 1, "target": 2}, {"source": 1, "target": 2, "port": "weight"}]
    graph = ComputationGraph.from_dict({"nodes": nodes, "edges": edges})
    assert graph_cost(graph).num_parameters == 21
    assert to_pytorch_model(graph)(torch.randint(7, (2, 4))).shape == (2, 4, 7)


def test_identity_does_not_depend_on_defaults_that_are_written_out() -> None:
    short = one_node({"name": "torch.nn:Conv2d", "out_channels": 2, "kernel_size": 3}, IMAGE)
    written = {"name": "torch.nn:Conv2d", "stride": 1, "kernel_size": 3, "out_channels": 2, "in_channels": None}
    assert one_node(written, IMAGE).canonical_key() == short.canonical_key()
    for changed in ({"stride": 2}, {"kernel_size": [3, 3]}, {"in_channels": 4}):
        assert one_node({**written, **changed}, IMAGE).canonical_key() != short.canonical_key()
    zeros: list[Any] = [read_operation({"name": "dropout", "dropout": value}) for value in (0, 0.0)]
    assert [each.at({"input": IMAGE}).constructor for each in zeros] == ["nn.Dropout(0)", "nn.Dropout(0.0)"]


def test_module_in_summary_drawing_and_source() -> None:
    operation = {"name": "torch.nn:Conv2d", "out_channels": 2, "kernel_size": [1, 7], "stride": [1, 2]}
    graph = one_node(operation, IMAGE, activation_function="torch.nn:Mish")
    assert "Conv2d(kernel_size=(1, 7), out_channels=2, stride=(1, 2)) -> Mish" in str(summary(graph))
    assert f"Conv 1{TIMES}7, 2 /1{TIMES}2 · Mish" in to_svg(graph)
    assert "nn.Conv2d(in_channels=4, out_channels=2, kernel_size=(1, 7), stride=(1, 2))" in to_source(graph)


def test_categories_follow_from_names() -> None:
    names = {"Conv3d": Category.CONVOLUTION, "AdaptiveAvgPool2d": Category.POOLING, "RMSNorm": Category.NORMALISATION}
    names |= {"TransformerEncoderLayer": Category.ATTENTION, "LSTM": Category.RECURRENT, "Softplus": Category.OTHER}
    assert {name: operation(f"torch.nn:{name}").category for name in names} == names


X, Y = ("tensors0", "tensors1"), ("input", "other")
_cosine = nn.CosineSimilarity()
FUNCTIONS: list[tuple[dict[str, Any], tuple[Shape, ...], tuple[str, ...], Any]] = [
    ({"name": "torch:maximum"}, (VECTOR, VECTOR), Y, torch.maximum),
    ({"name": "torch:sub"}, (IMAGE, IMAGE), Y, torch.sub),
    ({"name": "torch:sub", "other": 1.5}, (IMAGE,), ("input",), lambda x: x - 1.5),
    ({"name": "torch:bmm"}, (SEQUENCE, Shape.of((6, 3))), ("input", "mat2"), torch.bmm),
    ({"name": "torch:flip", "dims": [3]}, (IMAGE,), ("input",), lambda x: x.flip(3)),
    ({"name": "torch:chunk", "chunks": 2, "dim": 1, "output": 1}, (IMAGE,), ("input",), lambda x: x[:, 2:]),
    ({"name": "torch:max"}, (VECTOR, VECTOR), Y, torch.maximum),
    ({"name": "torch:max", "dim": 1, "output": 0}, (SEQUENCE,), ("input",), lambda x: x.amax(1)),
    ({"name": "torch:clamp", "max": 0.5}, (VECTOR,), ("input",), lambda x: x.clamp(max=0.5)),
    ({"name": "torch:clamp"}, (VECTOR, VECTOR), ("input", "min"), lambda x, y: x.clamp(min=y)),
    ({"name": "torch:reshape", "shape": [-1, 2, 3]}, (VECTOR,), ("input",), lambda x: x.view(-1, 2, 3)),
    (
        {"name": f"{F}:pad", "pad": [1, 2], "value": 1.0},
        (SIGNAL,),
        ("input",),
        lambda x: nn.ConstantPad1d((1, 2), 1.0)(x),
    ),
    ({"name": f"{F}:normalize", "dim": -1}, (SEQUENCE,), ("input",), lambda x: x / x.norm(dim=-1, keepdim=True)),
    ({"name": f"{F}:layer_norm"}, (SEQUENCE,), ("input",), nn.LayerNorm(6, elementwise_affine=False)),
    (
        {"name": f"{F}:cosine_similarity"},
        (VECTOR, VECTOR),
        ("x1", "x2"),
        lambda x, y: nn.CosineSimilarity()(x, y)[:, None],
    ),
    (
        {"name": f"{F}:scaled_dot_product_attention", "is_causal": True},
        (SEQUENCE, SEQUENCE, SEQUENCE),
        ("query", "key", "value"),
        lambda q, k, v: nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),
    ),
    ({"name": "torch.linalg:vector_norm", "dim": 1}, (SEQUENCE,), ("input",), lambda x: x.norm(dim=1)),
    # A list of tensors has a port for each place; in einsum the equation comes first.
    ({"name": "torch:cat", "dim": 2}, (SEQUENCE, Shape.of((5, 2))), X, lambda x, y: torch.cat([x, y], 2)),
    ({"name": "torch:stack", "dim": 1}, (VECTOR,) * 3, (*X, "tensors2"), lambda *x: torch.stack(x, 1)),
    (
        {"name": "torch:einsum", "equation": "bi,bj->bij"},
        (VECTOR, Shape.of(3)),
        X,
        lambda x, y: x[..., None] * y[:, None],
    ),
    ({"name": "torch:einsum", "equation": "bij->bji"}, (SEQUENCE,), X[:1], lambda x: x.mT),
    # Methods of tensors that torch has no function for.
    (
        {"name": "torch:unfold", "dimension": 2, "size": 4, "step": 2},
        (SIGNAL,),
        ("input",),
        lambda x: x.unfold(2, 4, 2),
    ),
    ({"name": "torch:repeat", "repeats": [1, 3]}, (VECTOR,), ("input",), lambda x: x.repeat(1, 3)),
    (
        {"name": "torch:repeat_interleave", "repeats": 2, "dim": 2},
        (SIGNAL,),
        ("input",),
        lambda x: x.repeat_interleave(2, 2),
    ),
    # Parts of complex numbers.
    ({"name": "torch.fft:rfft", "output": "abs"}, (SIGNAL,), ("input",), lambda x: torch.fft.rfft(x).abs()),
    ({"name": "torch.fft:fft2", "output": "real"}, (SEQUENCE,), ("input",), lambda x: torch.fft.fft2(x).real),
]


@pytest.mark.parametrize(("applied", "shapes", "ports", "function"), FUNCTIONS)
def test_function_by_name_is_an_operation(applied: Any, shapes: Any, ports: Any, function: Any) -> None:
    graph = one_node(applied, *shapes, ports=ports)
    assert graph.validate() == []
    model, values = to_pytorch_model(graph), [torch.randn(3, *shape.sizes) for shape in shapes]
    torch.testing.assert_close(model(*values), function(*values))
    namespace: dict[str, Any] = {}
    exec(to_source(graph), namespace)
    assert torch.equal(namespace["Model"]()(*values), model(*values))
    assert torch.equal(pickle.loads(pickle.dumps(model))(*values), model(*values))
    cost = graph_cost(graph)
    assert (cost.num_parameters, cost.multiply_adds) == (0, {"torch:bmm": 90}.get(applied["name"], cost.multiply_adds))


USER = "tests.operations.user_modules"
_linear = {"name": "torch.nn:Linear", "in_features": 6, "out_features": 3}
_layer = {"name": "torch.nn:TransformerEncoderLayer", "d_model": 6, "nhead": 2, "dim_feedforward": 4, "dropout": 0.0}
_layer["batch_first"] = True
_config = {"name": f"{USER}:Config", "width": 4, "bias": False}
VALUES: list[tuple[dict[str, Any], tuple[Shape, ...], tuple[str, ...], Any]] = [
    ({"name": f"{USER}:Scaled", "mode": "half"}, (VECTOR,), ("input",), lambda: Scaled(mode=Mode.HALF)),
    ({"name": f"{USER}:Scaled", "mode": "TWICE", "shift": 0.5, "scale": 3}, (VECTOR,), ("input",), lambda: SixTimes()),
    (
        {
            "name": f"{USER}:Block",
            "config": _config,
            "hidden": [5],
            "act": "torch.nn:GELU",
            "norm": "torch.nn:LayerNorm",
        },
        (VECTOR,),
        ("input",),
        lambda: Block(Config(4, False), 6, [5], nn.GELU, nn.LayerNorm),
    ),
    ({"name": f"{USER}:Stack", "sizes": [2, 1]}, (VECTOR, Shape.of(3)), ("input", "tensors1"), lambda: Stack(2, 1)),
    (
        {"name": "torch.nn:Sequential", "args": [_linear, {"name": "torch.nn:Tanh"}]},
        (VECTOR,),
        ("input",),
        lambda: nn.Sequential(nn.Linear(6, 3), nn.Tanh()),
    ),
    (
        {
            "name": "torch.nn:TransformerEncoder",
            "encoder_layer": _layer,
            "num_layers": 2,
            "enable_nested_tensor": False,
        },
        (SEQUENCE,),
        ("input",),
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 4, 0.0, batch_first=True), 2, None, False),
    ),
    (
        {**_layer, "activation": "torch.nn.functional:silu"},
        (SEQUENCE,),
        ("input",),
        lambda: nn.TransformerEncoderLayer(6, 2, 4, 0.0, nn.functional.silu, batch_first=True),
    ),
]


class SixTimes(nn.Module):
    def forward(self, x):
        return 6 * x + 0.5


@pytest.mark.parametrize(("applied", "shapes", "ports", "make"), VALUES, ids=[each[0]["name"] for each in VALUES])
def test_values_stand_for_members_classes_and_objects(applied: Any, shapes: Any, ports: Any, make: Any) -> None:
    graph = one_node(applied, *shapes, ports=ports)
    assert graph.validate() == []
    module, model, values = make().eval(), to_pytorch_model(graph), [torch.randn(3, *each.sizes) for each in shapes]
    copy_weights(model, module)
    torch.testing.assert_close(model.eval()(*values), module(*values))
    namespace: dict[str, Any] = {}
    exec(to_source(graph), namespace)
    (again := namespace["Model"]()).load_state_dict(model.state_dict())
    torch.testing.assert_close(again.eval()(*values), module(*values))
    assert graph_cost(graph).num_parameters == sum(each.numel() for each in module.parameters())


def test_value_of_an_enumeration_is_checked() -> None:
    (problem,) = one_node({"name": f"{USER}:Scaled", "mode": "third"}, VECTOR).validate()
    assert "expected one of TWICE, HALF, twice, half for mode, got 'third'" in problem.message


def test_input_that_is_changed_in_place_is_copied() -> None:
    """Another node reads the same value."""
    changed = {"name": f"{USER}:InPlace"}
    for applied, ports, value in (
        ({"name": "torch.nn:ReLU", "inplace": True}, [{}], lambda x: x + x.relu()),
        (changed, [{"port": "x"}, {"port": "y"}], lambda x: 4 * x),
    ):
        nodes = [{"id": 0, "shape": [6]}, {"id": 1, "operation": applied}]
        nodes.append({"id": 2, "node_type": "output", "operation": {"name": "identity"}})
        edges = [{"source": 0, "target": 1, **port} for port in ports]
        graph = ComputationGraph.from_dict(
            {"nodes": nodes, "edges": [*edges, *({"source": i, "target": 2} for i in (0, 1))]}
        )
        x = torch.randn(3, 6)
        assert torch.equal(to_pytorch_model(graph)(given := x.clone()), value(x))
        assert torch.equal(given, x)


@pytest.mark.parametrize("num_layers", [1, 2])
def test_states_of_recurrent_modules_are_inputs_and_outputs(num_layers: int) -> None:
    """A state has its layers first in torch, the batch first in a graph; a vector is the state of one layer."""
    gru, lstm = nn.GRU(6, 3, num_layers, batch_first=True), nn.LSTM(6, 3, num_layers, batch_first=True)
    state = Shape.of((num_layers, 3)) if num_layers > 1 else Shape.of(3)
    x, hidden, memory = torch.randn(2, 5, 6), torch.randn(2, *state.sizes), torch.randn(2, *state.sizes)
    h, c = (each.transpose(0, 1).contiguous() if num_layers > 1 else each[None] for each in (hidden, memory))
    setting = {"hidden_size": 3, "num_layers": num_layers}
    for applied, shapes, ports, values, module, expected in (
        ({"name": "torch.nn:GRU", "output": 0}, [state], ["hx"], [hidden], gru, lambda: gru(x, h)[0]),
        ({"name": "torch.nn:GRU", "output": 1}, [state], ["hx"], [hidden], gru, lambda: gru(x, h)[1].transpose(0, 1)),
        ({"name": "torch.nn:GRU", "output": [1, -1]}, [], [], [], gru, lambda: gru(x)[1][-1]),
        (
            {"name": "torch.nn:LSTM", "output": 0},
            [state] * 2,
            ["hx0", "hx1"],
            [hidden, memory],
            lstm,
            lambda: lstm(x, (h, c))[0],
        ),
    ):
        graph = one_node(applied | setting, SEQUENCE, *shapes, ports=("input", *ports))
        model = to_pytorch_model(graph)
        copy_weights(model, module)
        torch.testing.assert_close(model(x, *values), expected())
        assert model.plan.outputs[0][1].sizes == tuple(expected().shape[1:])


def test_function_of_a_file_with_a_list_and_a_value_before_it() -> None:
    graph = one_node({"name": f"{USER}:weighted", "weights": [2, 0.5]}, VECTOR, VECTOR, ports=("xs0", "xs1"))
    x, y = torch.randn(2, 6), torch.randn(2, 6)
    torch.testing.assert_close(to_pytorch_model(graph)(x, y), 2 * x + 0.5 * y)


def test_function_of_a_file_with_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    text = "import torch\ndef outer(x, y, *, scale=1.0):\n    return scale * torch.einsum('bi,bj->bij', x, y)\n"
    (tmp_path / "outer_products_41.py").write_text(text)
    graph = one_node({"name": "outer_products_41:outer", "scale": 2}, VECTOR, Shape.of(3), ports=("x", "y"))
    x, y = torch.randn(2, 6), torch.randn(2, 3)
    torch.testing.assert_close(to_pytorch_model(graph)(x, y), 2 * x[:, :, None] * y[:, None])
    namespace: dict[str, Any] = {}
    exec(to_source(graph), namespace)
    assert torch.equal(namespace["Model"]()(x, y), to_pytorch_model(graph)(x, y))


@pytest.mark.parametrize(
    ("applied", "message"),
    [
        ({"name": "torch:flip"}, "torch:flip: expected a setting dims, a value as in flip(input, dims), got none"),
        ({"name": "torch:add", "alpa": 1}, "expected settings out of add(input, other, alpha), got 'alpa'"),
        ({"name": "torch:sub"}, "expected an edge into the port other, got none"),
        (
            {"name": "torch:lerp"},
            "lerp(input, end, weight); a function of yours that calls it takes a tensor, got none",
        ),
        ({"name": "torch:mean"}, "expected an output with the batch first, got []"),
        ({"name": "torch:permute", "dims": [1, 0, 2]}, "expected an output with the batch first, got [5, batch, 6]"),
        ({"name": "torch:argmax", "dim": 1}, "got torch.int64; a function of yours converts it"),
        ({"name": "torch.fft:rfft"}, "got torch.complex64; output names its real, imag, abs, angle"),
        ({"name": "torch:cat"}, "expected edges into ports out of tensors0, tensors1, tensors2, tensors3, tensors4, "),
        ({"name": f"{F}:linear"}, "expected a function of tensors, no weight of a layer and no argument training"),
        ({"name": f"{F}:dropout"}, "expected a function of tensors, no weight of a layer and no argument training"),
        ({"name": "torch:relu_"}, "argument training, that changes none of them, got torch:relu_"),
        ({"name": "torch:numpy"}, "argument training, that changes none of them, got torch:numpy"),
        ({"name": "torch.hub:load"}, "expected a function of torch, torch.nn.functional, torch.linalg, torch.fft"),
    ],
)
def test_refused_functions(applied: Any, message: str) -> None:
    messages = [problem.message for problem in one_node(applied, SEQUENCE).validate()]
    assert any(message in each for each in messages), messages


@pytest.mark.parametrize("name", ["torch.nn:Mish", "torch:exp", "torch.nn.functional:softsign", "torch.special:erf"])
def test_function_by_name_is_an_activation(name: str) -> None:
    dense = [{"id": 0, "node_type": "input", "output_size": 6}, {"id": 1, "node_type": "output", "output_size": 2}]
    dense[1]["activation_function"] = name
    graphs = [ComputationGraph.from_dict({"nodes": dense, "edges": [{"source": 0, "target": 1}]})]
    graphs.append(one_node({"name": "torch.nn:Linear", "out_features": 2}, VECTOR, activation_function=name))
    module, _, leaf = name.partition(":")
    function = getattr(importlib.import_module(module), leaf)
    function, x = function() if isinstance(function, type) else function, torch.randn(3, 6)
    for graph in graphs:
        plain = graph.to_dict()
        plain["nodes"][1]["activation_function"] = "linear"
        torch.manual_seed(0)
        model = to_pytorch_model(graph)
        torch.manual_seed(0)
        assert torch.equal(model(x), function(to_pytorch_model(ComputationGraph.from_dict(plain))(x)))
        namespace: dict[str, Any] = {}
        exec(to_source(graph), namespace)
        (again := namespace["Model"]()).load_state_dict(model.state_dict())
        assert torch.equal(again(x), model(x))
        assert torch.equal(pickle.loads(pickle.dumps(model))(x), model(x))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("torch.nn:PReLU", "expected a function without weights, got torch.nn:PReLU: name it as an operation"),
        ("torch.nn:RReLU", "expected no random numbers, got torch.nn:RReLU: name it as an operation"),
        ("torch.nn:GLU", r"expected a tensor \[2, 3\] of dtype torch.float32, got RuntimeError"),
        ("torch.nn:Threshold", "expected torch.nn:Threshold without arguments"),
        ("torch.nn:Softmax", r"expected each example alone, got torch.nn:Softmax, which mixes a batch \[3, 4, 8\]"),
        ("torch:msort", r"expected each example alone, got torch:msort, which mixes a batch \[3, 32\]"),
        ("torch:tril", r"expected each example alone, got torch:tril, which mixes a batch \[3, 32\]"),
        ("torch:no_such", "expected a subclass of Activation, got 'torch:no_such', which __init__.py does not define"),
    ],
)
@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
def test_refused_activations(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        activation(name)


BLOCK = """
from torch import nn

class Gain(nn.Module):
    def __init__(self, features, gain=1.0):
        super().__init__()
        self.gain, self.weight = gain, nn.Parameter(nn.init.ones_(nn.Parameter(nn.Linear(features, 1).weight.detach())))

    def forward(self, x):
        return self.gain * self.weight[0] * x

class Block(nn.Module):
    def __init__(self, in_features: int, norm_layer=Gain, act_layer=nn.GELU, last: nn.Module = None, kind: str = "a:b"):
        super().__init__()
        self.norm = norm_layer(in_features) if norm_layer else nn.Identity()
        self.act, self.last = act_layer(), nn.ModuleList(last if isinstance(last, list) else [last] if last else [])
        assert isinstance(kind, str)

    def forward(self, x):
        x = self.act(self.norm(x))
        for each in self.last:
            x = each(x)
        return x
"""


def test_arguments_name_classes_functions_and_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with arguments of their own; null is None, not the default; a text of a `str` argument stays one."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "blocks_57.py").write_text(BLOCK)
    blocks = importlib.import_module("blocks_57")
    linear: Any = {"name": "torch.nn:Linear", "in_features": 6, "out_features": 6, "bias": False}
    cases: list[tuple[Any, Any]] = [
        ({}, {}),
        ({"norm_layer": None, "kind": "blocks_57:Gain"}, {"norm_layer": None}),
        (
            {"norm_layer": "torch.nn:LayerNorm", "act_layer": "torch.nn:SiLU"},
            {"norm_layer": nn.LayerNorm, "act_layer": nn.SiLU},
        ),
        ({"norm_layer": {"name": "blocks_57:Gain", "gain": 3.0}}, {"norm_layer": partial(blocks.Gain, gain=3.0)}),
        ({"last": linear}, {"last": nn.Linear(6, 6, bias=False)}),
        ({"last": [linear, {**NORM, "eps": 0.1}]}, {"last": [nn.Linear(6, 6, bias=False), nn.LayerNorm(6, eps=0.1)]}),
    ]
    for settings, arguments in cases:
        graph, expected = one_node({"name": "blocks_57:Block", **settings}, VECTOR), blocks.Block(6, **arguments)
        source: dict[str, Any] = {}
        exec(to_source(graph), source)
        x = torch.randn(3, 6)
        for model in (to_pytorch_model(graph), source["Model"]()):
            model.load_state_dict(dict(zip(model.state_dict(), expected.state_dict().values(), strict=True)))
            assert torch.equal(model(x), expected(x)), settings
        assert graph_cost(graph).num_parameters == sum(each.numel() for each in expected.parameters())


def test_unknown_class_in_an_argument_is_named() -> None:
    (problem,) = one_node(
        {"name": "torch.nn:TransformerEncoderLayer", "nhead": 2, "activation": "torch.nn:SiLUU"}, SEQUENCE
    ).validate()
    assert "activation=torch.nn.SiLUU" in problem.message
    assert "has no attribute 'SiLUU'" in problem.message


def test_class_of_another_users_file_needs_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "foreign_module_31.py").write_text("raise SystemExit\n")
    layer = one_node({"name": "foreign_module_31:Layer"}, VECTOR)
    function = one_node({"name": "torch.nn:Flatten"}, VECTOR, activation_function="foreign_module_31:act")
    encoder = {
        "name": "torch.nn:TransformerEncoder",
        "encoder_layer": {"name": "foreign_module_31:Layer"},
        "num_layers": 1,
    }
    with foreign_names("a run of another user"):
        assert one_node({"name": "torch.nn:Flatten"}, VECTOR, activation_function="torch.nn:Mish").validate() == []
        for graph in (layer, function, one_node(encoder, SEQUENCE)):
            (problem,) = graph.validate()
            assert "pass --trust" in problem.message
            to_svg(graph)
            graph.canonical_key()
    assert "foreign_module_31" not in sys.modules
