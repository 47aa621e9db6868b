"""The vocabulary of graphs: the contract of an operation, the neuron among them, activations and aggregations."""

import lazy_loader

from gflownet.moved import with_moved_names

_attribute, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = with_moved_names(__name__, _attribute)
