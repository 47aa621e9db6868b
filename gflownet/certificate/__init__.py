"""Certificates: rules of an environment, exact and estimated distributions, optimum of the objective, verdict."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
