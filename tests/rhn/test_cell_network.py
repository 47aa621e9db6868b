"""Language models of found cells: known cells, single steps, parameters, saved models, and learning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gflownet.envs.computation_graph import ComputationGraphEnv
from gflownet.errors import UserError
from gflownet.evaluation.candidates.language import LanguageTraining, bits_per_byte, train_language_model
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.operations.layers import CarriedConvolution
from gflownet.operations.vocabulary import aggregation
from gflownet.rhn.cell_network import CellConfig, CellNetwork, num_cell_parameters
from gflownet.rhn.checkpoint import description_of, load_language_model, model_of, save_language_model
from gflownet.testing.operations import check_operation
from tasks.language import fit_cell_parameters, formulas

PRODUCT, BLEND = "gflownet.translation.gating:Product", "gflownet.translation.gating:Blend"


def of_cell(graph: ComputationGraph, *, layers: int = 1, **sizes: Any) -> CellConfig:
    """Return the config of layers of one cell."""
    return CellConfig({"cell": graph.to_dict()}, ["cell"] * layers, **sizes)


Link = tuple[int, int] | tuple[int, int, str]  # source, target, and "'" for a recurrent edge


def cell(width: int, hidden: list[tuple[str, str]], links: list[Link]) -> ComputationGraph:
    """Return a cell with input 0, output 1 and hidden nodes 2, 3, ... of activation and aggregation."""
    graph = ComputationGraph()
    graph.add_node(0, "input", output_size=width)
    graph.add_node(1, "output", output_size=width)
    for place, (activation, combination) in enumerate(hidden, 2):
        attributes = {"aggregation": combination}
        graph.add_node(place, "hidden", output_size=width, activation_function=activation, attributes=attributes)
    for order, (source, target, *marks) in enumerate(links):
        graph.add_edge(source, target, attributes={"order": order} | ({"is_recurrent": True} if marks else {}))
    return graph.with_translation({"projection": "always"})


def gru_cell(width: int) -> ComputationGraph:
    """Return a GRU: gate 2, reset 3, reset state 4, new value 5, state 6."""
    hidden = [("linear", "sum"), ("sigmoid", "sum"), ("linear", PRODUCT), ("tanh", "sum"), ("linear", BLEND)]
    links: list[Link] = [(0, 2), (6, 2, "'"), (0, 3), (6, 3, "'"), (3, 4), (6, 4, "'"), (0, 5), (4, 5)]
    return cell(width, hidden, [*links, (2, 6), (6, 6, "'"), (5, 6), (6, 1)])


def lstm_cell(width: int) -> ComputationGraph:
    """Return an LSTM: gates 2, 3 and 4, new value 5, kept and new part 6 and 7, memory 8, its tanh 9, output 10."""
    gates = [("sigmoid", "sum")] * 3
    hidden = [*gates, ("tanh", "sum"), ("linear", PRODUCT), ("linear", PRODUCT), ("linear", "sum"), ("tanh", "sum")]
    links: list[Link] = [link for gate in (2, 3, 4, 5) for link in ((0, gate), (10, gate, "'"))]
    links += [(2, 6), (8, 6, "'"), (3, 7), (5, 7), (6, 8), (7, 8), (8, 9), (4, 10), (9, 10), (10, 1)]
    return cell(width, [*hidden, ("linear", PRODUCT)], links)


def tanh_cell(width: int) -> ComputationGraph:
    return cell(width, [("tanh", "sum")], [(0, 2), (2, 2, "'"), (2, 1)])


def set_weights(module: nn.Module, weights: dict[str, Tensor]) -> None:
    """Set projections and biases of a translated cell by the end of their names; identities elsewhere."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            key = name.removesuffix(".weight")
            if key in weights:
                parameter.copy_(weights[key])
            elif parameter.ndim == 2:
                parameter.copy_(torch.eye(len(parameter)))


