"""Contract: submodules and parameters of every kind of translated model behave as in a hand-written module.

Reports of other projects: pytorch#78109, #49828, #38493, peft#761, LoRA-Torch#3 (layers that are read, not called).
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.utils.parametrizations as parametrizations
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.translation import DirectTraining, can_stack, to_pytorch_model, to_source
from gflownet.translation.model_set import ModelSet
from tests.translation.graphs import chain, mixed, recurrent
from tests.translation.operation_graphs import graph_of, hidden, image_input

LATE = {"attributes": {"is_recurrent": True}}


def dense(data: dict, **options: object) -> Any:
    return to_pytorch_model(ComputationGraph.from_dict(data), {"projection": "always", **options})


def wide_sum() -> dict:
    """Ten edges of one size: their matrices are scaled together."""
    data = chain(4, *[4] * 4, 4)
    pairs = [(0, 2), (0, 3), (1, 3), (1, 4), (2, 4), (0, 5), (2, 5)]
    data["edges"] += [{"source": s, "target": t, "edge_id": 20 + i} for i, (s, t) in enumerate(pairs)]
    return data


def operations() -> Any:
    """Convolutions, a subgraph with state of its own, edge weights, an adapter and a neuron."""
    inner = {
        "nodes": [
            {"id": 0, "node_type": "input"},
            hidden(1, "linear", features=4),
            hidden(2, "identity", kind="output"),
        ],
        "edges": [{"source": 0, "target": 1}, {"source": 1, "target": 2}, {"source": 2, "target": 1, **LATE}],
    }
    inner["nodes"][1] |= {"activation_function": "tanh"}
    nodes = [
        image_input(3, 4, 4),
        hidden(1, "conv_bn_relu", features=4),
        hidden(2, "global_pool"),
        {"id": 3, "node_type": "hidden", "subgraph": "cell", "repeat": 2},
        {"id": 4, "node_type": "hidden", "output_size": 5, "activation_function": "tanh"},
        hidden(5, "linear", features=6, edge_weight=True, align="project", kind="output"),
    ]
    return to_pytorch_model(
        graph_of(nodes, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (2, 5)], subgraphs={"cell": inner})
    )


def source_module() -> Any:
    namespace: dict = {}
    exec(to_source(ComputationGraph.from_dict(mixed()), projection="always"), namespace)
    return namespace["Model"]()


KINDS: dict[str, Callable[[], Any]] = {
    "chain": lambda: dense(chain(3, 4, 2)),
    "stacked": lambda: dense(wide_sum()),
    "aggregations": lambda: dense(mixed()),
    "recurrent": lambda: dense(recurrent()),
    "rhn": lambda: dense(chain(3, 4, 4, 2, activation="rhn")),
    "operations": operations,
    "set": lambda: ModelSet([dense(chain(3, 4, 2)) for _ in range(2)], [0.25, 0.75], has_classes=True),
    "source": source_module,
}
STEPWISE = {"recurrent", "rhn", "operations"}
CELLS = {"recurrent"}  # torch's own LSTMCell and GRUCell have no vmap and no hooks inside


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def model(kind: str) -> nn.Module:
    torch.manual_seed(0)
    model = KINDS[kind]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def inputs_of(model: Any) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    translated: Any = next((each for each in model.modules() if hasattr(each, "zeros")), None)
    shape = (3, 6) if translated is None else translated.zeros(3)[0].shape
    return torch.randn(shape, generator=generator)


def outputs_of(model: nn.Module, *, requires_grad: bool = False) -> Tensor:
    """Return the outputs of two steps of a model, from zeros."""
    x = inputs_of(model).requires_grad_(requires_grad)
    states: list[Any] = [each for each in model.modules() if hasattr(each, "state_manager")]
    for each in states:
        each.state_manager.reset()
    return torch.stack([model(x), model(x)])


def changed(name: str, change: Callable[[nn.Module, str], object], model: nn.Module) -> Tensor:
    """Return the outputs after a change of one parameter, of a copy of the model."""
    other = copy.deepcopy(model)
    owner, _, leaf = name.rpartition(".")
    change(other.get_submodule(owner), leaf)
    return outputs_of(other)


def scaled_by_hand(factor: float) -> Callable[[nn.Module, str], object]:
    def change(module: nn.Module, leaf: str) -> None:
        with torch.no_grad():
            getattr(module, leaf).mul_(factor)

    return change


class Scaled(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, value: Tensor) -> Tensor:
        return self.factor * value


class Adapter(nn.Module):
    """A low-rank adapter that wraps a layer and has its weight, as in peft."""

    def __init__(self, base: nn.Linear, scale: float) -> None:
        super().__init__()
        self.base, self.scale = base.requires_grad_(False), scale
        self.a = nn.Parameter(torch.ones(2, base.in_features))
        self.b = nn.Parameter(torch.ones(base.out_features, 2))

    @property
    def weight(self) -> Tensor:
        return self.base.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.scale * (x @ self.a.T @ self.b.T)


class SameLinear(nn.Linear):
    pass


def linear_layers(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Yield owner and name of each linear layer that is computed."""
    for name, module in [*model.named_modules()]:
        if type(module) is nn.Linear:
            owner, _, leaf = name.rpartition(".")
            yield model.get_submodule(owner), leaf


