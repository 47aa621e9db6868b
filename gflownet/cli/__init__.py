"""The command line: list of the commands, arguments and messages, console, signals, and commands without a room."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
