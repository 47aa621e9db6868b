"""Reference implementations of the graph files: package transformers, built from a configuration without a download."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gflownet.graphs.computation_graph import ComputationGraph

FOLDER = Path(__file__).parent
State = Mapping[str, Tensor]
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@dataclass(frozen=True)
class KnownNetwork:
    """A graph file with the facts to check."""

    name: str
    num_parameters: int
    multiply_adds: int  # of one example of the declared size
    build: Callable[[int | None], nn.Module]  # the reference, for the declared or another size
    outputs: Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor, ...]]  # of the reference
    weights: Callable[[State], State]  # the reference's tensors by the model's names, or in their own order

    def data(self, size: int | None = None) -> dict[str, Any]:
        """Return the node-link data; `size`: another height and width, or number of tokens."""
        data = json.loads((FOLDER / f"{self.name}.json").read_text(encoding="utf-8"))
        for node in data["nodes"]:
            if node["node_type"] == "input" and size is not None:
                channels = node["shape"][:1] if len(node["shape"]) == 3 else []
                node["shape"] = [*channels, *[size] * max(len(node["shape"]) - 1, 1)]
        return data

    def graph(self, size: int | None = None) -> ComputationGraph:
        return ComputationGraph.from_dict(self.data(size))


def _made(kind: str, model: str, config: str, **options: Any) -> Callable[[int | None], nn.Module]:
    """Return a function that builds a model of transformers; only ViT depends on the size."""

    def build(size: int | None) -> nn.Module:
        package = f"transformers.models.{kind}"
        config_class = getattr(import_module(f"{package}.configuration_{kind}"), config)
        by_size = {"image_size": size} if kind == "vit" and size else {}
        return getattr(import_module(f"{package}.modeling_{kind}"), model)(config_class(**options, **by_size))

    return build


def _logits(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (model(*inputs).logits,)


def _bert_outputs(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    result = model(inputs[0], token_type_ids=inputs[1])
    return result.last_hidden_state, result.pooler_output


def _in_order(state: State) -> State:
    return state


def _resnet(name: str, num_parameters: int, multiply_adds: int, **options: Any) -> KnownNetwork:
    build = _made("resnet", "ResNetForImageClassification", "ResNetConfig", num_labels=1000, **options)
    return KnownNetwork(name, num_parameters, multiply_adds, build, _logits, _in_order)


def _both(target: str, source: str, state: State) -> State:
    return {f"{target}.{leaf}": state[f"{source}.{leaf}"] for leaf in ("weight", "bias")}


def _fused(target: str, sources: list[str], state: State) -> State:
    leaves = ("weight", "bias")
    return {f"{target}.{leaf}": torch.cat([state[f"{source}.{leaf}"] for source in sources]) for leaf in leaves}


def _vit_weights(state: State) -> State:
    tensors = {
        "class_token_2.weight": state["vit.embeddings.cls_token"].flatten(),
        "learned_positions_3.weight": state["vit.embeddings.position_embeddings"][0],
        **_both("patchify_1", "vit.embeddings.patch_embeddings.projection", state),
        **_both("layer_norm_5", "vit.layernorm", state),
        **_both("linear_7", "classifier", state),
    }
    for index in range(12):
        ours, layer = f"layer_4.{index}", f"vit.layers.{index}"
        tensors |= _both(f"{ours}.layer_norm_1", f"{layer}.layernorm_before", state)
        heads = [f"{layer}.attention.{word}_proj" for word in "qkv"]
        tensors |= _fused(f"{ours}.self_attention_2.qkv", heads, state)
        tensors |= _both(f"{ours}.self_attention_2.output", f"{layer}.attention.o_proj", state)
        tensors |= _both(f"{ours}.layer_norm_4", f"{layer}.layernorm_after", state)
        tensors |= _both(f"{ours}.linear_5", f"{layer}.mlp.fc1", state)
        tensors |= _both(f"{ours}.linear_6", f"{layer}.mlp.fc2", state)
    return tensors


def _bert_weights(state: State) -> State:
    tensors = {
        "embedding_2.weight": state["embeddings.word_embeddings.weight"],
        "embedding_3.weight": state["embeddings.token_type_embeddings.weight"],
        "learned_positions_4.weight": state["embeddings.position_embeddings.weight"],
        **_both("layer_norm_5", "embeddings.LayerNorm", state),
        **_both("linear_9", "pooler.dense", state),
    }
    for index in range(12):
        ours, layer = f"layer_7.{index}", f"encoder.layer.{index}"
        heads = [f"{layer}.attention.self.{word}" for word in ("query", "key", "value")]
        tensors |= _fused(f"{ours}.self_attention_1.qkv", heads, state)
        tensors |= _both(f"{ours}.self_attention_1.output", f"{layer}.attention.output.dense", state)
        tensors |= _both(f"{ours}.layer_norm_3", f"{layer}.attention.output.LayerNorm", state)
        tensors |= _both(f"{ours}.linear_4", f"{layer}.intermediate.dense", state)
        tensors |= _both(f"{ours}.linear_5", f"{layer}.output.dense", state)
        tensors |= _both(f"{ours}.layer_norm_7", f"{layer}.output.LayerNorm", state)
    return tensors


def _gpt2_weights(state: State) -> State:
    """Return the tensors by the model's names; the layers of GPT-2 hold transposed matrices."""
    tensors = {
        "embedding_1.weight": state["transformer.wte.weight"],
        "learned_positions_2.weight": state["transformer.wpe.weight"],
        **_both("layer_norm_5", "transformer.ln_f", state),
    }
    pairs = {"self_attention_2.qkv": "attn.c_attn", "self_attention_2.output": "attn.c_proj"}
    pairs |= {"linear_6": "mlp.c_fc", "linear_7": "mlp.c_proj"}
    for index in range(12):
        ours, layer = f"layer_4.{index}", f"transformer.h.{index}"
        tensors |= _both(f"{ours}.layer_norm_1", f"{layer}.ln_1", state)
        tensors |= _both(f"{ours}.layer_norm_5", f"{layer}.ln_2", state)
        for target, source in pairs.items():
            tensors[f"{ours}.{target}.weight"] = state[f"{layer}.{source}.weight"].T
            tensors[f"{ours}.{target}.bias"] = state[f"{layer}.{source}.bias"]
    return tensors