def replaced(model: nn.Module, make: Callable[[nn.Linear], nn.Module]) -> nn.Module:
    other = copy.deepcopy(model)
    for owner, leaf in linear_layers(other):
        setattr(other if owner is model else owner, leaf, make(getattr(owner, leaf)))
    return other


def test_hooks_of_every_layer_fire(model: nn.Module) -> None:
    expected, calls = outputs_of(model), {}
    layers = {name: each for name, each in model.named_modules() if not [*each.children()] and name}
    for name, each in layers.items():
        each.register_forward_pre_hook(lambda *_, name=name: calls.setdefault(("before", name)))
        each.register_forward_hook(lambda *_, name=name: calls.setdefault(("after", name)))
    assert torch.allclose(outputs_of(model), expected, rtol=1e-4, atol=1e-5)
    assert {*calls} == {(kind, name) for name in layers for kind in ("before", "after")}


def test_hooks_of_all_modules_fire(model: nn.Module) -> None:
    calls = set()
    names = {each: name for name, each in model.named_modules()}
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: calls.add(names[module]))
    try:
        outputs_of(model)
    finally:
        handle.remove()
    assert {name for each, name in names.items() if not [*each.children()]} <= calls


@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")  # of an edge from a state of zeros
def test_backward_hooks_of_linear_layers_fire(model: nn.Module) -> None:
    calls: dict = {}
    layers = [getattr(owner, leaf) for owner, leaf in linear_layers(model)]
    for each in layers:
        each.register_full_backward_hook(lambda module, *_: calls.setdefault(("after", module)))
        each.register_full_backward_pre_hook(lambda module, *_: calls.setdefault(("before", module)))
    outputs_of(model, requires_grad=True).square().sum().backward()
    assert {*calls} == {(kind, each) for each in layers for kind in ("before", "after")}


def test_hook_output_replaces_that_of_the_layer(model: nn.Module) -> None:
    expected, num_changed, layers = outputs_of(model), 0, [*linear_layers(model)][::5]
    for owner, leaf in layers:
        handle = getattr(owner, leaf).register_forward_hook(lambda _, __, y: 2 * y + 1)
        num_changed += not torch.allclose(outputs_of(model), expected, rtol=1e-3, atol=1e-4)
        handle.remove()
        assert torch.equal(outputs_of(model), expected), leaf
    assert num_changed > 0.6 * len(layers)  # a relu or a maximum may hide one


def test_adapters_change_the_output_and_learn(model: nn.Module) -> None:
    expected = outputs_of(model)
    assert torch.allclose(outputs_of(replaced(model, lambda each: Adapter(each, 0.0))), expected, rtol=1e-4, atol=1e-5)
    adapted = replaced(model, lambda each: Adapter(each, 1.0))
    outputs = outputs_of(adapted)
    assert not torch.allclose(outputs, expected)
    outputs.square().sum().backward()
    for name, parameter in adapted.named_parameters():
        if name.endswith((".a", ".b")) and isinstance(adapted.get_submodule(name[:-2]), Adapter):
            assert parameter.grad is not None, name


@pytest.mark.parametrize(
    "make",
    [
        lambda each: nn.Sequential(each, nn.Identity()),
        lambda each: _like(SameLinear, each),
        lambda each: _like(nn.Linear, each),  # with a bias
        parametrizations.weight_norm,
        lambda each: parametrize.register_parametrization(each, "weight", nn.Identity()),
    ],
    ids=["sequential", "subclass", "bias", "weight_norm", "parametrized"],
)
def test_replaced_layers_compute_the_same(kind: str, model: nn.Module, make: Callable[[nn.Linear], nn.Module]) -> None:
    if kind == "rhn" and make.__name__ == "<lambda>" and "Sequential" in str(make(nn.Linear(1, 1))):
        pytest.skip("the layer adapts weights: a layer without a weight has none")
    assert torch.allclose(outputs_of(replaced(model, make)), outputs_of(model), rtol=1e-4, atol=1e-5)


