"""Layers that torch.compile takes, with all their copies."""

from __future__ import annotations

from typing import Any

from torch import nn


class CompilableLayer(nn.Module):
    """A layer that is compiled if it is asked to be, and whose copies are, too (`copy.deepcopy` alone forgets it)."""

    def __init__(self, *, is_compiled: bool) -> None:
        super().__init__()
        self.is_compiled = is_compiled
        self._compile_if_asked()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over what a copy or a pickle holds."""
        super().__setstate__(state)
        self._compile_if_asked()

    def _compile_if_asked(self) -> None:
        if self.is_compiled:
            self.compile(dynamic=True)
