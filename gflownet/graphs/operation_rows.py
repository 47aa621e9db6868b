"""The built-in operations: name, class and meaning. Nothing is imported before it is used."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gflownet.plugins import BuiltIn

_OPERATIONS, _COMPOSITES = "gflownet.operations", "gflownet.graphs.composites"


def _rows(module: str, room: str = _OPERATIONS, /, **rows: tuple[str, str]) -> dict[str, BuiltIn]:
    """Return the operations of a file: class and meaning by name."""
    return {name: BuiltIn(f"{room}.{module}:{home}", summary) for name, (home, summary) in rows.items()}


BUILT_IN: Mapping[str, BuiltIn] = MappingProxyType(
    {
        **_rows(
            "linear",
            linear=("Linear", "linear layer over the features"),
            head=("Head", "average over all positions, then a linear layer"),
            tied_linear=("TiedLinear", "linear layer with the weight of another node"),
            gated_linear=("GatedLinear", "linear layer times a gate"),
        ),
        **_rows(
            "transformer",
            _COMPOSITES,
            feed_forward=("FeedForward", "two linear layers with an activation"),
            transformer_block=("TransformerBlock", "pre-norm transformer block"),
        ),
        **_rows(
            "convolution",
            conv1d=("Conv1d", "convolution of a signal"),
            conv2d=("Conv2d", "convolution of an image"),
            depthwise_conv1d=("DepthwiseConv1d", "convolution of each channel of a signal"),
            depthwise_conv2d=("DepthwiseConv2d", "convolution of each channel of an image"),
            transposed_conv1d=("TransposedConv1d", "transposed convolution of a signal"),
            transposed_conv2d=("TransposedConv2d", "transposed convolution of an image"),
        ),
        **_rows(
            "pooling",
            max_pool1d=("MaxPool1d", "largest value of each window of a signal"),
            max_pool2d=("MaxPool2d", "largest value of each window of an image"),
            avg_pool1d=("AvgPool1d", "mean of each window of a signal"),
            avg_pool2d=("AvgPool2d", "mean of each window of an image"),
            global_pool=("GlobalPool", "mean or maximum over all positions"),
        ),
        **_rows(
            "normalisation",
            batch_norm=("BatchNorm", "normalise each channel over the batch"),
            layer_norm=("LayerNorm", "normalise the features of each position"),
            rms_norm=("RMSNorm", "divide the features by their root mean square"),
            group_norm=("GroupNorm", "normalise groups of channels of each example"),
        ),
        **_rows(
            "tokens",
            embedding=("Embedding", "a learned vector for each token"),
            patchify=("Patchify", "linear layer over each patch of an image or a signal"),
            learned_positions=("LearnedPositions", "add a learned vector to each position"),
            rotary_positions=("RotaryPositions", "rotate features by the position"),
            class_token=("ClassToken", "put a learned vector in front of a sequence"),
        ),
        **_rows(
            "attention",
            self_attention=("SelfAttention", "attention of a sequence to itself"),
            cross_attention=("CrossAttention", "attention of a sequence to another one"),
        ),
        **_rows(
            "recurrent",
            lstm=("LSTM", "LSTM over a sequence"),
            gru=("GRU", "GRU over a sequence"),
            rhn=("RHN", "layer of a Recurrent Hyper Network over a sequence"),
        ),
        **_rows(
            "elementary",
            squeeze_excitation=("SqueezeExcitation", "scale channels by gates computed from their means"),
            identity=("Identity", "the input itself"),
            zero=("Zero", "zeros: no connection"),
            dropout=("Dropout", "random zeros in training"),
            scale=("Scale", "the input times a constant"),
            layer_scale=("LayerScale", "each channel times a learned number"),
        ),
        **_rows(
            "reshaping",
            flatten=("Flatten", "all elements as a vector"),
            to_sequence=("ToSequence", "positions of a signal or an image as a sequence"),
            to_signal=("ToSignal", "positions of a sequence or an image as a signal"),
            to_image=("ToImage", "positions of a sequence or a signal as an image"),
            reshape=("Reshape", "the elements in another shape"),
            select=("Select", "one position of a sequence as a vector"),
            upsample=("Upsample", "more positions by interpolation"),
        ),
        **_rows(
            "convolution_blocks",
            _COMPOSITES,
            conv_bn_relu=("ConvBNReLU", "convolution, batch norm, ReLU"),
            relu_conv_bn=("ReLUConvBN", "ReLU, convolution, batch norm"),
            separable_conv_bn_relu=("SeparableConvBNReLU", "depthwise and 1x1 convolution, batch norm, ReLU"),
            separable_conv=("SeparableConv", "separable convolution of DARTS"),
            dilated_conv=("DilatedConv", "dilated separable convolution of DARTS"),
            inverted_bottleneck=("InvertedBottleneck", "inverted bottleneck of MobileNetV2"),
            residual_block=("ResidualBlock", "block of two convolutions of ResNet"),
            bottleneck_block=("BottleneckBlock", "block of three convolutions of ResNet"),
            residual_reduction=("ResidualReduction", "two convolutions at half the positions, of NAS-Bench-201"),
            first_channels=("FirstChannels", "the first of the channels"),
        ),
        **_rows("opaque", opaque=("Opaque", "any nn.Module by module:Class")),
    }
)