def known(width: int, kind: str) -> tuple[Any, Any]:
    """Return a translated GRU or LSTM and torch's layer with the same weights, without biases."""
    torch.manual_seed(0)
    layer = {"gru": nn.GRU, "lstm": nn.LSTM}[kind](width, width, bias=False, batch_first=True).double()
    from_x, from_h = (list(getattr(layer, f"weight_{part}_l0").chunk(3 + (kind == "lstm"))) for part in ("ih", "hh"))
    config = of_cell((gru_cell if kind == "gru" else lstm_cell)(width))
    module: Any = CellNetwork(config).double().stack.layers[0]
    if kind == "gru":  # r, z, n; the graph blends as s X_2 + (1 - s) X_3
        order, state = {3: 0, 2: 1, 5: 2}, 6
    else:  # i, f, g, o
        order, state = {3: 0, 2: 1, 5: 2, 4: 3}, 10
    weights = {f"proj_0_{node}": from_x[place] for node, place in order.items()}
    weights |= {f"proj_{state}_{node}": from_h[place] for node, place in order.items()}
    if kind == "gru":
        weights["proj_4_5"] = from_h[2]
    set_weights(module.cell, weights)
    return module.cell, layer


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_known_cell_equals_the_layer_of_torch(kind: str) -> None:
    """A GRU of Cho et al. 2014, with the reset gate before the product: compared step by step."""
    width = 3
    module, layer = known(width, kind)
    x = torch.randn(2, 5, width, dtype=torch.float64)
    outputs = module.forward_sequence(x)
    expected = layer(x)[0] if kind == "lstm" else reset_before_product(layer, x)
    torch.testing.assert_close(outputs, expected, rtol=0, atol=1e-10)


def reset_before_product(layer: Any, x: Tensor) -> Tensor:
    """Return the outputs of a GRU with n = tanh(W x + U (r h)) and h = z h + (1 - z) n."""
    w, u = layer.weight_ih_l0.chunk(3), layer.weight_hh_l0.chunk(3)
    h, outputs = x.new_zeros(len(x), x.shape[2]), []
    for moment in x.unbind(1):
        r, z = (torch.sigmoid(moment @ w[k].mT + h @ u[k].mT) for k in (0, 1))
        h = z * h + (1 - z) * torch.tanh(moment @ w[2].mT + (r * h) @ u[2].mT)
        outputs.append(h)
    return torch.stack(outputs, 1)


def test_known_cells_are_objects_of_the_search_space() -> None:
    env = ComputationGraphEnv(
        (4,),
        (4,),
        activations=["linear", "tanh", "sigmoid", "leaky_relu"],
        aggregations=["sum", PRODUCT, BLEND],
        hidden_sizes=[4],
        max_hidden_nodes=9,
        max_edges=20,
        allow_recurrent=True,
    )
    for graph in (tanh_cell(4), gru_cell(4), lstm_cell(4)):
        restored = env.terminal(env.states_of([graph]), 0)
        assert sorted(formulas(restored)) == sorted(formulas(graph))


@pytest.mark.parametrize("make", [tanh_cell, gru_cell, lstm_cell])
def test_decoder_steps_and_prefill_equal_forward(make: Any) -> None:
    torch.manual_seed(0)
    model = CellNetwork(of_cell(make(3), vocabulary_size=7, layers=2)).double()
    tokens = torch.randint(7, (2, 5), generator=torch.Generator().manual_seed(0))
    whole, last = model(tokens)
    decoder, state = model.decoder(), torch.full_like(last, 7.0)
    assert decoder.state_shape == (last.shape[0], last.shape[2])
    for token in range(tokens.shape[1]):
        logits, state = decoder.step(tokens[:, token], state, torch.tensor([True, True]) if token == 0 else None)
        torch.testing.assert_close(logits, whole[:, token], rtol=0, atol=1e-10)
        prefilled, prefilled_state = decoder.prefill(tokens[:, : token + 1], None)
        torch.testing.assert_close(prefilled, logits, rtol=0, atol=1e-10)
        torch.testing.assert_close(prefilled_state, state, rtol=0, atol=1e-10)
        if token < 4:
            torch.testing.assert_close(model(tokens[:, token + 1 :], state)[0], whole[:, token + 1 :])
    torch.testing.assert_close(state, last, rtol=0, atol=1e-10)


