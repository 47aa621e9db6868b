"""Training many classifiers of any structure at once, without autograd and with one optimiser for all.

For small candidates autograd and optimiser calls take longer than the arithmetic. Each structure gets generated forward
and backward code (direct_code), and all parameters of all candidates lie in one flat tensor. Scaling matrices by edge
weights, the loss, the gradients of weights and the optimiser step are single operations for all candidates.

Letters: K models, B batch, C classes, N parameters with the gaps between models, E projected edges of all models.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gflownet.graphs.typed import TypedGraph
from gflownet.operations.code import identifier
from gflownet.operations.sequences import is_untouched
from gflownet.translation.classes import TranslationCache, outside_functions
from gflownet.translation.direct_code import direct_source, is_direct, message_factor
from gflownet.translation.model import TranslatedModel

# Models and their rows in the loss start at multiples of this many numbers, so that vectorised operations round the
# same at every position: results are bit-identical for every set of models.
ALIGNMENT = 64

_CODE = TranslationCache()
Forward = Callable[[Tensor], tuple[Tensor, tuple[Tensor, ...]]]
Backward = Callable[[Tensor, tuple[Tensor, ...]], None]


def is_as_translated(model: TranslatedModel) -> bool:
    """Return whether a dense model has the layers and parameters of its plan, without hooks, all of them trained."""
    has_parameters = model._parameters.keys() >= model.names and all(each.requires_grad for each in model.parameters())
    return has_parameters and not model.shared and is_untouched(model, {type(model), nn.Linear}.__contains__)


class DirectTraining:
    """Cross-entropy losses and gradients of several models; their parameters become views into `parameter`.

    An elementwise optimiser (Adam, SGD) over [training.parameter] takes the same steps as one optimiser per model, up
    to rounding. A diverging candidate does not affect the others. Train and eval mode are the same: no dropout.
    """

    def __init__(self, models: Sequence[TranslatedModel], *, label_smoothing: float = 0.0) -> None:
        """Raises ValueError for a model without direct code (see is_direct)."""
        self._label_smoothing = label_smoothing
        for position, model in enumerate(models):
            if not is_direct(model.plan):
                raise ValueError(
                    f"model {position}: expected one that is_direct, got state or operations without gradient code"
                )
            if not is_as_translated(model):
                raise ValueError(
                    f"model {position}: expected layers as translated, got hooks, other, frozen or shared layers"
                )
        layouts = [_Layout(model) for model in models]
        sizes = [layout.size for layout in layouts]
        first = next(models[0].parameters())
        self.parameter = nn.Parameter(torch.zeros(sum(sizes), dtype=first.dtype, device=first.device))  # [N]
        self.parameter.grad = torch.zeros_like(self.parameter)
        self._scaling = _Scaling(layouts, self.parameter.detach(), self.parameter.grad)
        buffers = (self.parameter.detach(), self.parameter.grad, self._scaling.matrices)
        parts = zip(*(buffer.split(sizes) for buffer in buffers), strict=True)
        self._code = [_bound(layout, *part) for layout, part in zip(layouts, parts, strict=True)]
        self._sizes, self._nums_entries = sizes, [layout.num_entries for layout in layouts]

    def parts(self, flat: Tensor) -> list[Tensor]:
        """Return views of the entries of each model's parameters in a flat tensor [N]."""
        return [part[:num] for part, num in zip(flat.split(self._sizes), self._nums_entries, strict=True)]

    def backward(self, inputs: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
        """Set parameter.grad to the gradients of the mean losses and return these losses [K].

        Per model: inputs [B, F] of the models' dtype, targets [B] int64.
        """
        # Faster than no_grad: a tenth of the time of small operations.
        with torch.inference_mode():
            self._scaling.forward()
            results = [forward(x) for (forward, _), x in zip(self._code, inputs, strict=True)]
            losses, gradients = _cross_entropy([logits for logits, _ in results], targets, self._label_smoothing)
            for (_, backward), gradient, (_, saved) in zip(self._code, gradients, results, strict=True):
                backward(gradient, saved)
            self._scaling.backward()
        return losses.clone()  # not an inference tensor


@dataclass(frozen=True)
class _ProjectedEdge:
    """The position of a matrix and its edge's weight in the flat tensors."""

    start: int
    stop: int
    weight: int
    factor: float  # of a message, besides its weight


class _Layout:
    """The layout of one model in its part of the flat tensors."""

    def __init__(self, model: TranslatedModel) -> None:
        self.plan = model.plan
        self.parameters = dict(model.named_parameters())
        self.sizes = [parameter.numel() for parameter in self.parameters.values()]
        self.num_entries = sum(self.sizes)
        self.size = _aligned(self.num_entries)

    def projected_edges(self, start: int) -> list[_ProjectedEdge]:
        """The projected edges that are computed, by place; the model's part begins at `start`."""
        ends = accumulate(self.sizes, initial=start)
        places = dict(zip(self.parameters, pairwise(ends), strict=True))
        edges = []
        for node in self.plan.live_neurons:
            for edge, is_projected in zip(node.edges, node.sizes.projected, strict=True):
                if is_projected:
                    place, (weight, _) = (
                        places[f"{node.named('proj', edge)}.weight"],
                        places[node.named("weight", edge)],
                    )
                    edges.append(_ProjectedEdge(*place, weight, message_factor(node)))
        return sorted(edges, key=lambda edge: edge.start)


class _Scaling:
    """M = w * P of all projected edges at once, and from dL/dM to dL/dP = w dL/dM and dL/dw = <dL/dM, P>."""

    def __init__(self, layouts: Sequence[_Layout], values: Tensor, gradients: Tensor) -> None:
        self.values, self.gradients, self.matrices = values, gradients, torch.zeros_like(values)  # [N] each
        edges, start = [], 0
        for layout in layouts:
            edges += layout.projected_edges(start)
            start += layout.size
        owner = torch.zeros(len(values), dtype=torch.int64)
        bounds = [0]
        for number, edge in enumerate(edges, start=1):
            owner[edge.start : edge.stop] = number
            bounds += [edge.start, edge.stop]
        device = values.device
        self.owner = owner.to(device)  # [N], 1 + the number of the edge whose matrix lies there, 0 for none
        self.bounds = torch.tensor([*bounds, len(values)], device=device)  # [2 E + 2], of gaps and matrices in turn
        self.weights = torch.tensor([edge.weight for edge in edges], dtype=torch.int64, device=device)  # [E], places
        self.factors = values.new_tensor([edge.factor for edge in edges])  # [E]
        self.scales = values.new_ones(1 + len(edges))  # 1, then w or w / J of every edge
        self.scale, self.products = torch.empty_like(values), torch.empty_like(values)  # [N] each

    def forward(self) -> None:
        """Set the matrices from the current values."""
        torch.mul(self.values.index_select(0, self.weights), self.factors, out=self.scales[1:])
        torch.index_select(self.scales, 0, self.owner, out=self.scale)
        torch.mul(self.values, self.scale, out=self.matrices)

    def backward(self) -> None:
        """Turn dL/dM into dL/dP and dL/dw, in place."""
        torch.mul(self.gradients, self.values, out=self.products)
        sums = torch.segment_reduce(self.products, "sum", offsets=self.bounds, unsafe=True)
        self.gradients.mul_(self.scale)
        self.gradients.index_copy_(0, self.weights, sums[1::2] * self.factors)


def _cross_entropy(
    logits: Sequence[Tensor], targets: Sequence[Tensor], smoothing: float
) -> tuple[Tensor, Sequence[Tensor]]:
    """The mean losses [K] and their gradients by logits, from logits [B, C] and targets [B] of each model."""
    shapes = [each.shape for each in logits]
    losses, gradients = logits[0].new_empty(len(logits)), list(logits)
    for shape in set(shapes):
        members = [position for position, other in enumerate(shapes) if other == shape]
        if len(members) == len(logits):
            return _cross_entropy_of_one_shape(logits, targets, smoothing)
        shape_losses, shape_gradients = _cross_entropy_of_one_shape(
            [logits[k] for k in members], [targets[k] for k in members], smoothing
        )
        losses[members] = shape_losses
        for k, gradient in zip(members, shape_gradients, strict=True):
            gradients[k] = gradient
    return losses, gradients


def _cross_entropy_of_one_shape(
    logits: Sequence[Tensor], targets: Sequence[Tensor], smoothing: float
) -> tuple[Tensor, Sequence[Tensor]]:
    """The mean losses and gradients; rows of one model are filled up to a multiple of ALIGNMENT."""
    count, (num_rows, num_classes) = len(logits), logits[0].shape
    num_filled = _aligned(num_rows)
    if num_filled != num_rows:
        rows, labels = (
            logits[0].new_zeros(num_filled - num_rows, num_classes),
            targets[0].new_zeros(num_filled - num_rows),
        )
        logits, targets = [t for each in logits for t in (each, rows)], [t for each in targets for t in (each, labels)]
    # Classes first: a softmax over ten contiguous classes is not vectorised and takes 27 times as long.
    log_shares = torch.log_softmax(torch.cat(tuple(logits)).t().contiguous(), dim=0)  # [C, K * filled]
    labels_row = torch.cat(tuple(targets)).unsqueeze(0)
    losses = log_shares.gather(0, labels_row).view(count, num_filled)[:, :num_rows].mean(1).neg_()
    if smoothing:  # Szegedy et al. 2016, section 7
        uniform = log_shares.mean(0).view(count, num_filled)[:, :num_rows].mean(1)
        losses.mul_(1 - smoothing).sub_(uniform, alpha=smoothing)
    shares = log_shares.exp_()
    shares.scatter_add_(0, labels_row, shares.new_full((1, 1), smoothing - 1.0).expand_as(labels_row))
    if smoothing:
        shares.sub_(smoothing / num_classes)
    shares.div_(num_rows)
    by_model = shares.t().contiguous().view(count, num_filled, num_classes)
    return losses, by_model[:, :num_rows].unbind()


def _bound(layout: _Layout, values: Tensor, gradients: Tensor, matrices: Tensor) -> tuple[Forward, Backward]:
    """The code of a model's plan on flat views; the model's parameters move there, with their values."""
    tensors: dict[str, Tensor] = {"half": values.new_tensor(0.5)}
    named, count = layout.parameters, layout.num_entries
    values[:count] = torch.cat([parameter.detach().reshape(-1) for parameter in named.values()])
    flats = (flat[:count].split(layout.sizes) for flat in (values, gradients, matrices))
    for (name, parameter), *parts in zip(named.items(), *flats, strict=True):
        value, gradient, matrix = (part.view(parameter.shape) for part in parts)
        parameter.data, parameter.grad = value, gradient
        kind, _, key = identifier(name.removesuffix(".weight")).partition("_")
        match kind:
            case "bias":
                tensors |= {f"b{key}": value, f"gb{key}": gradient}
            case "weight":
                tensors |= {f"w{key}": value, f"gw{key}": gradient}
            case "proj":
                tensors |= {f"M{key}": matrix, f"Mt{key}": matrix.t(), f"gP{key}": gradient}
            case "post":
                tensors |= {f"Q{key}": value, f"Qt{key}": value.t(), f"gQ{key}": gradient}
    return _CODE.get(layout.plan.key, lambda: _compiled(layout.plan))(**tensors)


def _compiled(plan: TypedGraph) -> Any:
    namespace: dict[str, Any] = {"torch": torch, "F": F, "aten": torch.ops.aten, **dict(outside_functions(plan))}
    exec(compile(direct_source(plan), "<gflownet DirectTraining>", "exec"), namespace)
    return namespace["make"]


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
