"""to_pytorch_model: one generated class per structure, straight-line code, fresh parameters per model."""

from __future__ import annotations

import linecache
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from keyword import iskeyword
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.fx import Proxy

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.typed import StateSlot, TypedGraph, TypedNode
from gflownet.operations import layers
from gflownet.operations.neuron_code import FAST, Dialect, group, outside_name, outside_value, slot_name
from gflownet.operations.sequences import gru_sequence, lstm_sequence, project, rhn_sequence, scaled_matrices
from gflownet.operations.tensor_shape import Layout
from gflownet.operations.vocabulary import DTYPES, activation, aggregation
from gflownet.training.steps import evaluating
from gflownet.translation.array_inputs import ArrayInputs
from gflownet.translation.cache import CACHE
from gflownet.translation.code import ClassWriter, has_own_build, own_build_name, shape_text
from gflownet.translation.copies import concat_copies, pad_copies
from gflownet.translation.initial import add_parameters
from gflownet.translation.planning import TranslationConfig, checked
from gflownet.translation.table_columns import TableColumns

# Matrices of one size that are scaled together: with fewer, products one by one are as fast.
MIN_STACKED = 8
# Layers and functions of generated code besides those of torch.
_NAMES: dict[str, Any] = {name: value for name, value in vars(layers).items() if isinstance(value, type)}
_NAMES |= {each.__name__: each for each in (gru_sequence, lstm_sequence, rhn_sequence, add_parameters)}
_NAMES |= {each.__name__: each for each in (project, scaled_matrices, pad_copies, concat_copies)}


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

    def previous_output(self, node_id: int) -> Tensor | None:
        """Return the output [B, *shape] that recurrent edges of a node read next; None before the first step."""
        for slot, tensor in zip(self.slots, self.tensors or (), strict=False):
            if slot.kind == "output" and slot.node_id == node_id:
                return tensor
        return None

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


