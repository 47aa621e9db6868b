"""torch optimisers without torch._dynamo, whose import takes as long as the import of torch."""

from __future__ import annotations

import inspect

import torch

# torch wraps these methods in functions that import torch._dynamo, to exclude them from compiled graphs.
_METHODS = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")


def eager(kind: type[torch.optim.Optimizer]) -> type:
    """Return a subclass with unwrapped methods; its steps are neither differentiable nor compiled."""
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in _METHODS}
    step = torch.no_grad()(inspect.unwrap(kind.step))
    return type(kind.__name__, (kind,), {**methods, "step": step, "__module__": __name__, "__doc__": kind.__doc__})


Adam = eager(torch.optim.Adam)
AdamW = eager(torch.optim.AdamW)
SGD = eager(torch.optim.SGD)
