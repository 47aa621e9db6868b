"""TranslatedModel: errors, state, first values, copying, and the tools of PyTorch that must work on it."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.translation import TranslatedModel, to_pytorch_model
from tests.translation.graphs import chain, mixed, recurrent


def build(data, **config) -> TranslatedModel:
    return to_pytorch_model(ComputationGraph.from_dict(data), config or None)


def inputs(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(3, 5), (4,), (2, 3, 4), (3, 0)])
def test_a_wrong_shape_is_refused_with_expected_and_got(shape):
    with pytest.raises(ValueError, match=r"shape \[B, 4\].*got shape \[" + ", ".join(map(str, shape)) + r"\]"):
        build(chain(4, 3, 2))(torch.zeros(shape))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.float16])
def test_a_wrong_dtype_is_refused(dtype):
    with pytest.raises(ValueError, match=r"dtype torch\.float32.*got.*dtype " + str(dtype)):
        build(chain(4, 3, 2))(torch.zeros(3, 4, dtype=dtype))


@pytest.mark.parametrize("shape", [(3, 4), (3, 0, 4), (3, 2, 5)])
def test_a_wrong_sequence_is_refused(shape):
    with pytest.raises(ValueError, match=r"\[B, T >= 1, 4\]"):
        build(recurrent()).forward_sequence(torch.zeros(shape))


def test_a_changed_batch_size_is_refused_unless_the_state_is_reset():
    model = build(recurrent())
    model(inputs(3, 4))
    with pytest.raises(ValueError, match=r"expected a batch of 3.*got 1"):
        model(inputs(1, 4))
    assert model(inputs(1, 4), reset_states=True).shape == (1, 3)


def test_unknown_names_are_refused_with_the_known_ones():
    data = chain(4, 3, 2)
    data["nodes"][1]["activation_function"] = "swish"
    data["nodes"][2]["attributes"] = {"aggregation": "product"}
    with pytest.raises(ValueError, match=r"(?s)gelu.*relu.*'swish'.*attention.*sum.*'product'"):
        build(data)


def test_config_errors_name_the_key():
    graph = ComputationGraph.from_dict(chain(2, 2))
    with pytest.raises(ValueError, match="unknown key 'devise', did you mean device"):
        to_pytorch_model(graph, {"devise": "cpu"})
    with pytest.raises(ValueError, match="projection: expected one of auto, always, never, got 'all'"):
        to_pytorch_model(graph, {"projection": "all"})
    with pytest.raises(ValueError, match=r"expected a floating torch dtype, got torch\.int32"):
        to_pytorch_model(graph, {"dtype": torch.int32})


def test_projection_never_refuses_unequal_widths():
    assert not any("proj" in name for name, _ in build(chain(3, 3, 3), projection="never").named_parameters())
    with pytest.raises(ValueError, match=r"edge 0: expected equal widths .* got 4 from node 0 and 3 at node 1"):
        build(chain(4, 3, 2), projection="never")


def test_an_output_that_no_input_reaches_is_a_function_of_its_bias():
    data = chain(4, 3, 2)
    data["edges"][1]["enabled"] = False
    data["nodes"][2] |= {"bias": 1.5, "activation_function": "relu"}
    assert build(data)(inputs(3, 4)).tolist() == [[1.5, 1.5]] * 3


def test_an_unmarked_cycle_is_read_one_step_late():
    data = chain(2, 2, 2, activation="linear")
    data["edges"].append({"source": 2, "target": 1, "edge_id": 2})
    (closing,) = ComputationGraph.from_dict(data).detect_cycles()
    marked = copy.deepcopy(data)
    marked["edges"][closing]["attributes"] = {"is_recurrent": True}
    x = inputs(5, 4, 2)
    assert torch.equal(build(data).forward_sequence(x), build(marked).forward_sequence(x))


def test_first_values_are_the_graphs_numbers_and_pytorchs_defaults():
    data = recurrent()
    data["nodes"][1]["bias"] = 0.25
    data["edges"][0]["weight"] = -2.0
    torch.manual_seed(5)
    model = build(data)
    assert model.bias_1.item() == 0.25
    assert model.weight_0_1.item() == -2.0
    assert model.weight_2_1.item() == 1.0
    assert isinstance(model.proj_0_1, nn.Linear)
    assert isinstance(model.lstm_1, nn.LSTMCell)
    torch.manual_seed(5)
    expected = nn.Linear(4, 5, bias=False), nn.Linear(3, 5, bias=False), nn.LSTMCell(5, 5, bias=False)
    assert torch.equal(model.proj_0_1.weight, expected[0].weight)
    assert torch.equal(model.proj_2_1.weight, expected[1].weight)
    assert torch.equal(model.lstm_1.weight_ih, expected[2].weight_ih)
    assert torch.equal(model.lstm_1.weight_hh, expected[2].weight_hh)
    assert repr(model.lstm_1) == repr(expected[2])
    assert repr(model.proj_0_1) == repr(expected[0])


def test_queries_start_small_and_gates_and_routers_at_zero():
    torch.manual_seed(0)
    model = build(mixed())
    zeros = [p for name, p in model.named_parameters() if name.startswith(("gate_", "router_"))]
    assert len(zeros) == 6
    assert not any(parameter.item() for parameter in zeros)
    queries = torch.cat([p.flatten() for name, p in model.named_parameters() if name.startswith("q_")])
    assert 0.003 < queries.std() < 0.03


def test_dead_nodes_keep_their_parameters_and_are_not_computed():
    data = chain(4, 3, 2)
    data["nodes"].append({"id": 8, "node_type": "hidden", "output_size": 3, "activation_function": "lstm"})
    data["edges"].append({"source": 0, "target": 8, "edge_id": 9})
    model = build(data)
    assert {"bias_8", "weight_0_8", "proj_0_8.weight"} <= dict(model.named_parameters()).keys()
    model.proj_0_8.weight.data.fill_(float("nan"))
    assert model(inputs(3, 4)).isfinite().all()
    assert not model.plan.slots


def test_state_is_detached_and_shares_no_memory_with_the_caller():
    model = build(recurrent())
    x = inputs(3, 4)
    first = model(x)
    first.sum().backward()
    model(x).sum().backward()  # a kept autograd graph would make this fail
    model.state_manager.reset()
    kept = model(x).detach().clone()
    state = [tensor.clone() for tensor in model.state_manager.tensors or ()]
    x.zero_()
    assert all(map(torch.equal, state, model.state_manager.tensors or ()))
    assert any(torch.equal(kept, each) for each in model.state_manager.tensors or ())
    output = model(inputs(3, 4), reset_states=True)
    with torch.no_grad():
        output.zero_()
    assert any(torch.equal(kept, each) for each in model.state_manager.tensors or ())


def test_a_sequence_continues_from_the_kept_state_on_request():
    model = build(recurrent())
    x = inputs(2, 6, 4)
    whole = model.forward_sequence(x)
    parts = model.forward_sequence(x[:, :2]), model.forward_sequence(x[:, 2:], reset_states=False)
    assert torch.allclose(whole, torch.cat(parts, dim=1))
    assert torch.allclose(model.forward_sequence(x), whole)


@pytest.mark.filterwarnings("ignore:Mismatch dtype:UserWarning")  # of rms_norm under autocast
@pytest.mark.parametrize("activation", ["tanh", "lstm", "gru", "rhn"])
def test_state_of_inference_and_autocast_can_be_trained(activation):
    """FastEdit#26, pytorch#161164: a state that inference stored broke the next training call."""
    data = chain(4, 8, 3, activation=activation)
    data["edges"].append({"source": 2, "target": 1, "edge_id": 9, "attributes": {"is_recurrent": True}})
    model, other, x = build(data), build(data), torch.randn(5, 4)
    other.load_state_dict(model.state_dict())
    other(x)
    expected = other(x)
    with torch.inference_mode():
        model(x)
    outputs = model(x)
    assert torch.equal(outputs, expected)
    outputs.sum().backward()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(x, reset_states=True)
    outputs = model(x)
    assert torch.allclose(outputs, expected, atol=0.05)
    assert outputs.dtype == torch.float32
    outputs.sum().backward()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_state_is_not_lost_silently():
    data = chain(4, 5, 3, activation="tanh")
    data["edges"].append({"source": 2, "target": 1, "edge_id": 9, "attributes": {"is_recurrent": True}})
    model, x = build(data), torch.randn(3, 4)

    def by_row(*options):
        return torch.func.vmap(lambda row: model(row[None], *options)[0])(x)

    for call in (lambda: torch.jit.trace(model, x), lambda: torch.export.export(model, (x,)), by_row):
        with pytest.raises(ValueError, match=r"expected reset_states=True.*which lose the state of a call"):
            call()
        model.state_manager.reset()
    expected = model(x, True)
    assert torch.allclose(by_row(True), expected, atol=1e-6)
    model.requires_grad_(False)
    traced: Any = torch.jit.trace(lambda x: model(x, reset_states=True), x)
    assert torch.equal(traced(x), expected)


def test_state_moves_with_the_model():
    model = build(recurrent())
    model(inputs(3, 4))
    model.double()
    assert model(inputs(3, 4).double()).dtype == torch.float64


def test_the_base_class_is_not_a_model():
    with pytest.raises(NotImplementedError, match="to_pytorch_model"):
        TranslatedModel.forward(build(chain(2, 2)), inputs(1, 2))


def test_tracebacks_show_the_generated_line():
    import inspect

    assert "project(" in inspect.getsource(type(build(chain(4, 3, 2))).forward)


def test_the_graph_may_change_after_translation():
    graph = ComputationGraph.from_dict(chain(2, 2))
    model = to_pytorch_model(graph)
    before = model(inputs(3, 2))
    graph.add_node(9, "output", output_size=3)
    graph.add_edge(0, 9)
    assert torch.equal(model(inputs(3, 2)), before)
    assert to_pytorch_model(graph)(inputs(3, 2)).shape == (3, 5)
