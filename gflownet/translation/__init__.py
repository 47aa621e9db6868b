"""Computation graphs to PyTorch modules: plan, generated code, state, summary, repair, export."""

from importlib import import_module
from typing import Any

_HOMES = {
    "TranslatedModel": "model",
    "to_pytorch_model": "model",
    "load": "architectures",
    "load_graph": "architectures",
    "repair": "repairs",
    "summary": "graph_summary",
    "to_source": "source",
    "export_program": "export",
    "to_onnx": "export",
    "measure_latency": "latency",
    "DirectTraining": "direct",
    "is_direct": "direct",
    "clear_translation_cache": "cache",
    "get_translation_cache_metrics": "cache",
    "set_translation_cache_enabled": "cache",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