def _like(kind: type[nn.Linear], layer: nn.Linear) -> nn.Linear:
    other = kind(layer.in_features, layer.out_features)
    with torch.no_grad():
        other.weight.copy_(layer.weight)
        nn.init.zeros_(other.bias) if layer.bias is None else other.bias.copy_(layer.bias)
    return other


def test_bias_and_forward_of_a_layer_are_used() -> None:
    for name in ("proj_0_1", "post_1"):
        data = chain(3, 4, 2)
        data["nodes"][1]["attributes"] = {"post_projection": True}
        model = dense(data)
        expected = outputs_of(model)
        layer = getattr(model, name)
        layer.bias = nn.Parameter(torch.ones(4))
        with_bias = outputs_of(model)
        assert not torch.allclose(with_bias, expected)
        layer.bias = None
        layer.forward = lambda x, layer=layer: nn.Linear.forward(layer, x) + 1
        assert torch.allclose(outputs_of(model), with_bias)


@pytest.mark.parametrize(
    ("change", "by_hand"),
    [(lambda module, leaf: parametrize.register_parametrization(module, leaf, Scaled(-2.0)), scaled_by_hand(-2.0))],
    ids=["parametrized"],
)
def test_changed_parameters_are_read(model: nn.Module, change: Callable, by_hand: Callable) -> None:
    names = [name for name, each in model.named_parameters() if each.numel()]
    for name in names[:: max(1, len(names) // 5)]:
        if "lstm" in name or "gru" in name:
            continue  # torch's own cells
        outputs, expected = changed(name, change, model), changed(name, by_hand, model)
        assert torch.allclose(outputs, expected, rtol=1e-4, atol=1e-5, equal_nan=True), name


def test_parametrised_model_is_trained_and_copied(model: nn.Module) -> None:
    if not (names := [name for name, _ in model.named_parameters(recurse=False)]):
        pytest.skip("no parameters of its own")
    parametrize.register_parametrization(model, names[-1], Scaled(2.0))
    expected = outputs_of(model)
    expected.square().sum().backward()
    assert torch.equal(outputs_of(copy.deepcopy(model)), expected)
    with pytest.raises(RuntimeError, match="Serialization of parametrized modules"):
        pickle.dumps(model)


def replica_of(model: nn.Module) -> nn.Module:
    """Return what torch.nn.parallel.replicate makes for a device, without the copy to it."""
    replicas = {each: each._replicate_for_data_parallel() for each in model.modules()}
    for each, replica in replicas.items():
        for name, child in each._modules.items():
            setattr(replica, name, None if child is None else replicas[child])
        for name, parameter in each._parameters.items():
            setattr(replica, name, None if parameter is None else parameter * 1)
        for name, buffer in each._buffers.items():
            setattr(replica, name, buffer)
    return replicas[model]


def test_replicas_compute_the_same(kind: str, model: nn.Module) -> None:
    x, options = inputs_of(model), {"reset_states": True} if kind in STEPWISE else {}
    replica = replica_of(model)
    outputs = replica(x, **options)
    assert torch.allclose(outputs, model(x, **options), rtol=1e-4, atol=1e-5)
    outputs.sum().backward()
    trained = [name for name, each in model.named_parameters() if each.grad is not None]
    model.zero_grad()
    model(x, **options).sum().backward()
    assert trained == [name for name, each in model.named_parameters() if each.grad is not None]
    if kind in STEPWISE:
        with pytest.raises(ValueError, match="replicas of DataParallel, which lose the state"):
            replica(x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_symbolic_trace_computes_the_same_and_script_is_refused(kind: str, model: nn.Module) -> None:
    x = inputs_of(model)
    if kind == "source":  # exec has no file
        return
    if kind not in {*STEPWISE, "set"}:
        assert torch.equal(torch.fx.symbolic_trace(model)(x), model(x))
    with pytest.raises(ValueError, match=r"^torch.jit.script: expected .*; use export_program\(model\), to_onnx"):
        torch.jit.script(model)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_meta_device_around_and_tokens_of_any_width(dtype: torch.dtype) -> None:
    nodes = [{"id": 0, "node_type": "input", "attributes": {"shape": [7], "dtype": "token"}}]
    layer = {"name": "embedding", "vocabulary_size": 9, "features": 4}
    nodes.append({"id": 1, "node_type": "output", "attributes": {"operation": layer}})
    graph = ComputationGraph.from_dict({"nodes": nodes, "edges": [{"source": 0, "target": 1}]})
    model, tokens = to_pytorch_model(graph), torch.arange(7)[None]
    assert torch.equal(model(tokens.to(dtype)), model(tokens))
    with torch.device("meta"):
        assert {each.device.type for each in to_pytorch_model(graph).parameters()} == {"meta"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*quantiz.*:UserWarning")
def test_dynamic_quantisation(model: nn.Module) -> None:
    quantised = torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {nn.Linear}, dtype=torch.qint8)
    assert not any(type(each) is nn.Linear for each in quantised.modules())
    outputs, expected = outputs_of(quantised), outputs_of(model)
    assert (outputs - expected).norm() < 0.3 * expected.norm()


def test_functional_call_and_stacked_parameters(kind: str, model: nn.Module) -> None:
    x, options = inputs_of(model), {"reset_states": True} if kind in STEPWISE else {}
    others = [
        {name: factor * each.detach() for name, each in model.named_parameters()} | dict(model.named_buffers())
        for factor in (1.0, 1.5)
    ]
    expected = [torch.func.functional_call(model, each, (x,), options) for each in others]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    assert torch.allclose(expected[1], model(x, **options), rtol=1e-4, atol=1e-5)
    if kind in CELLS:
        return
    stacked = {name: torch.stack([each[name] for each in others]) for name in others[0]}
    call = torch.func.vmap(lambda each: torch.func.functional_call(model, each, (x,), options))
    assert torch.allclose(call(stacked), torch.stack(expected), rtol=1e-4, atol=1e-5)


def test_copies_keep_hooks_and_share_nothing(kind: str, model: nn.Module) -> None:
    for owner, leaf in linear_layers(model):
        getattr(owner, leaf).register_forward_hook(_doubled)
    expected = outputs_of(model)
    copies = [copy.deepcopy(model)]
    if kind != "source":  # of a class without a module
        copies.append(pickle.loads(pickle.dumps(model)))
    for each in copies:
        assert torch.equal(outputs_of(each), expected)
        for parameter in each.parameters():
            parameter.data.add_(1)
        assert not torch.equal(outputs_of(each), expected)
    assert torch.equal(outputs_of(model), expected)


def _doubled(_module: nn.Module, _inputs: object, outputs: Tensor) -> Tensor:
    return 2 * outputs


def test_sequences_of_touched_models() -> None:
    """Whole sequences of rhn nodes are computed node by node, unless a module has to be called."""
    model = KINDS["rhn"]()
    x, calls = torch.randn(2, 5, 3), []
    expected = model.forward_sequence(x)
    model.rhn_1.norm.register_forward_hook(lambda *_: calls.append(1))
    assert torch.allclose(model.forward_sequence(x), expected, rtol=1e-4, atol=1e-5)
    assert len(calls) == 5
    assert model.forward_sequence(x[:0]).shape == (0, 5, 2)


def test_joint_training_refuses_touched_models() -> None:
    for change in (
        lambda model: model.proj_0_1.register_forward_hook(_doubled),
        lambda model: setattr(model, "proj_0_1", Adapter(model.proj_0_1, 1.0)),
        lambda model: model.proj_0_1.requires_grad_(False),
        lambda model: prune.identity(model, "weight_0_1"),
    ):
        model = dense(chain(3, 4, 2))
        change(model)
        with pytest.raises(ValueError, match="model 1: expected layers as translated"):
            DirectTraining([dense(chain(3, 4, 2)), model])


def test_touched_copies_are_not_stacked() -> None:
    graph = graph_of(
        [image_input(3, 4, 4), hidden(1, "conv_bn_relu", features=4), hidden(2, "head", kind="output", features=2)],
        [(0, 1), (1, 2)],
    )
    assert can_stack(to_pytorch_model(graph))
    for change in (
        lambda model: model.head_2.register_forward_hook(_doubled),
        lambda model: parametrizations.spectral_norm(model.head_2),
        lambda model: model.head_2.requires_grad_(False),
    ):
        model = to_pytorch_model(graph)
        change(model)
        assert not can_stack(model)
