"""The training loop: sampler, replay, optimiser steps on rollouts, memory of earlier batches, auxiliary networks."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
