"""What every command shows and understands: list of the commands, arguments, messages, console, signals."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
