"""The terminal: list of the commands, arguments and messages, console, signals (no torch)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
