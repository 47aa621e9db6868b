"""Options of a translation. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.typed import TypedGraph
from gflownet.operations.tensor_shape import Layout
from gflownet.operations.vocabulary import TRANSLATION_SETTINGS


@dataclass(frozen=True)
class TranslationConfig:
    """Options of to_pytorch_model. None: the setting of the graph, else the default."""

    device: Any = field(default="cpu", metadata={"help": "torch device of the parameters"})
    dtype: Any = field(
        default=None, metadata={"help": "floating torch dtype of the parameters or its name; by default float32"}
    )
    projection: str | None = field(
        default=None,
        metadata={
            "help": "auto (default): a linear layer on edges whose widths differ; always: on every edge; never: refuse "
            "such edges"
        },
    )
    enable_translation_cache: bool | None = field(
        default=None, metadata={"help": "use the cache of generated classes; None: the global switch"}
    )
    memory_format: str | None = field(
        default=None,
        metadata={
            "help": "of images in operation graphs: contiguous (default) or channels_last, faster on some devices"
        },
    )
    autocast: str | None = field(
        default=None,
        metadata={
            "help": "dtype of matrix products and convolutions in operation graphs (torch.autocast): bfloat16, "
            "float16; by default that of the parameters"
        },
    )
    padded: bool | None = field(
        default=None,
        metadata={
            "help": "the last channel of the one input, a signal, is 1 where it has values and 0 in its padding, which "
            "means, maxima, convolutions and poolings leave out; by default False"
        },
    )

    def __post_init__(self) -> None:
        for name, setting in TRANSLATION_SETTINGS.items():
            value = getattr(self, name)
            # A dtype may also be a torch.dtype.
            if value is not None and not setting.accepts(value) and (name != "dtype" or isinstance(value, str)):
                raise ValueError(f"{name}: expected {setting.expected}, got {value!r}")

    def completed(self, settings: Mapping[str, Any]) -> TranslationConfig:
        """Return the options with None replaced by a graph's translation settings or the defaults."""
        options = {name: getattr(self, name) for name in TRANSLATION_SETTINGS}
        values = {name: settings.get(name) if value is None else value for name, value in options.items()}
        return replace(self, **{**values, "projection": values["projection"] or "auto"})


def read_config(config: Mapping[str, Any] | TranslationConfig | None) -> TranslationConfig:
    """Return the options as a dataclass. Raises ValueError for an unknown key, with the nearest known one."""
    if isinstance(config, TranslationConfig):
        return config
    names = [option.name for option in fields(TranslationConfig)]
    for key in config or {}:
        if key not in names:
            nearest = get_close_matches(str(key), names, n=1) or [", ".join(names)]
            raise ValueError(f"translation config: unknown key {key!r}, did you mean {nearest[0]}?")
    return TranslationConfig(**(config or {}))


def checked(
    graph: ComputationGraph, config: Mapping[str, Any] | TranslationConfig | None = None
) -> tuple[TypedGraph, TranslationConfig]:
    """Return a graph to translate, with its options: `config`, else the graph's settings, else the defaults.

    Called before every translation, cached or not.

    Raises: ValueError that lists every problem of an invalid graph.
    """
    options = read_config(config)
    typed = graph.typed(options.projection)
    if typed.problems:
        listed = "\n".join(f"- {problem.message}" for problem in typed.problems)
        raise ValueError(f"the graph cannot be translated:\n{listed}")
    options = options.completed(graph.config.get("translation", {}))
    for name in ("memory_format", "autocast"):
        if getattr(options, name) is not None and typed.takes_columns:
            raise ValueError(f"{name}: expected an operation graph, got a graph without operations")
    if options.padded and [shape.layout for *_, shape in typed.inputs] != [Layout.SIGNAL]:
        got = ", ".join(str(shape) for *_, shape in typed.inputs)
        raise ValueError(f"padded: expected one signal as input, got {got}")
    changes = {name: getattr(options, name) for name in ("memory_format", "autocast")}
    return typed.changed(**changes, is_padded=bool(options.padded)), options
