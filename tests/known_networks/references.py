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
from tests.known_networks import modules

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
                channels = node["shape"][:1] if len(node["shape"]) >= 3 else []
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


def _llama_weights(state: State) -> State:
    heads = [state[f"layer.self_attn.{word}_proj.weight"] for word in "qkv"]
    value_and_gate = [state[f"layer.mlp.{word}_proj.weight"] for word in ("up", "gate")]
    return {
        "rms_norm_1.weight": state["layer.input_layernorm.weight"],
        "self_attention_2.qkv.weight": torch.cat(heads),
        "self_attention_2.output.weight": state["layer.self_attn.o_proj.weight"],
        "rms_norm_4.weight": state["layer.post_attention_layernorm.weight"],
        "gated_linear_5.projection.weight": torch.cat(value_and_gate),
        "linear_6.weight": state["layer.mlp.down_proj.weight"],
    }


def _t5_weights(state: State) -> State:
    """Return the tensors by the model's names; T5 does not divide scores by the root of the size of a head."""
    attention, network = "layer.0.SelfAttention", "layer.1"
    heads = [state[f"{attention}.{word}.weight"] for word in "qkv"]
    return {
        "rms_norm_1.weight": state["layer.0.layer_norm.weight"],
        "self_attention_2.qkv.weight": torch.cat((4 * heads[0], *heads[1:])),
        "self_attention_2.output.weight": state[f"{attention}.o.weight"],
        "self_attention_2.bias_by_distance.embedding.weight": state[f"{attention}.relative_attention_bias.weight"],
        "rms_norm_4.weight": state[f"{network}.layer_norm.weight"],
        "linear_5.weight": state[f"{network}.DenseReluDense.wi.weight"],
        "linear_6.weight": state[f"{network}.DenseReluDense.wo.weight"],
    }


def _mamba_weights(state: State) -> State:
    names = {"A_log": "log_decay", "D": "skip", "in_proj": "input", "conv1d": "convolution", "x_proj": "selection"}
    names |= {"dt_proj": "rate", "out_proj": "output", "mixer": "selective_scan_2", "norm": "rms_norm_1"}
    return {".".join(names.get(part, part) for part in key.split(".")): value for key, value in state.items()}


def _swin_weights(state: State) -> State:
    """Return the tensors by the model's names: linear layers are convolutions, patches are in another order."""
    tensors = {
        **_both("conv2d_1", "swin.embeddings.patch_embeddings.projection", state),
        **_both("layer_norm_2", "swin.embeddings.norm", state),
        **_both("layer_norm_24", "swin.layernorm", state),
        **_both("linear_26", "classifier", state),
    }
    node = 3
    for stage, depth in enumerate((2, 2, 6, 2)):
        for index in range(depth):
            block = f"swin.encoder.layers.{stage}.blocks.{index}"
            ours, attention = (
                f"stage{stage + 1}{'_shifted' if index % 2 and stage < 3 else ''}_{node}",
                f"{block}.attention",
            )
            tensors |= _both(f"{ours}.layer_norm_1", f"{block}.layernorm_before", state)
            bias = f"{attention}.relative_position_bias.relative_position_bias_table"
            tensors[f"{ours}.window_attention_2.table"] = state[bias]
            tensors |= _fused(f"{ours}.window_attention_2.qkv", [f"{attention}.{word}_proj" for word in "qkv"], state)
            tensors |= _both(f"{ours}.window_attention_2.output", f"{attention}.o_proj", state)
            tensors |= _both(f"{ours}.layer_norm_4", f"{block}.layernorm_after", state)
            for place, name in ((5, "fc1"), (6, "fc2")):
                tensors |= _both(f"{ours}.conv2d_{place}", f"{block}.mlp.{name}", state)
                tensors[f"{ours}.conv2d_{place}.weight"] = state[f"{block}.mlp.{name}.weight"][..., None, None]
            node += 1
        if stage < 3:
            merging = f"swin.encoder.layers.{stage}.downsample"
            norm = {leaf: _as_unshuffled(state[f"{merging}.norm.{leaf}"]) for leaf in ("weight", "bias")}
            tensors |= {f"layer_norm_{node + 1}.{leaf}": value for leaf, value in norm.items()}
            tensors[f"conv2d_{node + 2}.weight"] = _as_unshuffled(state[f"{merging}.reduction.weight"])[..., None, None]
            node += 3
    return tensors


def _as_unshuffled(value: Tensor) -> Tensor:
    """Return a last axis [column, row, channel] as [channel, row, column], the order of PixelUnshuffle."""
    return value.unflatten(-1, (2, 2, -1)).transpose(-3, -1).flatten(-3)


