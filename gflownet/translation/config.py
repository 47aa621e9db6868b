"""Options of a translation. Free of torch, so that a config error costs no import."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any

from gflownet.graphs.vocabulary import DTYPES, PROJECTIONS


@dataclass(frozen=True)
class TranslationConfig:
    """Options of to_pytorch_model. Those left at None come from the graph's own settings, then from the defaults."""

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
        default=None, metadata={"help": "use the cache of generated classes; None is the global switch"}
    )

    def __post_init__(self) -> None:
        if self.projection is not None and self.projection not in PROJECTIONS:
            raise ValueError(f"projection: expected one of {', '.join(PROJECTIONS)}, got {self.projection!r}")
        if isinstance(self.dtype, str) and self.dtype not in DTYPES:
            raise ValueError(f"dtype: expected one of {', '.join(DTYPES)}, got {self.dtype!r}")

    def completed(self, settings: Mapping[str, Any]) -> "TranslationConfig":
        """These options with a graph's valid translation settings, then the defaults, in the place of None."""
        dtype = settings.get("dtype") if self.dtype is None else self.dtype
        projection = self.projection or settings.get("projection") or "auto"
        return TranslationConfig(self.device, dtype, projection, self.enable_translation_cache)


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
