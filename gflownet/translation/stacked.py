"""K models of one structure as one: parameters with a leading dimension K, batched matrix products.

Letters: K candidates, B batch, F input width, O output width.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.translation.cache import TranslationCache
from gflownet.translation.config import TranslationConfig
from gflownet.translation.emit import STACKED
from gflownet.translation.initial import random_values
from gflownet.translation.model import (
    TranslatedModel,
    checked_dtype,
    parameter_values,
    to_pytorch_model,
    translated_class,
)
from gflownet.translation.plan import ModelPlan, ParameterPlan
from gflownet.translation.planning import checked_options, structural_key
from gflownet.translation.step_code import step_lines

# What a batched matrix product and elementwise operations cover; other structures are trained one by one.
STACKABLE_AGGREGATIONS = frozenset({"sum", "mean", "max", "min", "concat", "matrix_product"})

_CODE = TranslationCache()


def is_stackable(plan: ModelPlan) -> bool:
    """Whether models of this plan can be stacked: no state, and aggregations without queries, gates or routers."""
    return not plan.slots and all(node.aggregation in STACKABLE_AGGREGATIONS for node in plan.live_nodes)


def group_by_structure(
    graphs: Sequence[ComputationGraph], config: Mapping[str, Any] | TranslationConfig | None = None
) -> list[list[int]]:
    """The positions of the graphs, those of one structure and dtype together, in order of first appearance.

    Raises: ValueError for an invalid graph.
    """
    groups: dict[Any, list[int]] = {}
    for position, graph in enumerate(graphs):
        options = checked_options(graph, config)
        key = checked_dtype(options.dtype), structural_key(graph, options.projection or "auto")
        groups.setdefault(key, []).append(position)
    return list(groups.values())


class StackedModel(nn.Module):
    """K models of one structure; candidate k's first values come from a generator seeded with seeds[k] alone.

    They are the values of `torch.manual_seed(seeds[k]); to_pytorch_model(graphs[k], config)`, whoever stands beside it.
    Parameters are those of one model with a leading dimension: [K, 1, 1] for 0-d ones, [K, out, in] for layers, which
    are called proj_0_1_weight for proj_0_1.weight. Operations do not mix candidates, so that an elementwise
    optimiser (Adam, SGD) takes the steps it would take one by one, and a diverging candidate harms no other.
    """

    def __init__(
        self,
        graphs: Sequence[ComputationGraph],
        seeds: Sequence[int],
        *,
        config: Mapping[str, Any] | TranslationConfig | None = None,
    ) -> None:
        super().__init__()
        if not graphs or len(graphs) != len(seeds):
            raise ValueError(f"expected one seed per graph, got {len(graphs)} graphs and {len(seeds)} seeds")
        if len(group_by_structure(graphs, config)) != 1:
            raise ValueError("expected graphs of one structure; group_by_structure sorts them")
        self.config = checked_options(graphs[0], config)
        self.graphs = tuple(graphs)
        self.plan = translated_class(graphs[0], self.config).plan
        if not is_stackable(self.plan):
            raise ValueError("expected a structure that is_stackable, got one with state, queries, gates or routers")
        for parameter, value in zip(self.plan.parameters, self._first_values(seeds), strict=True):
            self.register_parameter(stacked_name(parameter), nn.Parameter(value))

    def forward(self, x: Tensor) -> Tensor:
        """The outputs [K, B, O] for an input [B, F] that all candidates share, or [K, B, F] with one for each.

        Raises: ValueError for another shape or dtype.
        """
        count, width = len(self.graphs), self.plan.input_size
        dtype = next(self.parameters()).dtype
        is_shared = x.dim() == 2
        if not (is_shared or (x.dim() == 3 and x.shape[0] == count)) or x.shape[-1] != width or x.dtype != dtype:
            raise ValueError(
                f"expected an input of shape [B, {width}] or [{count}, B, {width}] and dtype {dtype}, "
                f"got shape {list(x.shape)} and dtype {x.dtype}"
            )
        code = _CODE.get(self.plan.key, lambda: _compiled(self.plan))
        return code(self, x.expand(count, -1, -1) if is_shared else x)

    def candidate(self, position: int) -> TranslatedModel:
        """A model of its own with the present values of one candidate, copied."""
        model = to_pytorch_model(self.graphs[position], self.config)
        with torch.no_grad():
            for parameter in self.plan.parameters:
                value = self.get_parameter(stacked_name(parameter))[position]
                model.get_parameter(parameter.name).copy_(value.reshape(parameter.shape))
        return model

    def _first_values(self, seeds: Sequence[int]) -> list[Tensor]:
        """One tensor with a leading K per parameter of the plan."""
        options = {"device": torch.device(self.config.device), "dtype": checked_dtype(self.config.dtype)}
        scalars = [iter(parameter_values(graph, self.plan)) for graph in self.graphs]
        generators = [torch.Generator(options["device"]).manual_seed(seed) for seed in seeds]
        values = []
        for parameter in self.plan.parameters:
            if parameter.shape == ():
                values.append(torch.tensor([next(scalar) for scalar in scalars], **options).reshape(-1, 1, 1))
            else:
                rows = torch.empty(len(seeds), *parameter.shape, **options)
                for row, generator in zip(rows, generators, strict=True):
                    random_values(parameter, row, generator)
                values.append(rows)
        return values


def stacked_name(parameter: ParameterPlan) -> str:
    """The name of a parameter in a StackedModel: PyTorch allows no dot in a direct parameter."""
    return parameter.name.replace(".", "_")


def _compiled(plan: ModelPlan) -> Any:
    lines = ["p = self._parameters", *step_lines(plan, STACKED), "return y"]
    source = "def forward(self, x):\n" + "".join(f"    {line}\n" for line in lines)
    namespace: dict[str, Any] = {"torch": torch, "F": F}
    exec(compile(source, "<gflownet StackedModel>", "exec"), namespace)
    return namespace["forward"]