def _block(
    name: str, num_parameters: int, multiply_adds: int, build: Callable[[], nn.Module], weights: Any = _in_order
) -> KnownNetwork:
    def outputs(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        result = model(*inputs)
        return (result[0] if isinstance(result, tuple) else result,)

    return KnownNetwork(name, num_parameters, multiply_adds, lambda _: build(), outputs, weights)


def _t5_layer() -> nn.Module:
    config = import_module("transformers.models.t5.configuration_t5").T5Config
    block = import_module("transformers.models.t5.modeling_t5").T5Block
    options = {"d_model": 32, "num_heads": 4, "d_kv": 16, "d_ff": 64, "dropout_rate": 0.0}
    return block(config(**options), has_relative_attention_bias=True)


def _mamba_block() -> nn.Module:
    config = import_module("transformers.models.mamba.configuration_mamba").MambaConfig
    kind = import_module("transformers.models.mamba.modeling_mamba").MambaBlock
    block = kind(config(hidden_size=48), 0)
    with torch.no_grad():  # the package leaves these as they are in memory until a whole model is made
        block.mixer.A_log.copy_(torch.arange(1.0, 17.0).log().expand(96, 16))
        block.mixer.D.normal_()
    return block


def _part(kind: str, model: str, config: str, *arguments: Any, **options: Any) -> Any:
    """Return a layer of a model of transformers."""
    package = f"transformers.models.{kind}"
    config_class = getattr(import_module(f"{package}.configuration_{kind}"), config)
    return getattr(import_module(f"{package}.modeling_{kind}"), model)(config_class(**options), *arguments)


_WHISPER_PARTS = ("layer_norm", "k_proj", "v_proj", "q_proj", "out_proj", "final_layer_norm", "fc1", "fc2")


def _whisper_weights(state: State) -> State:
    """Return the tensors in the order of the graph: the key comes first, which has no bias."""

    def place(name: str) -> tuple[int, ...]:
        if not name.startswith("layers."):
            return (2 if name.startswith("layer_norm") else 0,)
        part = max((part for part in _WHISPER_PARTS if part in name), key=len)
        return 1, int(name.split(".")[1]), _WHISPER_PARTS.index(part)

    return {name: state[name] for name in sorted(state, key=place)}


_WAV2VEC2 = {"hidden_size": 8, "conv_dim": [6, 6], "conv_kernel": [5, 3], "conv_stride": [3, 2]}
_WAV2VEC2 |= {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "num_feat_extract_layers": 2}


def _wav2vec2(_: int | None) -> nn.Module:
    parts = ("FeatureEncoder", "FeatureProjection", "PositionalConvEmbedding")
    made = [_part("wav2vec2", f"Wav2Vec2{part}", "Wav2Vec2Config", **_WAV2VEC2) for part in parts]
    return nn.ModuleList([*made, nn.LayerNorm(8)])


def _wav2vec2_outputs(model: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    features, projection, positions, norm = model
    values, _ = projection(features(*inputs).transpose(1, 2))
    return (norm(values + positions(values)),)


def _last_hidden_state(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (model(*inputs).last_hidden_state,)


_EAGER = {"attn_implementation": "eager"}
_WHISPER = {"num_mel_bins": 6, "d_model": 8, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 12}
_WHISPER |= {"max_source_positions": 5, "dropout": 0.0, "pad_token_id": 0, **_EAGER}
_FALCON = {"vocab_size": 30_000, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4, **_EAGER}
_FALCON |= {"multi_query": True, "parallel_attn": True, "bias": False, "ffn_hidden_size": 20}
_FALCON_PART = {"word_e": 0, "h.0.in": 1, "h.0.se": 2, "h.0.ml": 3, "ln_f.w": 4, "ln_f.b": 4}
_SWINV2 = {"image_size": 8, "patch_size": 1, "embed_dim": 8, "window_size": 2, "hidden_dropout_prob": 0.0}


_SWIN = _made("swin", "SwinForImageClassification", "SwinConfig", num_labels=1000, drop_path_rate=0.0)
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
        KnownNetwork("swin_t", 28_288_354, 4_490_566_656, _SWIN, _logits, _swin_weights),
        _block("vgg16", 138_357_544, 15_470_264_320, modules.vgg16),
        _block("llama_block", 34_944, 436_224, modules.LlamaBlock, _llama_weights),
        _block("t5_encoder_layer", 12_480, 135_680, _t5_layer, _t5_weights),
        _block("mamba_block", 19_728, 387_840, _mamba_block, _mamba_weights),
        _block("inception_reduction", 1_153_280, 401_937_408, modules.InceptionReduction),
        _block("shufflenet_unit", 7_598, 5_684_000, modules.ShuffleNetUnit),
        _block("unet", 482_050, 145_031_168, modules.UNet),
        _block("r3d_18", 33_371_472, 40_696_553_472, modules.r3d_18),
        _block("unet3d_level", 60_643, 143_294_464, modules.UNet3dLevel),
        _block("wavenet_stack", 14_050, 871_424, modules.WaveNetStack),
        _block("siamese", 105_281, 2_232_896, modules.Siamese),
        # Of configurations as small as possible: a class of a package, heads by functions, objects as arguments.
        _block(
            "convnextv2_layer", 1_032, 73_224, lambda: _part("convnextv2", "ConvNextV2Layer", "ConvNextV2Config", 8)
        ),
        KnownNetwork(
            "whisper_encoder",
            1_456,
            7_680,
            _made("whisper", "WhisperEncoder", "WhisperConfig", **_WHISPER),
            _last_hidden_state,
            _whisper_weights,
        ),
        KnownNetwork("wav2vec2_encoder", 374, 1_534, _wav2vec2, _wav2vec2_outputs, _in_order),
        KnownNetwork(
            "falcon",
            481_344,
            10_528,
            _made("falcon", "FalconModel", "FalconConfig", **_FALCON),
            _last_hidden_state,
            lambda state: {key: state[key] for key in sorted(state, key=lambda key: _FALCON_PART.get(key[:6], 1))},
        ),
        KnownNetwork(
            "swinv2_layer",
            3_426,
            31_744,
            lambda _: _part("swinv2", "Swinv2Layer", "Swinv2Config", 8, (4, 4), 2, 0.0, 1, **_SWINV2),
            lambda model, inputs: model(*inputs, (4, 4))[:1],
            _in_order,
        ),
    )
}
# Height and width, or number of tokens.
SMALL = {"resnet18": 48, "resnet50": 64, "mobilenet_v2": 64, "vit_b16": 64, "bert_base": 20, "gpt2": 24, "r3d_18": 16}


def without_dropout(model: nn.Module) -> None:
    """Set the rate of every dropout to 0."""
    for module in model.modules():
        for name in ("p", "dropout", "probability"):
            if isinstance(vars(module).get(name), float):
                vars(module)[name] = 0.0
