"""Wrappers of a policy: mixed precision, device, compilation and evaluation in parts."""

import copy
from contextlib import nullcontext
from typing import Any, cast

import pytest
import torch
from torch import nn

from gflownet.evaluation.conditioning import Conditioning
from gflownet.learning.sampler import sample_forward
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.policy import Policy
from gflownet.policy.config import ModelConfig
from gflownet.policy.dense_transformer import DenseTransformerPolicy
from gflownet.policy.graph_transformer import GraphTransformerPolicy
from gflownet.policy.mlp import MLPPolicy
from gflownet.policy.sequence_transformer import SequenceTransformerPolicy
from gflownet.policy.wrappers import PolicyOnDevice
from tests.contracts.environments import ENVIRONMENTS

CPU = torch.device("cpu")
BOTH = pytest.mark.parametrize("policy_class", [DenseTransformerPolicy, GraphTransformerPolicy])
ALL = pytest.mark.parametrize(
    "policy_class",
    [
        *(pytest.param(each, marks=pytest.mark.slow) for each in (DenseTransformerPolicy, GraphTransformerPolicy)),
        MLPPolicy,
        pytest.param(SequenceTransformerPolicy, marks=pytest.mark.slow),
    ],
)


def make_policy(policy_class, **options) -> tuple[GraphBuildingEnvContext, Policy]:
    env = "bit_sequence" if policy_class in {MLPPolicy, SequenceTransformerPolicy} else "directed"
    context = GraphBuildingEnvContext(ENVIRONMENTS[env]()).with_layout(policy_class.layout)
    torch.manual_seed(0)
    return context, policy_class(context, ModelConfig(num_layers=2, num_emb=16, **options))


@BOTH
def test_mixed_precision_policy_is_close_and_has_gradients(policy_class):
    context, policy = make_policy(policy_class)
    mixed = PolicyOnDevice(policy, device=CPU, precision="bfloat16")
    conditioning = Conditioning(torch.zeros(16, 1), torch.ones(16))
    sampled = sample_forward(context, mixed, conditioning=conditioning, generator=torch.Generator().manual_seed(1))
    batch, conditioning = context.to_batch(sampled.states), sampled.conditioning[sampled.trajectory]
    (exact, outputs), (rough, rough_outputs) = policy(batch, conditioning), mixed(batch, conditioning)
    assert rough.logsumexp().dtype == rough_outputs.dtype == torch.float32
    difference = (exact.log_probs()[1] - rough.log_probs()[1]).abs().max()
    assert 0 < float(difference.detach()) < 0.1
    assert torch.allclose(outputs, rough_outputs, atol=0.1)
    rough.log_prob(context.to_indices(batch, sampled.actions)).sum().backward()
    gradients = [p.grad for p in policy.parameters() if p.grad is not None]
    assert gradients
    assert all(g.dtype == torch.float32 and bool(g.isfinite().all()) for g in gradients)


def test_full_precision_policy_is_unchanged():
    context, policy = make_policy(DenseTransformerPolicy)
    batch, conditioning = context.to_batch(context.env.initial_states(3)), torch.zeros(3, 1)
    plain, wrapped = (p(batch, conditioning)[0].logsumexp() for p in (policy, PolicyOnDevice(
        policy, device=CPU, precision="float32")))  # fmt: skip
    assert torch.equal(plain, wrapped)


@ALL
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's, while it traces
def test_compiled_policy_matches_plain_policy(policy_class, monkeypatch):
    """Only the tracing of torch.compile is tested: the code generator takes half a minute and needs a C++ compiler."""
    compiled: list[str] = []

    def trace(graph_module, example_inputs):
        compiled.append(type(graph_module).__name__)
        return graph_module.forward

    original = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self, **options: original(self, backend=trace, **options))
    context, policy = make_policy(policy_class, compile=True)
    _, plain = make_policy(policy_class)
    plain.load_state_dict(policy.state_dict())
    generator = torch.Generator().manual_seed(2)
    conditioning = Conditioning(torch.zeros(8, 1), torch.ones(8))
    sampled = sample_forward(context, plain, conditioning=conditioning, generator=generator)
    batch, conditioning = context.to_batch(sampled.states), sampled.conditioning[sampled.trajectory]
    expected = plain(batch, conditioning)[0].log_probs()[1]
    assert torch.allclose(policy(batch, conditioning)[0].log_probs()[1], expected, atol=1e-5)
    assert compiled
    compiled.clear()
    torch.compiler.reset()
    assert torch.allclose(copy.deepcopy(policy)(batch, conditioning)[0].log_probs()[1], expected, atol=1e-5)
    assert compiled, "a deep copy, as used for workers, is compiled too"


@BOTH
def test_policy_on_device_does_not_move_callers_batch(policy_class, monkeypatch):
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # autocast does not support the meta device
    context, _ = make_policy(policy_class)
    moved = []

    class RecordingPolicy(nn.Module):
        def forward(self, batch, conditioning):
            moved.extend([batch, conditioning])
            return None, conditioning.squeeze(1)

    batch, meta = context.to_batch(context.env.initial_states(3)), torch.device("meta")
    PolicyOnDevice(RecordingPolicy(), device=meta, precision="float32")(batch, torch.zeros(3, 1))  # pyright: ignore
    moved_batch, conditioning = moved
    assert {moved_batch[key].device for key in batch.keys()} == {meta} == {conditioning.device}  # noqa: SIM118
    assert {batch[key].device for key in batch.keys()} == {CPU}  # noqa: SIM118


def test_graph_transformer_creates_tensors_on_batch_device():
    """The meta device replaces CUDA here: both reject operations on tensors of different devices."""
    context, policy = make_policy(GraphTransformerPolicy)
    batch: Any = context.to_batch(context.env.initial_states(3))
    meta, moved = torch.device("meta"), cast(GraphTransformerPolicy, policy.to("meta"))
    nodes, graphs = moved.encode(batch.to(meta), torch.zeros(3, 1, device=meta))
    assert nodes.device == graphs.device == meta
