"""Certificates of runs: the rules of the environment, the exact optimum of the objective, and the trained network."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