def test_cell_without_memory_has_an_empty_state() -> None:
    model = CellNetwork(of_cell(cell(3, [("tanh", "sum")], [(0, 2), (2, 1)]), vocabulary_size=7))
    logits, state = model(torch.tensor([[1, 1, 1]]))
    torch.testing.assert_close(logits[0, 0], logits[0, 2])
    assert state.shape == (1, 1, 1)


@pytest.mark.parametrize("make", [tanh_cell, gru_cell])
def test_number_of_parameters_is_that_of_the_model(make: Any) -> None:
    config = of_cell(make(8), layers=2)
    fitted = fit_cell_parameters(config, 20_000)
    for each in (config, fitted):
        assert num_cell_parameters(each) == sum(parameter.numel() for parameter in CellNetwork(each).parameters())
    assert num_cell_parameters(fitted) == pytest.approx(20_000, rel=0.05)


def test_load_returns_the_saved_cell(tmp_path: Path) -> None:
    model = CellNetwork(of_cell(gru_cell(4), vocabulary_size=9))
    save_language_model(tmp_path, model)
    aggregation.cache_clear()  # the classes of the cell are checked on loading, as in a new process
    loaded, tokens = load_language_model(tmp_path), torch.tensor([[1, 2, 3]])
    assert isinstance(loaded, CellNetwork)
    torch.testing.assert_close(loaded(tokens), model(tokens), rtol=0, atol=0)


def test_invalid_cell_raises_one_line() -> None:
    described = description_of(of_cell(tanh_cell(4)))
    broken: tuple[Any, ...] = (
        {"cell": {}},
        {},
        5,
        {"cell": 5},
        {"cell": tanh_cell(4).to_dict(), "b": tanh_cell(5).to_dict()},
    )
    changes = [*({"blocks": blocks} for blocks in broken), {"layers": []}, {"layers": ["x"]}, {"layers": "cell"}]
    for change in (*changes, {"repeat": 0}, {"epsilon": 0.0}):
        with pytest.raises(UserError, match=r"^model.json: config: .*expected .*got") as caught:
            model_of({**described, "config": {**described["config"], **change}}, "model.json")
        assert "\n" not in str(caught.value)


def test_causal_convolution_keeps_the_contract_and_equals_a_padded_one() -> None:
    name = "gflownet.operations.recurrent:CausalConvolution"
    check_operation(name)
    layer = CarriedConvolution(3, kernel_size=4, dilation=2).double()
    x = torch.randn(2, 9, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y, state = layer(x, x.new_zeros(2, 3, 6))
    padded = nn.functional.conv1d(
        nn.functional.pad(x.mT, (6, 0)), layer.convolution.weight, layer.convolution.bias, dilation=2, groups=3
    )
    torch.testing.assert_close(y, padded.mT)
    torch.testing.assert_close(state, x.mT[:, :, -6:])


def test_cell_learns_a_text() -> None:
    torch.manual_seed(0)
    text = torch.frombuffer(bytearray(b"abcdefgh" * 300), dtype=torch.uint8)
    model = CellNetwork(of_cell(tanh_cell(12)))
    options = LanguageTraining(num_steps=40, rows=8, sequence_length=8, learning_rate=0.03)
    before = bits_per_byte(model, text, sequence_length=8, num_bytes=256)
    train_language_model(model, text, options=options, generator=torch.Generator().manual_seed(0))
    assert before > 7
    assert bits_per_byte(model, text, sequence_length=8, num_bytes=256) < 1


def test_formulas_name_nodes_and_earlier_steps() -> None:
    assert formulas(tanh_cell(2)) == "a = tanh(x + a'); y = a"
    assert (
        formulas(gru_cell(2))
        == "a = x + e'; b = sigmoid(x + e'); c = b * e'; d = tanh(x + c); e = blend(a, e', d); y = e"
    )
