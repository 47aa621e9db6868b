"""The commands that have no room of their own: sample, store, compare, generate, completion."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
