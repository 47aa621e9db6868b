"""Copy the weights of an existing module into a translated model."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def copy_weights(
    model: nn.Module, source: nn.Module | Mapping[str, Tensor], names: Mapping[str, str] | None = None
) -> None:
    """Copy parameters and buffers in place; device and dtype of the model stay.

    Args:
        model: a translated model.
        source: a module or its state_dict.
        names: the name in the source for every name in model.state_dict(). None: equal names if all names agree, else
            the order of both state_dicts.

    Raises:
        ValueError: a missing name, another number of tensors or another shape; the model is unchanged then.
    """
    tensors = source.state_dict() if isinstance(source, nn.Module) else source
    targets = model.state_dict()
    pairs = _pairs(targets, tensors, names)
    for target, name in pairs.items():
        if targets[target].shape != tensors[name].shape:
            expected, got = list(targets[target].shape), list(tensors[name].shape)
            raise ValueError(f"expected the shape {expected} of {target}, got {got} of {name}")
    with torch.no_grad():
        for target, name in pairs.items():
            targets[target].copy_(tensors[name])


def _pairs(
    targets: Mapping[str, Tensor], tensors: Mapping[str, Tensor], names: Mapping[str, str] | None
) -> dict[str, str]:
    """Return the name in the source of every tensor of the model."""
    if names is None:
        if targets.keys() == tensors.keys():
            return {name: name for name in targets}
        if len(targets) != len(tensors):
            raise ValueError(f"expected {len(targets)} tensors as in the model, got {len(tensors)}")
        return dict(zip(targets, tensors, strict=True))
    for target in targets:
        if target not in names:
            raise ValueError(f"names: expected a name for {target}, got none")
        if names[target] not in tensors:
            raise ValueError(f"names: expected a tensor of the source for {target}, got {names[target]!r}")
    return {target: names[target] for target in targets}
