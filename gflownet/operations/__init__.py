"""The vocabulary of graphs: the contract of an operation, the neuron among them, activations and aggregations."""

from importlib import import_module
from typing import Any

import lazy_loader

_attribute, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    """Return a public name; composites by the path that they had before they moved to gflownet.graphs."""
    if name in ("Composite", "GraphData"):
        return getattr(import_module("gflownet.operations.composite"), name)
    return _attribute(name)
