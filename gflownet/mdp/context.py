"""The interface between environment and policy: states as batches of tensors, actions as (type, row, column)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gflownet.mdp.action import ActionBatch, GraphAction, GraphActionType
from gflownet.mdp.categorical import GraphActionCategorical, sent
from gflownet.mdp.environment import Environment, IllegalAction
from gflownet.mdp.layout import Batch, BatchLayout, StateFeatures, masks_of
from gflownet.mdp.sparse_layout import SparseLayout
from gflownet.mdp.states import GraphStates
from gflownet.operations.tensor_shape import declared_sizes
from gflownet.plugins import Configurable

if TYPE_CHECKING:
    from torch_geometric.data import Data


# Methods of a finished object, as stores, reports and replay use it.
TERMINAL_METHODS = ("canonical_key", "canonical_hash", "to_dict", "from_dict")


class GraphBuildingEnvContext(StateFeatures, Configurable):
    """Encodes the states of an environment for a policy. It contains no rules, only the environment's masks."""

    def __init__(self, env: Environment, *, num_cond_dim: int = 1) -> None:
        super().__init__(env, num_cond_dim=num_cond_dim)
        self.layout: BatchLayout = SparseLayout(self)

    @classmethod
    def from_config(
        cls, config: Any, *, input_sizes: Sequence[int], output_sizes: Sequence[int], num_cond_dim: int
    ) -> Self:
        """Return the context of a run; `num_cond_dim` is the width of the policy's conditioning, see `build_env`."""
        declared = {"input_sizes": input_sizes, "output_sizes": output_sizes}
        sizes: Any = {key: declared_sizes(key, each) for key, each in declared.items()}
        env = cls.build_env(config, **sizes)
        if not isinstance(env, Environment):
            raise ValueError(f"env.name: expected {cls.__name__}.build_env to return an Environment, got {env!r}")
        terminal = getattr(env, "terminal_type", None)
        missing = [name for name in TERMINAL_METHODS if not callable(getattr(terminal, name, None))]
        if missing:
            raise ValueError(
                f"env.name: expected {type(env).__name__}.terminal_type to be a class with "
                f"{', '.join(TERMINAL_METHODS)}, got {terminal!r} without {', '.join(missing)}"
            )
        return cls(env, num_cond_dim=num_cond_dim)

    @classmethod
    def build_env(cls, config: Any, *, input_sizes: Sequence[int], output_sizes: Sequence[int]) -> Environment:
        """Return the environment of a run; every subclass that `env.name` may choose defines it.

        Args:
            config: the options under `env`; `config.options` holds the options of the class's own `Config`.
            input_sizes: widths of the task's inputs.
            output_sizes: widths of the task's outputs.
        """
        raise ValueError(f"env.name: expected a context with a build_env class method, {cls.__name__} has none")

    def with_layout(self, layout: type[BatchLayout]) -> Self:
        """Return the same context with batches in a policy's layout (`Policy.layout`)."""
        context = copy.copy(self)
        context.layout = layout(context)
        return context

    def on(self, device: torch.device) -> GraphBuildingEnvContext:
        """Return a copy with the tensors of its environment and layout on a device; the same for the CPU."""
        return self if device.type == "cpu" else _copied_to(self, device)

    def with_backward(self) -> Self:
        """Return the same context with backward actions in its batches, for a learned P_B."""
        context = self.with_layout(type(self.layout))
        context.backward_types = self.env.backward_types
        return context

    def to_batch(self, states: GraphStates) -> Batch:
        """Return all states as one batch in this context's layout."""
        return self.layout.encode(states)

    def to_data(self, states: GraphStates, index: int) -> Data:
        """Return one state as torch_geometric `Data`, which `Batch.from_data_list` collates into a sparse batch."""
        from torch_geometric.data import Data

        batch: Any = SparseLayout(self).encode(states[index : index + 1])
        return Data(**{key: batch[key] for key in batch.keys() if key not in ("batch", "ptr")})  # noqa: SIM118

    def masks(self, batch: Batch) -> list[Tensor]:
        """Return the masks of the batch's rows, one per action type: [M, C], of a dense batch [B, R, C]."""
        return masks_of(batch, self.action_types)

    def categorical(self, batch: Batch, logits: Sequence[Tensor]) -> GraphActionCategorical:
        """Return the distributions over forward actions for logits of all rows, one tensor per action type."""
        return self.layout.categorical(batch, logits, self.action_types)

    def backward_categorical(self, batch: Batch, logits: Sequence[Tensor]) -> GraphActionCategorical:
        """Return the distributions over backward actions; an initial state has none.

        Raises:
            ValueError: the context was made without `with_backward`.
        """
        if not self.backward_types:
            raise ValueError("backward distributions: expected a context that shows backward actions (with_backward)")
        return self.layout.categorical(batch, logits, self.backward_types)

    def to_indices(
        self, batch: Batch, actions: ActionBatch, *, graphs: Tensor | None = None, backward: bool = False
    ) -> Tensor:
        """Return the (type, row, column) of legal actions, [A, 3] int64; rows count within a graph.

        Args:
            batch: result of `to_batch`.
            actions: A actions.
            graphs: graph of the batch that each action is for, [A]; one action per graph, in order, by default.
            backward: whether they are backward actions.
        """
        return self.layout.to_indices(batch, actions, graphs, self._types(backward))

    def from_indices(
        self, batch: Batch, indices: Tensor, *, graphs: Tensor | None = None, backward: bool = False
    ) -> ActionBatch:
        """Return the environment's actions at (type, row, column) indices [A, 3]; arguments as in `to_indices`.

        Raises:
            ValueError: a graph has no such row of that type; the message names it.
        """
        return self.layout.from_indices(batch, indices, graphs, self._types(backward))

    def action_to_index(self, states: GraphStates, index: int, action: GraphAction) -> tuple[int, int, int]:
        """Return the (type, row, column) of an action in names on state `index`.

        Raises:
            ValueError: the action is not of this environment, or illegal in this state (IllegalAction).
        """
        kind, row, column = self.env.encode(action)
        if kind == GraphActionType.AddNode and action.source is None and int(states.num_nodes[index]):
            raise IllegalAction(f"graph {index}: {action} is illegal: a source is needed once the graph has nodes")
        state = states[index : index + 1]
        actions = ActionBatch(*(torch.tensor([value]) for value in (kind, row, column)))
        self.env.step(state, actions)  # raises for an illegal action, which has no index
        return tuple(self.to_indices(self.to_batch(state), actions)[0].tolist())

    def index_to_action(self, states: GraphStates, index: int, action_index: tuple[int, int, int]) -> GraphAction:
        """Return the action in names at a (type, row, column) index on state `index`."""
        state = states[index : index + 1]
        actions = self.from_indices(self.to_batch(state), torch.tensor([action_index]))
        return self.env.decode(state, 0, actions)

    def _types(self, backward: bool) -> tuple[GraphActionType, ...]:
        return self.backward_types if backward else self.action_types


class _CopyToDevice(TorchFunctionMode):
    """Make deep copies of tensors on a device."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if func is Tensor.__deepcopy__:
            return sent(args[0], self.device)
        return func(*args, **(kwargs or {}))


@lru_cache(maxsize=4)
def _copied_to(context: GraphBuildingEnvContext, device: torch.device) -> GraphBuildingEnvContext:
    with _CopyToDevice(device):
        return copy.deepcopy(context)
