"""Published networks as graph files: equal parameter counts, and equal outputs with copied weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gflownet.graphs.typed import graph_cost
from gflownet.translation import copy_weights, to_pytorch_model
from gflownet.translation.model import TranslatedModel
from tests.known_networks.references import KNOWN_NETWORKS, SMALL, KnownNetwork, without_dropout

NETWORKS = pytest.mark.parametrize("network", KNOWN_NETWORKS.values(), ids=KNOWN_NETWORKS)
FAST = ("transformer_encoder_layer", "llama_block", "t5_encoder_layer", "mamba_block", "shufflenet_unit", "unet")
FAST += ("siamese", "wavenet_stack", "inception_reduction", "unet3d_level")
FAST += ("convnextv2_layer", "whisper_encoder", "wav2vec2_encoder", "falcon", "swinv2_layer")


def inputs_of(model: TranslatedModel, network: KnownNetwork, batch: int = 2) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    limits = [2 if network.name == "bert_base" and position else 30_000 for position in range(2)]
    return tuple(
        torch.randint(limit, x.shape, generator=generator)
        if x.dtype == torch.int64
        else torch.randn(x.shape, generator=generator)
        for x, limit in zip(model.zeros(batch), limits, strict=False)
    )


def pair(network: KnownNetwork, size: int | None) -> tuple[TranslatedModel, nn.Module]:
    """Return the translated model and the reference, with equal weights; running statistics are not the first ones."""
    torch.manual_seed(0)
    reference, model = network.build(size), to_pytorch_model(network.graph(size))
    with torch.no_grad():
        for name, tensor in reference.state_dict().items():
            if "norm" in name.lower() and tensor.is_floating_point():
                tensor.add_(0.2 * torch.rand_like(tensor))
            elif name.endswith("bias"):
                tensor.normal_(std=0.1)
    copy_weights(model, network.weights(reference.state_dict()))
    return model, reference


def assert_equal_outputs(network: KnownNetwork, model: TranslatedModel, reference: nn.Module) -> None:
    """Outputs agree to 1e-5 of the largest output."""
    inputs = inputs_of(model, network)
    with torch.no_grad():
        outputs, expected = model(*inputs), network.outputs(reference, inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    for one, other in zip(outputs, expected, strict=True):
        assert one.shape == other.shape
        assert (one - other).abs().max() <= 1e-5 * other.abs().max()


@NETWORKS
def test_graph_file_has_the_published_size(network):
    cost = graph_cost(network.graph())
    assert (cost.num_parameters, cost.multiply_adds) == (network.num_parameters, network.multiply_adds)


@pytest.mark.parametrize(
    "network",
    [
        pytest.param(network, id=name, marks=[] if name in FAST else [pytest.mark.slow])
        for name, network in KNOWN_NETWORKS.items()
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_outputs_equal_the_reference_with_copied_weights(network):
    model, reference = pair(network, SMALL.get(network.name))
    counts = [sum(parameter.numel() for parameter in each.parameters()) for each in (model, reference)]
    assert counts == [graph_cost(network.graph(SMALL.get(network.name))).num_parameters] * 2
    assert_equal_outputs(network, model.eval(), reference.eval())
    # Train mode: batch norm takes the statistics of the batch; without dropout it is deterministic.
    for each in (model, reference):
        without_dropout(each.train())
    assert_equal_outputs(network, model, reference)


@pytest.mark.slow
@NETWORKS
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_outputs_of_the_declared_size_equal_the_reference(network):
    model, reference = pair(network, None)
    assert_equal_outputs(network, model.eval(), reference.eval())