class StepModule(nn.Module):
    """One time step as a pure function: (inputs, state tensors [B, *shape] ...) -> (y, state tensors ...)."""

    def __init__(self, model: TranslatedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The output and the state after the step, flat."""
        count = len(self.model.plan.slots)
        y, state = self.model.step(*tensors[:-count], tensors[-count:])
        return (*(y if isinstance(y, tuple) else (y,)), *state)


class TranslatedModel(nn.Module):
    """Base of all generated classes, also of subgraphs; one call of forward is one time step.

    forward of a graph of neurons maps [B, F] to [B, O]: B is the batch, F the sum of the INPUT widths, O of the OUTPUT
    widths. With other operations it takes a tensor [B, *shape] per INPUT node, by ascending id, and returns the value
    of the OUTPUT node; values of several are concatenated if all are vectors, else a tuple. See docs/translation.md.
    """

    plan: ClassVar[TypedGraph]
    names: ClassVar[frozenset[str]]  # of the parameters outside of layers that forward reads
    columns: TableColumns | None = None  # of a table, set by `load`
    shared: tuple[tuple[str, str], ...] = ()  # names in state_dict of one tensor, see share_by_derivation
    arrays: ArrayInputs | None = None  # of images or signals, set by `load`
    reference: Tensor  # empty: the device and the dtype of the model, also of one without parameters

    if TYPE_CHECKING:  # parameters and layers are attributes by name

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, device: torch.device | None = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.state_manager = StateManager(self.plan.slots)
        self._buffers["reference"] = torch.empty(0, dtype=dtype, device=device)
        self._non_persistent_buffers_set.add("reference")

    def forward(self, *inputs: Tensor, reset_states: bool = False) -> Any:
        """Return the output of one time step; generated for every structure.

        Raises: ValueError for a wrong rank, shape, dtype or, with kept state, batch size.
        """
        raise NotImplementedError(f"{type(self).__name__} is an abstract base class: call to_pytorch_model")

    def step(self, *inputs: Any) -> tuple[Any, tuple[Tensor, ...]]:
        """Return the output of one time step and the next state; the last argument is a state (see plan.slots).

        A pure function of its arguments; generated for graphs with state.
        """
        return self(*inputs[:-1]), inputs[-1]

    def forward_sequence(self, *inputs: Tensor, reset_states: bool = True) -> Any:
        """Return the outputs of T time steps, [B, T, O] for x [B, T, F], with gradients through time.

        Inputs and outputs have the axes of forward with T after B. Equals T calls of forward. A sequence starts from
        zeros unless `reset_states` is False; the state after its last step is stored, detached.

        Raises: ValueError for a wrong rank, width, dtype or length 0.
        """
        for position, (x, (_, shape)) in enumerate(zip(inputs, self.plan.arguments, strict=False)):
            is_token = shape.layout is Layout.TOKENS
            has_dtype = not x.is_floating_point() if is_token else x.dtype == self.reference.dtype
            if x.dim() < 2 or x.shape[2:] != shape.sizes or not has_dtype or not x.shape[1]:
                self._refuse(position, x, sequence=True)
        if not self.plan.slots:
            y = self(*(x.flatten(0, 1) for x in inputs))
            batch = inputs[0].shape[:2]
            return tuple(each.unflatten(0, batch) for each in y) if isinstance(y, tuple) else y.unflatten(0, batch)
        if reset_states:
            self.state_manager.reset()
        state = self.state_manager.current(inputs[0], self.reference)
        y, state = self.steps(*inputs, state)
        self.state_manager.store(state, is_new=reset_states)
        return y

    def steps(self, *inputs: Any) -> tuple[Any, tuple[Tensor, ...]]:
        """Return the outputs of T time steps, [B, T, O] for x [B, T, F], from a state, and the state after them.

        The last argument is the state. Step by step; generated for graphs with rhn nodes and no recurrent edges: node
        by node.
        """
        *sequences, state = inputs
        outputs = []
        for moments in zip(*(x.unbind(1) for x in sequences), strict=True):
            y, state = self.step(*moments, state)
            outputs.append(y)
        if isinstance(outputs[0], tuple):
            return tuple(torch.stack(each, dim=1) for each in zip(*outputs, strict=True)), state
        return torch.stack(outputs, dim=1), state

    @property
    def class_names(self) -> Sequence[Any]:
        """The classes by the places of their outputs; empty for numbers, and without data."""
        source = self.columns or self.arrays
        return () if source is None else source.target.labels

    def predict(self, examples: Any) -> np.ndarray:
        """Return the classes or numbers [B], in the units of the data, of raw rows of a table, images or signals.

        Rows as for `TableColumns.encoded`; images as paths, images or arrays, signals as arrays: `ArrayInputs.encoded`.

        Raises:
            ValueError: a model that was not loaded from a run, or examples that do not fit its inputs.
        """
        source = self.columns or self.arrays
        if source is None:
            raise ValueError(
                "expected a model that gflownet.load returned for a run with task=table or images, got no data"
            )
        inputs = torch.from_numpy(source.encoded(examples))
        with evaluating(self), torch.inference_mode():
            outputs = self.first_step(inputs)
        return source.predictions(outputs.numpy())

    def zeros(self, batch_size: int) -> tuple[Tensor, ...]:
        """Return the arguments of forward as zeros, for a batch."""
        shapes = [shape for _, shape in self.plan.arguments]
        dtypes = [torch.int64 if shape.layout is Layout.TOKENS else None for shape in shapes]
        sizes = ((batch_size, *shape.sizes) for shape in shapes)
        return tuple(self.reference.new_zeros(each, dtype=dtype) for each, dtype in zip(sizes, dtypes, strict=True))

    def first_step(self, *inputs: Tensor) -> Any:
        """Return forward as at the start of a sequence; a stored state stays unchanged."""
        state = self.state_manager.tensors
        try:
            return self(*inputs, reset_states=True)
        finally:
            self.state_manager.tensors = state

    def pure_module(self) -> nn.Module:
        """Return a module without hidden state: forward maps inputs and state tensors to outputs and next state."""
        return StepModule(self) if self.plan.slots else self

    def pure_arguments(self, batch_size: int) -> tuple[Tensor, ...]:
        """Return the arguments of the pure module as zeros, for a batch."""
        state = (self.reference.new_zeros(batch_size, *slot.shape) for slot in self.plan.slots)
        return (*self.zeros(batch_size), *state)

    def pure_names(self) -> tuple[list[str], list[str]]:
        """Return the names of the inputs and of the outputs of the pure module."""
        plan = self.plan
        several = len(plan.outputs) > 1 and not plan.is_concatenated
        outputs = [f"y{node_id}" for node_id, _ in plan.outputs] if several else ["y"]
        inputs = [name for name, _ in plan.arguments] if len(plan.arguments) > 1 else ["x"]
        states = [slot_name(slot.kind, slot.node_id) for slot in plan.slots]
        return [*inputs, *states], [*outputs, *(f"next_{state}" for state in states)]

    def _named_tensors(self) -> Mapping[str, Any]:
        """Return the parameters outside of layers; by attribute if one is computed or pruned, or in a replica."""
        p = self._parameters
        return p if p.keys() >= self.names else {name: getattr(self, name) for name in self.names}

    def _refuse(self, position: int, x: Tensor, *, sequence: bool = False) -> NoReturn:
        _, node_id, shape = self.plan.inputs[position]
        name, dtype = f"input {node_id}", self.reference.dtype
        if self.plan.is_dense:
            sizes = f"[B, T >= 1, {self.plan.input_size}]" if sequence else f"[B, {self.plan.input_size}]"
            nodes = [node for _, node, _ in self.plan.inputs]
            expected = f"an input of shape {sizes} and dtype {dtype} (INPUT nodes {nodes})"
            raise ValueError(f"expected {expected}, got shape {list(x.shape)} and dtype {x.dtype}")
        kind = f"{dtype} numbers" if x.is_floating_point() and x.dtype != dtype else "floating numbers"
        kind = "integers" if shape.layout is Layout.TOKENS else kind
        sizes = shape_text(shape).replace("[B", "[B, T >= 1") if sequence else shape_text(shape)
        raise ValueError(f"{name}: expected {kind} of shape {sizes}, got {list(x.shape)} of dtype {x.dtype}")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> TranslatedModel:
        self.state_manager.apply(fn)
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for first, other in self.shared:
            one, two = state_dict.get(prefix + first), state_dict.get(prefix + other)
            if one is not None and two is not None and not torch.equal(one.nan_to_num(), two.nan_to_num()):
                expected = f"expected one value for {first} and {other}, nodes of one derivation_uuid"
                args[-1].append(f"{expected}, got two; enable_translation_cache=False keeps them apart")
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __prepare_scriptable__(self) -> NoReturn:
        """Refuse torch.jit.script, which reads source files; the code of this class is in memory."""
        text = "torch.jit.script: expected a module of a source file, got a translated one; use export_program(model), "
        raise ValueError(f"{text}to_onnx(model, path), or torch.jit.trace(model, model.zeros(1))")

    def _replicate_for_data_parallel(self) -> TranslatedModel:
        replica = super()._replicate_for_data_parallel()
        replica.state_manager = StateManager(self.plan.slots)
        replica.state_manager.is_kept = False
        return replica

    def __reduce__(self) -> tuple[Any, ...]:
        # The generated class cannot be imported by name: pickle the plan instead. Parametrised ones refuse that.
        return _empty_model, (self.plan,), self.__getstate__()


def to_pytorch_model(graph: ComputationGraph, config: Mapping[str, Any] | TranslationConfig | None = None) -> Any:
    """Translate a graph to an nn.Module; random first values come from torch's global generator.

    `config` (see TranslationConfig) overrides the settings of the graph, graph.config["translation"].

    Raises: ValueError that lists every problem of an invalid graph.
    """
    typed, options = checked(graph, config)
    model_class = class_of(typed, is_cached=_is_cached(options))
    values = model_class.plan.values_of(graph)
    around = torch.get_default_device()  # meta: of a user who wants shapes without memory
    device = around if around.type == "meta" else torch.device(options.device)
    dtype = checked_dtype(options.dtype)
    is_dense = model_class.plan.is_dense
    model = model_class(values, device, dtype) if is_dense else model_class(values)
    share_by_derivation(model, graph, is_enabled=_is_cached(options))
    if is_dense:
        return model
    # Layers of operations draw their first values as in PyTorch, in float32.
    model = model.to(device=device, dtype=dtype)
    if options.memory_format == "channels_last":
        for kernel in (each for each in model.parameters() if each.dim() == 4):  # of images
            kernel.data = kernel.data.contiguous(memory_format=torch.channels_last)
    return model


def share_by_derivation(model: TranslatedModel, graph: ComputationGraph, *, is_enabled: bool) -> None:
    """Let nodes with one derivation_uuid have one bias_ and one post_ layer, where shapes and numbers of biases agree.

    Without the cache they are separate and start with the same values, so that the outputs are equal.
    """
    found: dict[tuple[Any, ...], str] = {}
    for step in model.plan.steps:
        node = graph.nodes[step.node_id]
        derivation = node.derivation  # that of the plan's node is of another graph of this class
        for parameter in step.parameters if derivation is not None else ():
            kind = parameter.name.partition("_")[0]
            if kind not in ("bias", "post"):
                continue
            bias = node.bias if kind == "bias" else None
            first = found.setdefault((derivation, kind, parameter.shape, bias), parameter.name)
            if is_enabled:
                CACHE.count(is_hit=first != parameter.name)
            if first == parameter.name:
                continue
            if not is_enabled:
                with torch.no_grad():
                    model.get_parameter(parameter.name).copy_(model.get_parameter(first))
                continue
            held = model._modules if parameter.module else model._parameters
            held[parameter.name.partition(".")[0]] = held[first.partition(".")[0]]  # pyright: ignore[reportArgumentType]
            model.shared += ((first, parameter.name),)


def _is_cached(options: TranslationConfig) -> bool:
    return CACHE.is_enabled if options.enable_translation_cache is None else options.enable_translation_cache


@dataclass(frozen=True)
class _FastWriter(ClassWriter):
    """Code of a class in memory: parameters are added from the plan, with values by their place."""

    def stacked_matrices(self) -> list[list[str]]:
        groups: dict[tuple[int, int], list[str]] = {}
        for neuron in self.plan.live_neurons if self.plan.is_dense else ():
            if not neuron.aggregation_class.edge_parameter:
                for edge in neuron.edges:
                    if edge.is_projected and neuron.scales_matrix(edge):
                        groups.setdefault((neuron.message_size, edge.source_size), []).append(edge.label)
        return [labels for labels in groups.values() if len(labels) >= MIN_STACKED]

    def added(self, steps: Sequence[TypedNode]) -> list[str]:
        if self.plan.is_dense:
            return ["add_parameters(self, self.plan.parameters, values, device=device, dtype=dtype)"]
        places = {step.node_id: place for place, step in enumerate(self.plan.steps)}
        return [f"add_parameters(self, self.plan.steps[{places[step.node_id]}].parameters, values)" for step in steps]


def generate_class(plan: TypedGraph, dialect: Dialect = FAST) -> type[TranslatedModel]:
    """Return a subclass of TranslatedModel with straight-line code for `plan`."""
    class_names = {body.key: f"{class_name(body)}_{index}" for index, body in enumerate(plan.bodies)}
    bodies = {class_names[body.key]: class_of(body, dialect) for body in plan.bodies}
    source = _source(plan, _FastWriter(plan, dialect, class_names))
    key = repr(plan.key) + ("" if dialect is FAST else str(dialect.num_copies))
    name = f"{class_name(plan)}_{sha256(key.encode()).hexdigest()[:12]}"
    filename = f"<gflownet {name}>"
    names = {"torch": torch, "F": F, "nn": nn, "Tensor": Tensor, "Base": TranslatedModel, "Proxy": Proxy}
    namespace: dict[str, Any] = {**_NAMES, **names, **bodies, **dict(_outside_functions(plan))}
    exec(compile(source, filename, "exec"), namespace)
    methods = {method: namespace[method] for method in ("__init__", "forward", "step", "steps") if method in namespace}
    read = frozenset(each.name for step in plan.live_steps for each in step.parameters if not each.module)
    generated = type(name, (TranslatedModel,), {"plan": plan, "names": read, "__module__": __name__, **methods})
    # Source lines for tracebacks, debuggers and torch.compile while the class exists.
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    weakref.finalize(generated, linecache.cache.pop, filename, None)
    return generated


def class_of(plan: TypedGraph, dialect: Dialect = FAST, *, is_cached: bool | None = None) -> Any:
    """Return the class of a plan, from the cache if it is enabled."""
    if not (CACHE.is_enabled if is_cached is None else is_cached):
        return generate_class(plan, dialect)
    key = plan.key if dialect is FAST else (plan.key, dialect.num_copies)
    return CACHE.get(key, lambda: generate_class(plan, dialect))


def class_name(plan: TypedGraph) -> str:
    """Return a class name for a plan: of its subgraph or composite in camel case."""
    words = re.findall(r"[A-Za-z0-9]+", plan.name)
    name = "".join(word[0].upper() + word[1:] for word in words) or "TranslatedModel"
    return name if name.isidentifier() and not iskeyword(name) else f"Block{name}"


def _source(plan: TypedGraph, writer: ClassWriter) -> str:
    """Return the source of `__init__`, `forward` and, for a plan with state, of `step` and `steps`."""
    names = [name for name, _ in plan.arguments]
    arguments = ", ".join(names)
    head = "__init__(self, values=(), device=None, dtype=None)"
    # Every statement that adds parameters takes its values from the same iterator.
    initial = ["Base.__init__(self, device, dtype)", "values = iter(values or self.plan.values)"]
    functions = [_function(head, [*initial, *writer.initial_lines()])]
    access = ["p, m = self._named_tensors(), self._modules"]
    body = [*memory_format_lines(plan), *step_lines(plan, writer)]
    if plan.name:  # a subgraph: its state comes from and goes to the model
        state = [f"{slots_of(plan)} = state"] if plan.slots else []
        returned = "return y, state" if plan.slots else "return y"
        head = f"forward(self, {arguments}, state)" if plan.slots else f"forward(self, {arguments})"
        return "\n".join([*functions, _function(head, [*access, *state, *body, returned])])
    # Copies are called by their owner alone.
    checks = _checks(plan) if writer.dialect.num_copies == 1 else []
    head = f"forward(self, {arguments}, reset_states=False)"
    if not plan.slots:
        return "\n".join([*functions, _function(head, [*access, *checks, *body, "return y"])])
    state = f"{slots_of(plan)} = state"
    call = [
        "if reset_states:",
        "    self.state_manager.reset()",
        f"state = self.state_manager.current({names[0]}, self._buffers['reference'])",
        f"y, state = self.step({arguments}, state)",
        "self.state_manager.store(state, is_new=reset_states)",
    ]
    functions.append(_function(f"step(self, {arguments}, state)", [*access, state, *body, "return y, state"]))
    functions.append(_function(head, [*checks, *call, "return y"]))
    if plan.is_run_by_node:
        unpacked = ["batch, length = x.shape[:2]", "x = x.transpose(0, 1).flatten(0, 1)", state]
        returned = "return y.unflatten(0, (length, batch)).transpose(0, 1), state"
        functions.append(_function("steps(self, x, state)", [*access, *unpacked, *writer.sequence_lines(), returned]))
    return "\n".join(functions)


def _function(signature: str, lines: list[str]) -> str:
    return "\n    ".join([f"def {signature}:", *lines]) + "\n"


def slots_of(plan: TypedGraph) -> str:
    """Return the variables of the slots as a tuple."""
    return group([slot_name(slot.kind, slot.node_id) for slot in plan.slots])


def _checks(plan: TypedGraph) -> list[str]:
    lines = ['dtype = self._buffers["reference"].dtype']
    for position, (name, shape) in enumerate(plan.arguments):
        is_wrong = f"{name}.dtype != dtype" if shape.layout is not Layout.TOKENS else f"{name}.is_floating_point()"
        is_other = f"{name}.shape[1:] != {shape.sizes}"
        if len(shape.sizes) == 1:  # faster than a comparison of slices
            is_other = f"{name}.dim() != 2 or {name}.shape[1] != {shape.sizes[0]}"
        lines.append(f"if not isinstance({name}, Proxy) and ({is_other} or {is_wrong}):")  # of torch.fx
        lines.append(f"    self._refuse({position}, {name})")
        if shape.layout is Layout.TOKENS:
            lines.append(f"{name} = {name}.long()")  # nn.Embedding takes no int16 or uint8
    return lines


def memory_format_lines(plan: TypedGraph) -> list[str]:
    """The statements that give images the memory format of a plan."""
    images = [name for name, shape in plan.arguments if plan.channels_last and shape.layout is Layout.IMAGE]
    return [f"{name} = {name}.contiguous(memory_format=torch.channels_last)" for name in images]


def step_lines(plan: TypedGraph, writer: ClassWriter) -> list[str]:
    """Return the statements of a time step, under torch.autocast if the plan asks for it: `y` is float32 then."""
    lines = writer.step_lines()
    if not plan.autocast:
        return lines
    casts = ["y.float()"]
    if len(plan.outputs) > 1 and not plan.is_concatenated:
        is_token = [shape.layout is Layout.TOKENS for _, shape in plan.outputs]
        casts = [f"y[{place}]" + ("" if token else ".float()") for place, token in enumerate(is_token)]
    elif any(shape.layout is Layout.TOKENS for _, shape in plan.outputs):
        casts = ["y"]
    cast = f"y = ({', '.join(casts)})" if len(casts) > 1 else f"y = {casts[0]}"
    head = f"with torch.autocast({writer.arguments()[0]}.device.type, dtype=torch.{plan.autocast}):"
    return [head, *(f"    {line}" for line in lines), cast]


def _outside_functions(plan: TypedGraph) -> Iterator[tuple[str, Any]]:
    """Yield the user's classes and constructors by their names in generated code."""
    for step in plan.steps:
        node, applied = step.node, step.operation
        if ":" in node.activation_function:
            yield outside_name(node.activation_function), outside_value(activation(node.activation_function))
        if step.neuron is not None and ":" in step.neuron.aggregation:
            yield outside_name(step.neuron.aggregation), aggregation(step.neuron.aggregation)
        if applied is not None and not step.bodies:
            yield from applied.row.outside_classes(applied.settings).items()
            if has_own_build(applied.row):
                yield own_build_name(step), partial(_built, step.input_shapes, applied)


def _built(inputs: Mapping[str, Any], applied: Any) -> nn.Module:
    return applied.row.build(inputs, applied.settings)


def checked_dtype(dtype: torch.dtype | str | None) -> torch.dtype:
    """Return the dtype of the parameters, torch.float32 for None. Raises ValueError for one that is not floating."""
    if dtype is None:
        return torch.float32
    if isinstance(dtype, str) and dtype in DTYPES:
        return getattr(torch, dtype)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"dtype: expected a floating torch dtype, got {dtype!r}")
    return dtype


def _empty_model(plan: TypedGraph) -> TranslatedModel:
    """Return an empty instance, filled by pickle and copy."""
    model_class = class_of(plan)
    return model_class.__new__(model_class)
