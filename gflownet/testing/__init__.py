"""Contract suites: the rules that a class of yours has to follow, as checks for your tests."""

import lazy_loader

# The names of __init__.pyi, imported on first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
