"""Training of one model: optimisers, schedules, steps, precision, devices and random states, without data or loss."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
