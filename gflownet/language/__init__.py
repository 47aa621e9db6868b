"""Train a language model on the text of a user, and save it to be generated from and served."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
