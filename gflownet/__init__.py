"""Neural-architecture search that samples computation graphs in proportion to their reward."""

from pathlib import Path

import lazy_loader

_PACKAGE = Path(__file__).resolve().parent
# In a wheel `tasks` and `configs` are inside the package; in a checkout they are its neighbours.
if not (_PACKAGE / "tasks").is_dir():
    __path__.append(str(_PACKAGE.parent))

__version__ = "0.1.0"

# The names of __init__.pyi, imported on first use: importing the package must not import torch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
