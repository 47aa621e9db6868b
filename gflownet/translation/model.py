"""to_pytorch_model: one generated class per structure, straight-line code, fresh parameters per model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.typed import TypedGraph
from gflownet.operations.code import FAST, Dialect
from gflownet.operations.tensor_shape import Layout
from gflownet.training.steps import evaluating
from gflownet.translation.array_inputs import ArrayInputs
from gflownet.translation.classes import CACHE, generated_class
from gflownet.translation.code import shape_text
from gflownet.translation.planning import TranslationConfig, checked
from gflownet.translation.state import StateManager
from gflownet.translation.table_columns import TableColumns


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

    def _named_tensors(self) -> Mapping[str, Any]:
        """Return the parameters outside of layers; by attribute if one is computed or pruned, or in a replica."""
        p = self._parameters
        return p if p.keys() >= self.names else {name: getattr(self, name) for name in self.names}

    def _refuse(self, position: int, x: Tensor, *, sequence: bool = False) -> NoReturn:
        _, node_id, shape = self.plan.inputs[position]
        name, dtype = f"input {node_id}", self.reference.dtype
        if self.plan.takes_columns:
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
    is_cached = CACHE.is_enabled if options.enable_translation_cache is None else options.enable_translation_cache
    model_class = module_class(typed, is_cached=is_cached)
    values = model_class.plan.values_of(graph)
    around = torch.get_default_device()  # meta: of a user who wants shapes without memory
    device = around if around.type == "meta" else torch.device(options.device)
    dtype = checked_dtype(options.dtype)
    takes_columns = model_class.plan.takes_columns
    model = model_class(values, device, dtype) if takes_columns else model_class(values)
    share_by_derivation(model, graph, is_enabled=is_cached)
    if takes_columns:
        return model
    # Layers of operations draw their first values as in PyTorch, in float32.
    model = model.to(device=device, dtype=dtype)
    if options.memory_format == "channels_last":
        for kernel in (each for each in model.parameters() if each.dim() == 4):  # of images
            kernel.data = kernel.data.contiguous(memory_format=torch.channels_last)
    return model


def module_class(typed: TypedGraph, dialect: Dialect = FAST, *, is_cached: bool | None = None) -> Any:
    """Return the class of a graph, from the cache if it is enabled."""

    def generated() -> type:
        bodies = {body.key: module_class(body.changed(is_padded=typed.is_padded), dialect) for body in typed.bodies}
        return generated_class(TranslatedModel, typed, bodies, dialect)

    if not (CACHE.is_enabled if is_cached is None else is_cached):
        return generated()
    return CACHE.get(typed.key if dialect is FAST else (typed.key, dialect.num_copies), generated)


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


def checked_dtype(dtype: torch.dtype | str | None) -> torch.dtype:
    """Return the dtype of the parameters, torch.float32 for None. Raises ValueError for one that is not floating."""
    if dtype is None:
        return torch.float32
    if isinstance(dtype, str):  # checked before
        return getattr(torch, dtype)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"dtype: expected a floating torch dtype, got {dtype!r}")
    return dtype


def _empty_model(plan: TypedGraph) -> TranslatedModel:
    """Return an empty instance, filled by pickle and copy."""
    model_class = module_class(plan)
    return model_class.__new__(model_class)
