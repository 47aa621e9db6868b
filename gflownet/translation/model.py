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
from gflownet.graphs.operation_shapes import is_operation_graph
from gflownet.graphs.vocabulary import DTYPES
from gflownet.translation.cache import CACHE
from gflownet.translation.cells import gru_sequence, lstm_sequence, rhn_sequence
from gflownet.translation.emit import FAST, outside_classes, sequence_lines, slot_name, step_lines
from gflownet.translation.generated_model import GeneratedModel
from gflownet.translation.initial import add_parameters
from gflownet.translation.operation_model import OperationModel, generate_operation_class
from gflownet.translation.operation_plan import build_operation_plan, operation_key
from gflownet.translation.parameters import Initial
from gflownet.translation.plan import ModelPlan, StateSlot
from gflownet.translation.planning import TranslationConfig, build_plan, checked_options, structural_key

# Functions of generated code besides torch.
_CELL_FUNCTIONS = {function.__name__: function for function in (gru_sequence, lstm_sequence, rhn_sequence)}


class StateManager:
    """The state of a recurrent model between calls: one detached tensor per slot of the plan, zeros at first.

    Not thread-safe, and not in state_dict: a state belongs to a sequence, not to the model.
    """

    def __init__(self, slots: tuple[StateSlot, ...]) -> None:
        self.slots = slots
        self.tensors: tuple[Tensor, ...] | None = None  # each [B, size], in the order of slots

    def reset(self) -> None:
        """Clear the state: the next step starts from zeros."""
        self.tensors = None

    def current(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the state before a step on `x` [B, F]. Raises ValueError for another B than the state has."""
        if self.tensors is None:
            return tuple(x.new_zeros(x.shape[0], slot.size) for slot in self.slots)
        if self.tensors and self.tensors[0].shape[0] != x.shape[0]:
            raise ValueError(
                f"expected a batch of {self.tensors[0].shape[0]}, as in the state of the previous call, "
                f"got {x.shape[0]}; pass reset_states=True to start a new sequence"
            )
        return self.tensors

    def store(self, tensors: tuple[Tensor, ...]) -> None:
        """Store the state after a step, detached: a backward pass ends at its own call."""
        self.tensors = tuple(tensor.detach() for tensor in tensors)

    def previous_output(self, node_id: int) -> Tensor | None:
        """Return the output [B, size] that recurrent edges of a node read next; None before the first step."""
        for slot, tensor in zip(self.slots, self.tensors or (), strict=False):
            if slot.kind == "output" and slot.node_id == node_id:
                return tensor
        return None

    def apply(self, function: Callable[[Tensor], Tensor]) -> None:
        """Apply a function to the tensors, as nn.Module.to does with parameters."""
        if self.tensors is not None:
            with torch.no_grad():
                self.tensors = tuple(function(tensor) for tensor in self.tensors)


class StepModule(nn.Module):
    """One time step as a pure function: (x [B, F], state tensors [B, size] ...) -> (y [B, O], state tensors ...)."""

    def __init__(self, model: "TranslatedModel") -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """The output and the state after the step, flat."""
        y, state = self.model.step(x, state)
        return (y, *state)


class TranslatedModel(GeneratedModel):
    """Base of all generated classes; forward maps [B, F] to [B, O], one call is one time step.

    B: batch, F: sum of the INPUT widths, O: sum of the OUTPUT widths. Parameters: see docs/translation.md.
    """

    plan: ClassVar[ModelPlan]

    if TYPE_CHECKING:  # parameters and layers are attributes by name

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, values: Sequence[float], *, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.state_manager = StateManager(self.plan.slots)
        add_parameters(self, self.plan, values, device=device, dtype=dtype)

    def forward(self, x: Tensor, reset_states: bool = False) -> Tensor:
        """Return the output [B, O] of one time step on `x` [B, F]; generated for every structure.

        Raises: ValueError for a wrong rank, width, dtype or, with kept state, batch size.
        """
        raise NotImplementedError(f"{type(self).__name__} is an abstract base class: call to_pytorch_model")

    def step(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the output [B, O] of one time step and the next state, from a state (see plan.slots).

        A pure function of its arguments; generated for graphs with state.
        """
        return self(x), state

    def forward_sequence(self, x: Tensor, reset_states: bool = True) -> Tensor:
        """Return the outputs [B, T, O] of T time steps on `x` [B, T, F], with gradients through time.

        Equals T calls of forward. A sequence starts from zeros unless `reset_states` is False; the state after its last
        step is stored, detached.

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
        """Return the outputs [B, T, O] of T time steps on `x` [B, T, F] from a state, and the state after them.

        Step by step; generated for graphs with rhn nodes and no recurrent edges: node by node.
        """
        outputs = []
        for moment in x.unbind(1):
            y, state = self.step(moment, state)
            outputs.append(y)
        return torch.stack(outputs, dim=1), state

    def zeros(self, batch_size: int) -> tuple[Tensor, ...]:
        return (next(self.parameters()).new_zeros(batch_size, self.plan.input_size),)

    def first_step(self, *inputs: Tensor) -> Tensor:
        state = self.state_manager.tensors
        try:
            return self(*inputs, reset_states=True)
        finally:
            self.state_manager.tensors = state

    def pure_module(self) -> nn.Module:
        return StepModule(self) if self.plan.slots else self

    def pure_arguments(self, batch_size: int) -> tuple[Tensor, ...]:
        (x,) = self.zeros(batch_size)
        return (x, *(x.new_zeros(batch_size, slot.size) for slot in self.plan.slots))

    def pure_names(self) -> tuple[list[str], list[str]]:
        states = [slot_name(slot.kind, slot.node_id) for slot in self.plan.slots]
        return ["x", *states], ["y", *(f"next_{state}" for state in states)]

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
        # The generated class cannot be imported by name: pickle the plan instead.
        return _empty_model, (self.plan,), self.__dict__


def to_pytorch_model(graph: ComputationGraph, config: Mapping[str, Any] | TranslationConfig | None = None) -> Any:
    """Translate a graph to an nn.Module; random first values come from torch's global generator.

    `config` (see TranslationConfig) overrides the settings of the graph, graph.config["translation"].

    Raises: ValueError that lists every problem of an invalid graph.
    """
    options = checked_options(graph, config)
    if is_operation_graph(graph):
        return _operation_model(graph, options)
    model_class = translated_class(graph, options)
    values = parameter_values(graph, model_class.plan)
    return model_class(values, device=torch.device(options.device), dtype=checked_dtype(options.dtype))


def translated_class(graph: ComputationGraph, options: TranslationConfig) -> type[TranslatedModel]:
    """Return the class of graphs of this structure, cached if enabled; `options` come from checked_options."""
    projection = options.projection or "auto"
    key = structural_key(graph, projection)

    def translate() -> type[TranslatedModel]:
        return generate_class(build_plan(graph, projection, key))

    enabled = CACHE.is_enabled if options.enable_translation_cache is None else options.enable_translation_cache
    return CACHE.get(key, translate) if enabled else translate()


def _operation_model(graph: ComputationGraph, options: TranslationConfig) -> OperationModel:
    model = operation_class(graph, options)().to(device=options.device, dtype=checked_dtype(options.dtype))
    if options.memory_format == "channels_last":
        model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    return model


def operation_class(graph: ComputationGraph, options: TranslationConfig) -> type[OperationModel]:
    """Return the class of operation graphs of this structure, cached if enabled; `options` as translated_class."""
    key = operation_key(graph, options)

    def translate() -> type[OperationModel]:
        return generate_operation_class(build_operation_plan(graph, options, key))

    enabled = CACHE.is_enabled if options.enable_translation_cache is None else options.enable_translation_cache
    return CACHE.get(("operations", key), translate) if enabled else translate()


def parameter_values(graph: ComputationGraph, plan: ModelPlan) -> list[float]:
    """Return the first values of plan.scalars."""
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
    """Return a subclass of TranslatedModel whose forward is straight-line code for `plan`."""
    source = _source(plan)
    name = f"TranslatedModel_{sha256(repr(plan.key).encode()).hexdigest()[:12]}"
    filename = f"<gflownet {name}>"
    namespace: dict[str, Any] = {"torch": torch, "F": F, "Tensor": Tensor, **_CELL_FUNCTIONS, **outside_classes(plan)}
    exec(compile(source, filename, "exec"), namespace)
    methods = {method: namespace[method] for method in ("forward", "step", "steps") if method in namespace}
    generated = type(name, (TranslatedModel,), {"plan": plan, "__module__": __name__, **methods})
    # Source lines for tracebacks, debuggers and torch.compile while the class exists.
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    weakref.finalize(generated, linecache.cache.pop, filename, None)
    return generated


def _source(plan: ModelPlan) -> str:
    """Return the source of `forward` and, for a plan with state, of `step` and `steps`."""
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
    """Return the dtype of the parameters, torch.float32 for None. Raises ValueError for one that is not floating."""
    if dtype is None:
        return torch.float32
    if isinstance(dtype, str) and dtype in DTYPES:
        return getattr(torch, dtype)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"dtype: expected a floating torch dtype, got {dtype!r}")
    return dtype


def _empty_model(plan: ModelPlan) -> TranslatedModel:
    """Return an empty instance, filled by pickle and copy."""
    model_class = CACHE.get(plan.key, lambda: generate_class(plan)) if CACHE.is_enabled else generate_class(plan)
    return model_class.__new__(model_class)