def _encoder_weights(state: State) -> State:
    return {
        "self_attention_1.qkv.weight": state["self_attn.in_proj_weight"],
        "self_attention_1.qkv.bias": state["self_attn.in_proj_bias"],
        **_both("self_attention_1.output", "self_attn.out_proj", state),
        **_both("layer_norm_3", "norm1", state),
        **_both("linear_4", "linear1", state),
        **_both("linear_6", "linear2", state),
        **_both("layer_norm_8", "norm2", state),
    }


_VIT = _made("vit", "ViTForImageClassification", "ViTConfig", num_labels=1000)
_MOBILENET = _made(
    "mobilenet_v2",
    "MobileNetV2ForImageClassification",
    "MobileNetV2Config",
    num_labels=1000,
    tf_padding=False,
    layer_norm_eps=1e-5,
)
_GPT2 = _made("gpt2", "GPT2LMHeadModel", "GPT2Config", use_cache=False)
KNOWN_NETWORKS = {
    network.name: network
    for network in (
        _resnet(
            "resnet18",
            11_689_512,
            1_814_073_344,
            layer_type="basic",
            depths=[2, 2, 2, 2],
            hidden_sizes=[64, 128, 256, 512],
        ),
        _resnet("resnet50", 25_557_032, 4_089_184_256),
        KnownNetwork("mobilenet_v2", 3_504_872, 300_774_272, _MOBILENET, _logits, _in_order),
        KnownNetwork("vit_b16", 86_567_656, 17_563_828_224, _VIT, _logits, _vit_weights),
        KnownNetwork(
            "bert_base",
            109_482_240,
            48_318_971_904,
            _made("bert", "BertModel", "BertConfig"),
            _bert_outputs,
            _bert_weights,
        ),
        KnownNetwork("gpt2", 124_439_808, 145_824_153_600, _GPT2, _logits, _gpt2_weights),
        KnownNetwork(
            "transformer_encoder_layer",
            3_152_384,
            31_559_680,
            lambda _: nn.TransformerEncoderLayer(512, 8, batch_first=True),
            lambda model, inputs: (model(*inputs),),
            _encoder_weights,
        ),
    )
}
