"""Generate answers of language models: sampling, streams, batches, and an engine with continuous batching."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
