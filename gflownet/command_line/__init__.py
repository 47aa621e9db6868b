"""The command line of a run: parser, the classes that a config names, checks before torch is imported."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
