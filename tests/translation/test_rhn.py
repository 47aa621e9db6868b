"""rhn nodes equal the layers of gflownet.rhn."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.rhn.layers import RHNBlock
from gflownet.rhn.operation import rhn_config
from gflownet.rhn.wavefront import along_wavefront
from gflownet.translation import is_direct, summary, to_onnx, to_pytorch_model, to_source
from gflownet.translation.graph_summary import GraphSummary
from gflownet.translation.model import TranslatedModel
from tests.translation.graphs import Data, chain


def build(data: Data, *, projection: str = "auto", random: bool = True) -> TranslatedModel:
    """Return a float64 model, of random values unless it is to be as it begins."""
    torch.manual_seed(0)
    model = to_pytorch_model(ComputationGraph.from_dict(data), {"dtype": torch.float64, "projection": projection})
    if random:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def inputs(model: TranslatedModel, length: int = 7, batch: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(batch, length, model.plan.input_size, generator=generator, dtype=torch.float64)


def branched() -> Data:
    """rhn nodes 1 - 2 - 3 in a row; 14 reads 2 as well, 15 reads 3 and the input, 16 is wider; a gru and an lstm."""
    data = chain(4, 5, 5, 5, 2, activation="rhn")
    hidden = {"node_type": "hidden", "output_size": 5, "activation_function": "rhn"}
    data["nodes"] += [{"id": 14, **hidden}, {"id": 15, **hidden}, {"id": 16, **hidden, "output_size": 6}]
    data["nodes"].append({**hidden, "id": 17, "activation_function": "gru"})
    data["nodes"].append({**hidden, "id": 18, "activation_function": "lstm"})
    pairs = [(2, 14), (3, 15), (0, 15), (15, 16), (16, 4), (14, 4), (3, 17), (17, 4), (1, 18), (18, 4)]
    data["edges"] += [{"source": s, "target": t, "edge_id": 20 + i, "weight": 0.5} for i, (s, t) in enumerate(pairs)]
    return data


def with_recurrent_edge(data: Data) -> Data:
    return {
        **data,
        "edges": [*data["edges"], {"source": 3, "target": 1, "edge_id": 90, "attributes": {"is_recurrent": True}}],
    }


@pytest.mark.parametrize(
    ("data", "projection"),
    [
        pytest.param(branched(), "always", marks=pytest.mark.slow),
        (with_recurrent_edge(branched()), "auto"),
        pytest.param(chain(3, 1, 1, 1, activation="rhn"), "auto", marks=pytest.mark.slow),
    ],
    ids=["branched", "recurrent", "narrow"],
)
def test_rhn_sequence_equals_single_steps(data: Data, projection: str) -> None:
    model = build(data, projection=projection)
    parameters = list(model.parameters())
    for length in (1, 4):
        x = inputs(model, length)
        told = []
        for whole in (True, False):
            ys = []
            for again in (False, True):  # the second sequence goes on where the first ended
                if whole:
                    ys.append(model.forward_sequence(x, reset_states=not again))
                else:
                    if not again:
                        model.state_manager.reset()
                    state = model.state_manager.current(x[:, 0])
                    moments = []
                    for moment in x.unbind(1):
                        y, state = model.step(moment, state)
                        moments.append(y)
                    model.state_manager.store(state)
                    ys.append(torch.stack(moments, 1))
            y = torch.cat(ys, 1)
            weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
            gradients = torch.autograd.grad((y * weights).sum(), parameters, materialize_grads=True)
            assert model.state_manager.tensors is not None
            told.append([y.detach(), *model.state_manager.tensors, *gradients])
        largest = max(float(gradient.abs().max()) for gradient in gradients)
        for place, (one, other) in enumerate(zip(*told, strict=True)):
            is_gradient = place > len(model.plan.slots)
            size = max(1.0, float(other.detach().abs().max()))
            torch.testing.assert_close(one, other, rtol=0, atol=1e-8 * largest if is_gradient else 1e-10 * size)


def test_chain_of_rhn_nodes_equals_rhn_blocks() -> None:
    """Weights 1 and biases 0: the nodes are the blocks of a network."""
    data = chain(5, 5, 5, 5, 5, activation="rhn")
    model = build(data)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith(("weight", "bias")):
                parameter.fill_(float(name.startswith("weight")))
    blocks = []
    for node in (1, 2, 3):
        blocks.append(RHNBlock(rhn_config(5)).double())
        blocks[-1].load_state_dict(model.get_submodule(f"rhn_{node}").state_dict())
    x = inputs(model)
    expected, last = along_wavefront(blocks, x, None)
    torch.testing.assert_close(model.forward_sequence(x), expected, rtol=0, atol=1e-10)
    kept = dict(zip(model.plan.slots, model.state_manager.tensors or (), strict=True))
    for slot, tensor in kept.items():
        wanted = last[slot.node_id - 1] if slot.kind == "hidden" else torch.ones(3, 1, dtype=torch.float64)
        torch.testing.assert_close(tensor, wanted, rtol=0, atol=1e-10)


def test_rhn_parameters_start_like_a_block() -> None:
    model = build(chain(4, 6, 2, activation="rhn"), random=False)
    own, block = model.get_submodule("rhn_1"), RHNBlock(rhn_config(6))
    assert isinstance(own, RHNBlock)
    for (name, parameter), (wanted_name, wanted) in zip(own.named_parameters(), block.named_parameters(), strict=True):
        assert (name, parameter.shape) == (wanted_name, wanted.shape)
        std = float(wanted.detach().std())
        if std < 1e-6:
            assert torch.equal(parameter.detach(), wanted.detach().double()), name
        else:
            assert float(parameter.detach().std()) == pytest.approx(std, rel=0.5), name


def test_the_first_token_meets_no_adapter_and_a_new_node_none_at_all() -> None:
    for random in (True, False):
        model = build(chain(5, 5, 5, activation="rhn"), random=random)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.startswith(("weight", "bias")):
                    parameter.fill_(float(name.startswith("weight")))
        block = model.get_submodule("rhn_1")
        assert isinstance(block, RHNBlock)
        x = inputs(model)
        plain = x + block.ffn.plain(block.norm(x))
        is_plain = [
            torch.allclose(y, z) for y, z in zip(model.forward_sequence(x).unbind(1), plain.unbind(1), strict=True)
        ]
        assert is_plain == [True, *([not random] * 6)]
        assert torch.allclose(model(x[:, 0], reset_states=True), plain[:, 0])
        assert torch.allclose(model(x[:, 0]), plain[:, 0]) is not random


def test_rows_with_and_without_a_token_before_share_a_step() -> None:
    model = build(chain(4, 5, 2, activation="rhn"))
    x, state = inputs(model)[:, 0], (torch.randn(3, 5).double(), torch.tensor([[1.0], [0.0], [1.0]]).double())
    y, _ = model.step(x, state)
    for row in range(3):
        single = tuple(tensor[row : row + 1] for tensor in state)
        torch.testing.assert_close(model.step(x[row : row + 1], single)[0][0], y[row], rtol=0, atol=1e-12)
    torch.testing.assert_close(model(x[1:2], reset_states=True)[0], y[1], rtol=0, atol=1e-12)


def test_rhn_parameters_and_flops_match_the_model() -> None:
    graph = ComputationGraph.from_dict(branched())
    told, model = summary(graph), to_pytorch_model(graph)
    assert isinstance(told, GraphSummary)
    assert told.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    assert told.state_size == sum(slot.size for slot in model.plan.slots)
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(4, 4))
    assert counter.get_total_flops() == 4 * sum(node.matrix_flops for node in told.nodes)
    assert all(node.elementwise_flops > 0 for node in told.nodes)


@pytest.mark.filterwarnings("ignore")  # torch 2.13's exporter warns about itself
@pytest.mark.slow
def test_rhn_onnx_equals_the_model(tmp_path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = to_pytorch_model(ComputationGraph.from_dict(chain(4, 5, 2, activation="rhn")))
    to_onnx(model, tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    x, state = torch.randn(5, 4), tuple(torch.rand(5, slot.size) for slot in model.plan.slots)
    names = [value.name for value in session.get_inputs()]
    assert names == ["x", "hidden1", "token1"]
    outputs = session.run(None, {name: value.numpy() for name, value in zip(names, (x, *state), strict=True)})
    torch.testing.assert_close(torch.from_numpy(outputs[0]), model.step(x, state)[0], rtol=1e-4, atol=1e-5)


def test_rhn_unsupported_forms_raise_one_line() -> None:
    graph = ComputationGraph.from_dict(chain(4, 5, 2, activation="rhn"))
    with pytest.raises(ValueError, match=r"^node 1: expected a cell of torch in a stand-alone source, got rhn$"):
        to_source(graph)
    assert not is_direct(to_pytorch_model(graph).plan)
