"""to_pytorch_model: one generated class per structure, fresh parameters per model."""

import linecache
import weakref
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.vocabulary import DTYPES
from gflownet.translation.cache import CACHE
from gflownet.translation.cells import gru_sequence, lstm_sequence, rhn_sequence
from gflownet.translation.config import TranslationConfig
from gflownet.translation.emit import FAST, outside_classes, sequence_lines, slot_name, step_lines
from gflownet.translation.initial import add_parameters
from gflownet.translation.parameters import Initial
from gflownet.translation.plan import ModelPlan
from gflownet.translation.planning import build_plan, checked_options, structural_key
from gflownet.translation.state import StateManager

# What generated code calls besides torch.
_CELL_FUNCTIONS = {function.__name__: function for function in (gru_sequence, lstm_sequence, rhn_sequence)}


class TranslatedModel(nn.Module):
    """The base of all generated classes; forward maps [B, F] to [B, O], one call is one time step.

    B: batch, F: sum of the INPUT widths, O: sum of the OUTPUT widths. Parameters are named as in the spec.
    """

    plan: ClassVar[ModelPlan]

    if TYPE_CHECKING:  # parameters and layers are attributes by name

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, values: Sequence[float], *, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.state_manager = StateManager(self.plan.slots)
        add_parameters(self, self.plan, values, device=device, dtype=dtype)

    def forward(self, x: Tensor, reset_states: bool = False) -> Tensor:
        """The output [B, O] of one time step on `x` [B, F]; generated for every structure.

        Raises: ValueError for a wrong rank, width, dtype or, with kept state, batch size.
        """
        raise NotImplementedError(f"{type(self).__name__} is not meant to be used directly: call to_pytorch_model")

    def step(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The output [B, O] of one time step and the state after it, from a given state (see plan.slots).

        It reads and writes nothing but its arguments; generated where a graph has state.
        """
        return self(x), state

    def forward_sequence(self, x: Tensor, reset_states: bool = True) -> Tensor:
        """The outputs [B, T, O] of T time steps on `x` [B, T, F], with gradients that run through time.

        The same numbers as T calls of forward. A sequence starts from zeros unless `reset_states` is False; the state
        after its last step is kept, detached.

        Raises: ValueError for a wrong rank, width, dtype or length 0.
        """
        dtype = next(self.parameters()).dtype
        if x.dim() != 3 or x.shape[2] != self.plan.input_size or x.dtype != dtype or not x.shape[1]:
            self._refuse(x, dtype, sequence=True)
        if not self.plan.slots:
            return self(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        if reset_states:
            self.state_manager.reset()
        state = self.state_manager.current(x[:, 0])
        y, state = self.steps(x, state)
        self.state_manager.store(state)
        return y

    def steps(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The outputs [B, T, O] of T time steps on `x` [B, T, F] from a given state, and the state after them.

        Step by step; generated for graphs with rhn nodes and no recurrent edges: node by node.
        """
        outputs = []
        for moment in x.unbind(1):
            y, state = self.step(moment, state)
            outputs.append(y)
        return torch.stack(outputs, dim=1), state

    def _refuse(self, x: Tensor, dtype: torch.dtype, *, sequence: bool = False) -> None:
        shape = f"[B, T >= 1, {self.plan.input_size}]" if sequence else f"[B, {self.plan.input_size}]"
        expected = f"an input of shape {shape} and dtype {dtype}"
        raise ValueError(
            f"expected {expected} (INPUT nodes {[node_id for node_id, _ in self.plan.inputs]}), "
            f"got shape {list(x.shape)} and dtype {x.dtype}"
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "TranslatedModel":
        self.state_manager.apply(fn)
        return super()._apply(fn, recurse)

    def __reduce__(self) -> tuple[Any, ...]:
        # The generated class cannot be imported by name; the plan travels instead.
        return _empty_model, (self.plan,), self.__dict__


def to_pytorch_model(
    graph: ComputationGraph, config: Mapping[str, Any] | TranslationConfig | None = None
) -> TranslatedModel:
    """The graph as an nn.Module; random first values come from torch's global generator.

    `config` (see TranslationConfig) overrides the graph's own settings, graph.config["translation"].

    Raises: ValueError that lists every problem of an invalid graph.
    """
    options = checked_options(graph, config)
    model_class = translated_class(graph, options)
    values = parameter_values(graph, model_class.plan)
    return model_class(values, device=torch.device(options.device), dtype=checked_dtype(options.dtype))


def translated_class(graph: ComputationGraph, options: TranslationConfig) -> type[TranslatedModel]:
    """The class that graphs of this structure share, from the cache where that is on; for checked_options only."""
    projection = options.projection or "auto"
    key = structural_key(graph, projection)

    def translate() -> type[TranslatedModel]:
        return generate_class(build_plan(graph, projection, key))

    enabled = CACHE.is_enabled if options.enable_translation_cache is None else options.enable_translation_cache
    return CACHE.get(key, translate) if enabled else translate()


def parameter_values(graph: ComputationGraph, plan: ModelPlan) -> list[float]:
    """The first values of plan.scalars."""
    nodes, edges = graph.nodes, graph.edges
    return [
        nodes[parameter.owner].bias
        if parameter.initial is Initial.BIAS
        else edges[parameter.owner].weight
        if parameter.initial is Initial.WEIGHT
        else 0.0
        for parameter in plan.scalars
    ]


def generate_class(plan: ModelPlan) -> type[TranslatedModel]:
    """A subclass of TranslatedModel whose forward is straight-line code for `plan`."""
    source = _source(plan)
    name = f"TranslatedModel_{sha256(repr(plan.key).encode()).hexdigest()[:12]}"
    filename = f"<gflownet {name}>"
    namespace: dict[str, Any] = {"torch": torch, "F": F, "Tensor": Tensor, **_CELL_FUNCTIONS, **outside_classes(plan)}
    exec(compile(source, filename, "exec"), namespace)
    methods = {method: namespace[method] for method in ("forward", "step", "steps") if method in namespace}
    generated = type(name, (TranslatedModel,), {"plan": plan, "__module__": __name__, **methods})
    # Tracebacks, debuggers and torch.compile find the lines here, for as long as the class lives.
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    weakref.finalize(generated, linecache.cache.pop, filename, None)
    return generated


def _source(plan: ModelPlan) -> str:
    """The text of `forward` and, for a plan with state, of the `step` it calls."""
    dtype = f"{FAST.parameter(f'bias_{plan.outputs[0]}')}.dtype"
    access = ["p, m = self._parameters, self._modules"]
    check = [
        f"if x.dim() != 2 or x.shape[1] != {plan.input_size} or x.dtype != {dtype}:",
        f"    self._refuse(x, {dtype})",
    ]
    forward = "forward(self, x: Tensor, reset_states: bool = False) -> Tensor"
    body = step_lines(plan, FAST)
    if not plan.slots:
        return _function(forward, [*access, *check, *body, "return y"])
    slots = ", ".join(slot_name(slot.kind, slot.node_id) for slot in plan.slots)
    step = "step(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]"
    call = [
        "if reset_states:",
        "    self.state_manager.reset()",
        "y, state = self.step(x, self.state_manager.current(x))",
        "self.state_manager.store(state)",
    ]
    functions = [
        _function(step, [*access, f"{slots}, = state", *body, "return y, state"]),
        _function(forward, [*access, *check, *call, "return y"]),
    ]
    if plan.is_run_by_node:
        steps = "steps(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]"
        unpacked = ["batch, length = x.shape[:2]", "x = x.transpose(0, 1).flatten(0, 1)", f"{slots}, = state"]
        returned = "return y.unflatten(0, (length, batch)).transpose(0, 1), state"
        functions.append(_function(steps, [*access, *unpacked, *sequence_lines(plan), returned]))
    return "\n".join(functions)


def _function(signature: str, lines: list[str]) -> str:
    return f"def {signature}:\n" + "".join(f"    {line}\n" for line in lines)


def checked_dtype(dtype: torch.dtype | str | None) -> torch.dtype:
    """The dtype of the parameters, torch.float32 for None. Raises ValueError for one that is not floating."""
    if dtype is None:
        return torch.float32
    if isinstance(dtype, str) and dtype in DTYPES:
        return getattr(torch, dtype)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"dtype: expected a floating torch dtype, got {dtype!r}")
    return dtype


def _empty_model(plan: ModelPlan) -> TranslatedModel:
    """An instance without state, for pickle and copy to fill."""
    model_class = CACHE.get(plan.key, lambda: generate_class(plan)) if CACHE.is_enabled else generate_class(plan)
    return model_class.__new__(model_class)
