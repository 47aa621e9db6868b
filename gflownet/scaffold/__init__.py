"""gflownet new: packages with a task, environment, objective, policy or operation of your own."""

import lazy_loader

# The names of __init__.pyi, imported on first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
