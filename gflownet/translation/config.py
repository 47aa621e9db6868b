"""Options of a translation. Free of torch, so that a config error costs no import."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any

PROJECTIONS = ("auto", "always", "never")


@dataclass(frozen=True)
class TranslationConfig:
    """What to_pytorch_model accepts beside the graph."""

    device: Any = field(default="cpu", metadata={"help": "torch device of the parameters"})
    dtype: Any = field(default=None, metadata={"help": "floating torch dtype of the parameters; None is torch.float32"})
    projection: str = field(
        default="auto",
        metadata={
            "help": "auto: a linear layer on edges whose widths differ; always: on every edge; never: refuse such edges"
        },
    )
    enable_translation_cache: bool | None = field(
        default=None, metadata={"help": "use the cache of generated classes; None is the global switch"}
    )

    def __post_init__(self) -> None:
        if self.projection not in PROJECTIONS:
            raise ValueError(f"projection: expected one of {', '.join(PROJECTIONS)}, got {self.projection!r}")


def read_config(config: "Mapping[str, Any] | TranslationConfig | None") -> TranslationConfig:
    """The options as a dataclass. Raises ValueError naming the nearest known key for an unknown one."""
    if isinstance(config, TranslationConfig):
        return config
    known = [option.name for option in fields(TranslationConfig)]
    for key in config or {}:
        if key not in known:
            nearest = get_close_matches(str(key), known, n=1) or [", ".join(known)]
            raise ValueError(f"translation config: unknown key {key!r}, did you mean {nearest[0]}?")
    return TranslationConfig(**(config or {}))
