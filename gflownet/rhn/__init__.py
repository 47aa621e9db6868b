"""Recurrent Hyper Network: language models in which each token adapts the feed-forward networks of the next one."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
