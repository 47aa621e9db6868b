"""Search methods over one environment, store and budget: surrogates, acquisitions, proposals and the baselines."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
