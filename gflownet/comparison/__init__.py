"""Comparison of search methods: runs, accounting of evaluations, statistics over seeds, tables and pictures."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
