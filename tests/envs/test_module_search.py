"""Random search spaces of classes of torch.nn: graphs build and train, costs are the modules', caps hold."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from gflownet.envs.operation_graph import OperationGraphEnv
from gflownet.graphs.computation_graph import NodeType
from gflownet.graphs.typed import graph_cost
from gflownet.learning.sampler import uniform_states
from gflownet.operations.tensor_shape import Layout, Shape
from gflownet.translation import to_pytorch_model

# Values of the arguments of 36 classes.
OFFERS: dict[str, dict[str, list[Any]]] = {
    "Conv1d": {"out_channels": [3, 4], "kernel_size": [1, 3], "padding": ["same", 0], "dilation": [1, 2]},
    "Conv2d": {"out_channels": [3, 6], "kernel_size": [[1, 3], [3, 1], 3], "stride": [1, [2, 1]], "groups": [1, 3]},
    "ConvTranspose1d": {"out_channels": [2, 4], "kernel_size": [2, 3], "bias": [True, False]},
    "ConvTranspose2d": {"out_channels": [2, 3], "kernel_size": [[1, 2], 2], "stride": [1, 2]},
    "MaxPool1d": {"kernel_size": [2, 3], "ceil_mode": [False, True]},
    "MaxPool2d": {"kernel_size": [2, [1, 2]], "stride": [None, 1]},
    "AvgPool1d": {"kernel_size": [2, 3], "count_include_pad": [True, False], "padding": [1]},
    "AvgPool2d": {"kernel_size": [2, [2, 1]], "divisor_override": [None, 3]},
    "LPPool2d": {"norm_type": [1, 2], "kernel_size": [2]},
    "AdaptiveAvgPool1d": {"output_size": [1, 4]},
    "AdaptiveAvgPool2d": {"output_size": [1, [2, 3]]},
    "AdaptiveMaxPool2d": {"output_size": [3, [None, 2]]},
    "BatchNorm1d": {"affine": [True, False], "momentum": [0.1, None]},
    "BatchNorm2d": {"eps": [1e-5, 1e-3], "track_running_stats": [True, False]},
    "InstanceNorm1d": {"affine": [True, False]},
    "InstanceNorm2d": {"affine": [True, False]},
    "GroupNorm": {"num_groups": [1, 2, 3]},
    "LayerNorm": {"elementwise_affine": [True, False], "bias": [True, False]},
    "RMSNorm": {"eps": [None, 1e-4]},
    "Linear": {"out_features": [3, 5, 8], "bias": [True, False]},
    "LSTM": {"hidden_size": [2, 4], "bidirectional": [True, False], "output": [0]},
    "GRU": {"hidden_size": [2, 4], "num_layers": [1, 2], "output": [0]},
    "RNN": {"hidden_size": [3], "nonlinearity": ["tanh", "relu"], "output": [0]},
    "TransformerEncoderLayer": {"nhead": [1, 2], "dim_feedforward": [4, 8], "norm_first": [True, False]},
    "PReLU": {"init": [0.25, 0.5]},
    "GLU": {"dim": [-1, 1]},
    "Softplus": {"beta": [1, 2.5], "threshold": [20]},
    "Hardtanh": {"min_val": [-1.0, -2.0], "max_val": [1.0, 6.0]},
    "LocalResponseNorm": {"size": [1, 2], "k": [1.0, 2.0]},
    "Flatten": {"start_dim": [1, 2]},
    "Unflatten": {"dim": [1], "unflattened_size": [[2, -1], [-1, 3]]},
    "PixelShuffle": {"upscale_factor": [2]},
    "ChannelShuffle": {"groups": [2, 3]},
    "Upsample": {"scale_factor": [2, 1.5], "mode": ["nearest", "linear", "bilinear"]},
    "ReflectionPad2d": {"padding": [1, [1, 0, 0, 2]]},
    "Dropout": {"p": [0.1, 0.5]},
}
INPUTS = (Shape.of((3, 6, 8)), Shape((4, 9), Layout.SIGNAL), Shape.of((5, 6)), Shape.of(12))


# Operations with several inputs, each with small spaces of its own: all combinations of shapes are tried.
PORTS: dict[str, dict[str, Any]] = {
    "torch.nn:Bilinear": {"out_features": [2, 3], "bias": [True, False]},
    "torch.nn:MultiheadAttention": {"num_heads": [1, 2], "output": 0},
    "torch.nn:TransformerDecoderLayer": {"nhead": 2, "dim_feedforward": [4, 6]},
    "torch:sub": {"activation": ["relu", "linear"]},
    "torch:matmul": {},
    "cross_attention": {"heads": [1, 2]},
}


def random_space(seed: int, num_classes: int, *, max_hidden_nodes: int = 3) -> OperationGraphEnv:
    """Return a space of classes with random choices, random caps and one or two random inputs."""
    rng = random.Random(seed)
    choices: dict[str, dict[str, Any]] = {}
    for name in rng.sample(sorted(OFFERS), num_classes):
        offered = OFFERS[name].items()
        choices[f"torch.nn:{name}"] = {key: rng.sample(v, rng.randint(1, min(2, len(v)))) for key, v in offered}
        choices[f"torch.nn:{name}"]["activation"] = rng.choice([["torch.nn:Mish"], ["linear"], ["relu", "torch:sin"]])
    inputs = rng.sample(INPUTS, rng.choice([1, 1, 2]))
    return small_space(
        rng, inputs, choices, max_hidden_nodes=max_hidden_nodes, max_multiply_adds=rng.choice([None, 9_000])
    )


def random_ports(seed: int) -> OperationGraphEnv:
    """Return a space of operations with several inputs and a linear layer, with random choices and caps."""
    rng = random.Random(seed)
    names = rng.sample(sorted(PORTS), 2)
    inputs = [Shape.of(sizes) for sizes in rng.choice([[(3, 4)], [(3, 4), (2, 4)], [(3, 4), (5, 2)]])]
    return small_space(
        rng, inputs, {"linear": {"features": 4}, **{name: PORTS[name] for name in names}}, max_hidden_nodes=3
    )


def small_space(
    rng: random.Random, inputs: Sequence[Shape], choices: dict[str, Any], **limits: Any
) -> OperationGraphEnv:
    return OperationGraphEnv(
        inputs,
        4,
        operations=list(choices),
        choices=choices,
        align=rng.choice(["pad", "auto"]),
        share=rng.choice([False, True]),
        max_edges=7,
        max_parameters=rng.choice([200, 600]),
        **limits,
    )


VOLUME_OFFERS: dict[str, dict[str, list[Any]]] = {
    "Conv3d": {"out_channels": [2, 4], "kernel_size": [[1, 3, 3], [3, 1, 1]], "stride": [1, 2], "padding": ["same", 0]},
    "ConvTranspose3d": {"out_channels": [3], "kernel_size": [[1, 2, 2]], "stride": [[1, 2, 2]]},
    "MaxPool3d": {"kernel_size": [2, [1, 2, 2]]},
    "AvgPool3d": {"kernel_size": [[2, 1, 1]], "ceil_mode": [True, False]},
    "AdaptiveAvgPool3d": {"output_size": [1, [2, 1, 3]]},
    "BatchNorm3d": {"affine": [True]},
    "InstanceNorm3d": {"affine": [True, False]},
    "ConstantPad3d": {"padding": [[1, 0, 0, 0, 0, 1]], "value": [0.5]},
    "Upsample": {"scale_factor": [2], "mode": ["trilinear"]},
    "Flatten": {"start_dim": [1, 2]},
}


def volume_space(*, max_hidden_nodes: int = 3) -> OperationGraphEnv:
    """Return a space of classes that read volumes, and of what is left of their axes."""
    choices = {f"torch.nn:{name}": {**offered, "activation": ["relu"]} for name, offered in VOLUME_OFFERS.items()}
    return OperationGraphEnv(
        [Shape.of((2, 3, 6, 6)), Shape.of((3, 4, 6))],
        4,
        operations=list(choices),
        choices=choices,
        align="auto",
        max_hidden_nodes=max_hidden_nodes,
        max_edges=7,
        max_parameters=600,
        max_multiply_adds=40_000,
    )


def check_graphs(env: OperationGraphEnv, num: int, seed: int) -> set[str]:
    """Build and train random graphs of a space; return the classes that they use."""
    generator, used = torch.Generator().manual_seed(seed), set()
    states = uniform_states(env, num, generator=generator)
    networks = [env.terminal(states, index) for index in range(num)]
    torch.manual_seed(seed)
    for network in networks:
        assert network.validate() == []
        cost = graph_cost(network)
        assert cost.num_parameters <= env.caps[0]
        assert cost.multiply_adds <= env.caps[1]
        model = to_pytorch_model(network)
        assert sum(each.numel() for each in model.parameters()) == cost.num_parameters
        output = model(*(torch.randn(2, *shape.sizes) for shape in env.input_shapes))
        assert output.shape == (2, 4)
        output.square().sum().backward()
        gradients = [each.grad for each in model.parameters()]
        assert all(each is not None and bool(each.isfinite().all()) for each in gradients)
        with FlopCounterMode(display=False) as counter:
            model.to("meta")(*(torch.empty(2, *shape.sizes, device="meta") for shape in env.input_shapes))
        assert counter.get_total_flops() == 4 * cost.multiply_adds
        hidden = [node for node in network.nodes.values() if node.node_type is NodeType.HIDDEN]
        used |= {node.attributes["operation"]["name"] for node in hidden}
    assert len(env.states_of(networks)) == num  # values are read back
    return used


@pytest.mark.parametrize("is_volume", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["random", "volumes"])
def test_graphs_of_a_space_train_within_their_caps(is_volume: bool) -> None:
    """30 classes in one space; in the fast version all graphs have one node."""
    env = volume_space(max_hidden_nodes=1) if is_volume else random_space(5, 30, max_hidden_nodes=1)
    used = check_graphs(env, 20, seed=0)
    assert len(used) >= 4


@pytest.mark.slow
def test_operations_with_several_inputs_train_within_their_caps() -> None:
    used = check_graphs(random_ports(2), 8, seed=0)
    assert len(used) >= 2


@pytest.mark.slow
def test_graphs_of_random_spaces_train_within_their_caps() -> None:
    used: set[str] = set()
    for seed in range(20):
        used |= check_graphs(random_space(seed, 30), 80, seed)
    for seed in range(10):
        used |= check_graphs(random_ports(seed), 40, seed)
    used |= check_graphs(volume_space(), 20, seed=0)
    assert len(used) >= 36
