"""Plan of a comparison of search methods, and its runs; gflownet.report.compared has the page."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
