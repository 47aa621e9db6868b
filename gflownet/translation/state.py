"""What a recurrent model remembers from one call to the next.

Before the first step everything is zero. For most cells a zero state is no state; an rhn node tells the two apart by a
number of its own, "token", which is 0 before its first step and 1 after: a first token meets no adapter.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from gflownet.translation.plan import StateSlot


class StateManager:
    """One tensor per slot of the plan, cut off from autograd; zeros until the first step.

    Not thread-safe, and no part of state_dict: a state belongs to a sequence, not to the model.
    """

    def __init__(self, slots: tuple[StateSlot, ...]) -> None:
        self.slots = slots
        self.tensors: tuple[Tensor, ...] | None = None  # each [B, size], in the order of slots

    def reset(self) -> None:
        """Forget everything: the next step starts from zeros."""
        self.tensors = None

    def current(self, x: Tensor) -> tuple[Tensor, ...]:
        """The state a step on `x` [B, F] starts from. Raises ValueError when B is not the batch of the state."""
        if self.tensors is None:
            return tuple(x.new_zeros(x.shape[0], slot.size) for slot in self.slots)
        if self.tensors and self.tensors[0].shape[0] != x.shape[0]:
            raise ValueError(
                f"expected a batch of {self.tensors[0].shape[0]}, the one of the state kept from the previous call, "
                f"got {x.shape[0]}; pass reset_states=True to start anew"
            )
        return self.tensors

    def store(self, tensors: tuple[Tensor, ...]) -> None:
        """Keep the state after a step, detached, so that a backward pass ends at the call it belongs to."""
        self.tensors = tuple(tensor.detach() for tensor in tensors)

    def previous_output(self, node_id: int) -> Tensor | None:
        """The output [B, size] that recurrent edges out of a node will read; None before the first step."""
        for slot, tensor in zip(self.slots, self.tensors or (), strict=False):
            if slot.kind == "output" and slot.node_id == node_id:
                return tensor
        return None

    def apply(self, function: Callable[[Tensor], Tensor]) -> None:
        """Map the kept tensors, as nn.Module.to does with parameters."""
        if self.tensors is not None:
            with torch.no_grad():
                self.tensors = tuple(function(tensor) for tensor in self.tensors)
