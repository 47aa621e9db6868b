"""Training many classifiers of any structure at once, without autograd and with one optimiser for all.

A candidate of the search is so small that autograd's bookkeeping and the optimiser's calls cost more than its
arithmetic. Here each structure gets generated forward and backward code (direct_code), all parameters of all
candidates lie in one flat tensor, and one fused optimiser step moves them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gflownet.translation.cache import TranslationCache
from gflownet.translation.direct_code import direct_source, has_direct_code
from gflownet.translation.model import TranslatedModel
from gflownet.translation.plan import ModelPlan

# Candidates start at multiples of this many numbers, so that the vectorised optimiser treats each the same wherever
# it lies and whoever lies beside it: results are the same to the bit in any company.
ALIGNMENT = 64

_CODE = TranslationCache()
Run = Callable[[Tensor, Callable[[Tensor], Tensor]], None]


class DirectTraining:
    """Cross-entropy losses and gradients of several models; their parameters become views into `parameter`.

    An elementwise optimiser (Adam, SGD) over [training.parameter] takes the steps that one optimiser per model would
    take, up to rounding. Candidates do not touch each other: one that diverges harms none. Dropout has no direct
    code, so train and eval mode are the same.
    """

    def __init__(self, models: Sequence[TranslatedModel]) -> None:
        """Raises ValueError for a model without direct code (see is_direct)."""
        for position, model in enumerate(models):
            if not has_direct_code(model.plan):
                raise ValueError(f"model {position}: expected one that is_direct, got state, queries, gates or routers")
        first = next(models[0].parameters())
        sizes = [_aligned(sum(parameter.numel() for parameter in model.parameters())) for model in models]
        self.parameter = nn.Parameter(torch.zeros(sum(sizes), dtype=first.dtype, device=first.device))  # [N]
        self.parameter.grad = torch.zeros_like(self.parameter)
        values, gradients = self.parameter.detach().split(sizes), self.parameter.grad.split(sizes)
        self._runs = [_bound(model, *flat) for model, *flat in zip(models, values, gradients, strict=True)]

    @torch.no_grad()
    def backward(self, inputs: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
        """Sets parameter.grad to the gradients of the mean losses and returns those losses [K].

        Per model: inputs [B, F] of the models' dtype, targets [B] int64.
        """
        losses = []
        for run, x, labels in zip(self._runs, inputs, targets, strict=True):

            def pull(logits: Tensor, labels: Tensor = labels) -> Tensor:
                log_shares = torch.log_softmax(logits, dim=1)
                chosen = labels.unsqueeze(1)
                losses.append(log_shares.gather(1, chosen).mean().neg_())
                shares = log_shares.exp_()
                return shares.scatter_add_(1, chosen, shares.new_full((1, 1), -1.0).expand_as(chosen)).div_(len(labels))

            run(x, pull)
        return torch.stack(losses)


def is_direct(plan: ModelPlan) -> bool:
    """Whether models of this plan can be trained by DirectTraining."""
    return has_direct_code(plan)


def _bound(model: TranslatedModel, values: Tensor, gradients: Tensor) -> Run:
    """The code of a model's plan on flat views; the model's parameters move there, with their values."""
    value_views, gradient_views, start = {}, {}, 0
    for name, parameter in model.named_parameters():
        place = slice(start, start + parameter.numel())
        value_views[name] = values[place].view(parameter.shape).copy_(parameter.detach())
        gradient_views[name] = gradients[place].view(parameter.shape)
        parameter.data = value_views[name]
        parameter.grad = gradient_views[name]
        start = place.stop
    return _CODE.get(model.plan.key, lambda: _compiled(model.plan))(value_views, gradient_views)


def _compiled(plan: ModelPlan) -> Any:
    namespace: dict[str, Any] = {"torch": torch, "F": F, "aten": torch.ops.aten}
    exec(compile(direct_source(plan), "<gflownet DirectTraining>", "exec"), namespace)
    return namespace["make"]


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
