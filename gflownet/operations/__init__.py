"""The vocabulary of graphs: the contract of an operation, the neuron among them, activations and aggregations."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
