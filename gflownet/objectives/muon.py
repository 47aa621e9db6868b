"""One optimiser: Muon for the weight matrices of a network, Adam for all other parameters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

# Narrower matrices are small embedding tables or heads, for which orthogonalised steps work badly.
_MIN_WIDTH = 16


class MuonWithAdam(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024: momentum, orthogonalised) on matrices at least 16 wide and high, Adam on the rest.

    Steps of matrices are scaled to the size of Adam's (Liu et al. 2025, Muon is scalable for LLM training, eq. 4), so
    one learning rate fits both.
    """

    def __init__(
        self, groups: list[dict], *, lr: float, weight_decay: float, betas: tuple[float, float], eps: float
    ) -> None:
        """Split each group into matrices and other parameters.

        Args:
            groups: parameter groups; a group's own learning rate and weight decay win.
            lr: learning rate.
            weight_decay: decoupled for matrices (AdamW's), in the gradient for the rest (Adam's).
            betas: of Adam; the first is also the momentum of Muon.
            eps: of Adam.
        """
        split = [(group, [], []) for group in groups]
        for group, matrices, remainder in split:
            for parameter in group["params"]:
                (matrices if _is_matrix(parameter) else remainder).append(parameter)
        matrix_groups = [{**group, "params": matrices} for group, matrices, _ in split if matrices]
        other_groups = [{**group, "params": remainder} for group, _, remainder in split if remainder]
        self._parts: list[torch.optim.Optimizer] = []
        if matrix_groups:
            muon = partial(torch.optim.Muon, momentum=betas[0], adjust_lr_fn="match_rms_adamw")
            self._parts.append(muon(matrix_groups, lr=lr, weight_decay=weight_decay))
        if other_groups:
            adam = partial(torch.optim.Adam, betas=betas, eps=eps, fused=True)
            self._parts.append(adam(other_groups, lr=lr, weight_decay=weight_decay))
        super().__init__(self._groups(), {})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take one step of both optimisers."""
        assert closure is None, "the gradients are there"
        for part in self._parts:
            part.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the states of both optimisers."""
        return {"parts": [part.state_dict() for part in self._parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for part, state in zip(self._parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self.param_groups = self._groups()

    def _groups(self) -> list[dict]:
        """Return the groups of both optimisers (not copies), so that a schedule changes both."""
        return [group for part in self._parts for group in part.param_groups]


def _is_matrix(parameter: Tensor) -> bool:
    return parameter.ndim == 2 and min(parameter.shape) >= _MIN_WIDTH
