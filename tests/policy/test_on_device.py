"""Precision, device and compilation of a policy leave its interface as it is."""

import copy
from contextlib import nullcontext
from typing import Any, cast

import pytest
import torch
from torch import nn

from gflownet.data.sampler import sample_forward
from gflownet.evaluation.conditioning import Conditioning
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.policy import Policy
from gflownet.policy.config import ModelConfig
from gflownet.policy.dense_transformer import DenseTransformerPolicy
from gflownet.policy.graph_transformer import GraphTransformerPolicy
from gflownet.policy.in_parts import PolicyInParts
from gflownet.policy.mlp import MLPPolicy
from gflownet.policy.on_device import PolicyOnDevice
from gflownet.policy.sequence_transformer import SequenceTransformerPolicy
from tests.contracts.environments import ENVIRONMENTS

CPU = torch.device("cpu")
BOTH = pytest.mark.parametrize("policy_class", [DenseTransformerPolicy, GraphTransformerPolicy])
ALL = pytest.mark.parametrize(
    "policy_class", [DenseTransformerPolicy, GraphTransformerPolicy, MLPPolicy, SequenceTransformerPolicy]
)


def made(policy_class, **options) -> tuple[GraphBuildingEnvContext, Policy]:
    env = "bit_sequence" if policy_class in {MLPPolicy, SequenceTransformerPolicy} else "directed"
    context = GraphBuildingEnvContext(ENVIRONMENTS[env]()).with_layout(policy_class.layout)
    torch.manual_seed(0)
    return context, policy_class(context, ModelConfig(num_layers=2, num_emb=16, **options))


@BOTH
def test_mixed_precision_is_close_samples_and_trains(policy_class):
    context, policy = made(policy_class)
    mixed = PolicyOnDevice(policy, device=CPU, precision="bfloat16")
    conditioning = Conditioning(torch.zeros(16, 1), torch.ones(16))
    sampled = sample_forward(context, mixed, conditioning=conditioning, generator=torch.Generator().manual_seed(1))
    batch, shown = context.to_batch(sampled.states), sampled.conditioning[sampled.trajectory]
    (exact, numbers), (rough, others) = policy(batch, shown), mixed(batch, shown)
    assert rough.logsumexp().dtype == others.dtype == torch.float32
    difference = (exact.log_probs()[1] - rough.log_probs()[1]).abs().max()
    assert 0 < float(difference.detach()) < 0.1
    assert torch.allclose(numbers, others, atol=0.1)
    rough.log_prob(context.to_indices(batch, sampled.actions)).sum().backward()
    gradients = [p.grad for p in policy.parameters() if p.grad is not None]
    assert gradients
    assert all(g.dtype == torch.float32 and bool(g.isfinite().all()) for g in gradients)


def test_full_precision_is_the_policy_itself():
    context, policy = made(DenseTransformerPolicy)
    batch, conditioning = context.to_batch(context.env.initial_states(3)), torch.zeros(3, 1)
    ours, theirs = (p(batch, conditioning)[0].logsumexp() for p in (policy, PolicyOnDevice(
        policy, device=CPU, precision="float32")))  # fmt: skip
    assert torch.equal(ours, theirs)


@ALL
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's, while it traces
def test_compiled_layers_say_the_same(policy_class, monkeypatch):
    """The tracing of torch.compile is the real one; its code generator takes half a minute and a C++ compiler."""
    compiled: list[str] = []

    def trace(graph_module, example_inputs):
        compiled.append(type(graph_module).__name__)
        return graph_module.forward

    real = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self, **options: real(self, backend=trace, **options))
    context, policy = made(policy_class, compile=True)
    _, plain = made(policy_class)
    plain.load_state_dict(policy.state_dict())
    generator = torch.Generator().manual_seed(2)
    conditioning = Conditioning(torch.zeros(8, 1), torch.ones(8))
    sampled = sample_forward(context, plain, conditioning=conditioning, generator=generator)
    batch, shown = context.to_batch(sampled.states), sampled.conditioning[sampled.trajectory]
    expected = plain(batch, shown)[0].log_probs()[1]
    assert torch.allclose(policy(batch, shown)[0].log_probs()[1], expected, atol=1e-5)
    assert compiled
    compiled.clear()
    torch.compiler.reset()
    assert torch.allclose(copy.deepcopy(policy)(batch, shown)[0].log_probs()[1], expected, atol=1e-5)
    assert compiled, "the copy, such as the one that answers workers, is compiled, too"


@BOTH
def test_in_parts_the_gradient_is_the_same_in_less_memory(policy_class):
    context, policy = made(policy_class)
    states = sample_forward(
        context, policy, conditioning=Conditioning(torch.zeros(12, 1), torch.ones(12)), generator=torch.Generator()
    ).states
    batch, shown = context.to_batch(states), torch.zeros(len(states), 1)
    gradients, kept = [], []
    for num_parts in (1, 8, len(states) + 1):
        policy.zero_grad()
        asked, sizes = PolicyInParts(policy, context, num_parts=num_parts), []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, sizes=sizes: sizes.append(x.nbytes) or x, lambda x: x):
            categorical, numbers = asked(batch, shown)
        (categorical.logsumexp() + numbers.square()).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None]))
        kept.append(sum(sizes))
    for parted in gradients[1:]:
        assert torch.allclose(parted, gradients[0], rtol=1e-3, atol=1e-5 * float(gradients[0].abs().max()))
    assert kept[1] < 0.1 * kept[0]


@BOTH
def test_the_batch_of_whoever_asks_stays_where_it_is(policy_class, monkeypatch):
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # which does not know the meta device
    context, _ = made(policy_class)
    moved = []

    class Seen(nn.Module):
        def forward(self, batch, conditioning):
            moved.extend([batch, conditioning])
            return None, conditioning.squeeze(1)

    batch, there = context.to_batch(context.env.initial_states(3)), torch.device("meta")
    PolicyOnDevice(Seen(), device=there, precision="float32")(batch, torch.zeros(3, 1))  # pyright: ignore
    shown, conditioning = moved
    assert {shown[key].device for key in batch.keys()} == {there} == {conditioning.device}  # noqa: SIM118
    assert {batch[key].device for key in batch.keys()} == {CPU}  # noqa: SIM118


def test_message_passing_makes_its_tensors_where_the_batch_is():
    """The meta device stands in for CUDA: operations refuse tensors of several devices on both."""
    context, policy = made(GraphTransformerPolicy)
    batch: Any = context.to_batch(context.env.initial_states(3))
    there, moved = torch.device("meta"), cast(GraphTransformerPolicy, policy.to("meta"))
    nodes, graphs = moved.encode(batch.to(there), torch.zeros(3, 1, device=there))
    assert nodes.device == graphs.device == there
