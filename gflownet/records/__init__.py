"""Files of a run folder that other programs read: run.json and status.json (no torch)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
