"""The vocabulary of operations: one class per operation, found by name through `gflownet.operations.operation`."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
