"""Pictures as SVG, for pages and files: figures of graphs in layers, and charts."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
