"""The state of a recurrent model between calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from gflownet.graphs.typed import StateSlot


class StateManager:
    """The state of a recurrent model between calls: one detached tensor per slot of the plan, zeros at first.

    Not thread-safe, and not in state_dict: a state belongs to a sequence, not to the model.
    """

    def __init__(self, slots: tuple[StateSlot, ...]) -> None:
        self.slots, self.is_kept = slots, True  # False: of a replica of DataParallel, which lives for one call
        self.tensors: tuple[Tensor, ...] | None = None  # each [B, *shape], in the order of slots

    def reset(self) -> None:
        """Clear the state: the next step starts from zeros."""
        self.tensors = None

    def current(self, x: Tensor, like: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return the state before a step on an input `x` [B, ...], of the dtype of `like` or `x`; at first zeros.

        Raises ValueError for another batch size than the state has.
        """
        batch_size, like = x.shape[0], x if like is None else like
        if self.tensors is None:
            return tuple(like.new_zeros(batch_size, *slot.shape) for slot in self.slots)
        if self.tensors and self.tensors[0].shape[0] != batch_size:
            raise ValueError(
                f"expected a batch of {self.tensors[0].shape[0]}, as in the state of the previous call, "
                f"got {batch_size}; pass reset_states=True to start a new sequence"
            )
        # Autograd refuses tensors of inference_mode, but not copies. A compiled program cannot ask for the mode.
        if (is_compiled := torch.compiler.is_compiling()) or not torch.is_inference_mode_enabled():
            self.tensors = tuple(each.clone() if is_compiled or each.is_inference() else each for each in self.tensors)
        return tuple(each.to(like.dtype) for each in self.tensors)  # of a call under autocast

    def store(self, tensors: tuple[Tensor, ...], *, is_new: bool = False) -> None:
        """Store the state after a step, detached: a backward pass ends at its own call.

        Raises ValueError where no state can be stored, unless the step started a new sequence.
        """
        if self.is_kept and not _is_traced(tensors):
            self.tensors = tuple(tensor.detach() for tensor in tensors)
        elif not is_new:
            raise ValueError(
                "expected reset_states=True, or model.step(x, state), in torch.jit.trace, torch.export, transforms of "
                "torch.func and replicas of DataParallel, which lose the state of a call"
            )

    def apply(self, function: Callable[[Tensor], Tensor]) -> None:
        """Apply a function to the tensors, as nn.Module.to does with parameters."""
        if self.tensors is not None:
            with torch.no_grad():
                self.tensors = tuple(function(tensor) for tensor in self.tensors)


def _is_traced(tensors: Iterable[Tensor]) -> bool:
    """Return whether tensors live in a trace or a transform of torch.func, which they must not outlive."""
    if torch.compiler.is_dynamo_compiling():  # torch.compile stores the state after each call
        return False
    is_traced = torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
    return is_traced or torch.compiler.is_compiling() or any(map(is_functorch_wrapped_tensor, tensors))
