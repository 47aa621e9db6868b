"""Statistics: correlations, intervals, modes and diversity, Pareto fronts; certificates: `gflownet.certificate`."""

import lazy_loader

from gflownet import moved

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = moved.with_moved_names(__name__, __getattr__)
