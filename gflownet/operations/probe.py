"""An operation at certain shapes, run on tensors without data: its output, parameters and multiply-adds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import count
from math import prod
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from gflownet.errors import UserError
from gflownet.operations.operation import (
    INPUT_PORT,
    WEIGHT_PORT,
    Example,
    Operation,
    Settings,
    Shapes,
    complete_settings,
    example_inputs,
    has_code,
    is_inherited,
)
from gflownet.operations.signatures import names_in
from gflownet.operations.tensor_shape import Layout, Shape, ShapeError
from gflownet.operations.values import exact
from gflownet.operations.vocabulary import depends_on_batch

_SMALL = 2**16  # numbers in a module of torch.nn and its inputs: with data it runs 10 times as fast as without
# Examples of a run without data, a size of no other axis and in no setting; a second run with others shows that the
# first axis of the output is that of the batch.
_MIN_BATCH, _OTHER_BATCH = 13, 101
_COMPLEX = {"real": ".real", "imag": ".imag", "abs": ".abs()", "angle": ".angle()"}  # parts of complex numbers
_MAX_RUN = 10**7  # weights and input elements of a module that is run with data
_mixing: dict[tuple[Any, ...], bool] = {}  # whether examples are mixed, by class, settings and numbers of axes
_have_run: WeakSet[nn.Module] = WeakSet()  # without data
_MAX_PROBES = 2**16
_probes: dict[tuple[Any, ...], Probe] = {}  # by class, shapes and settings


class MultiplyAdds(TorchDispatchMode):
    """Count multiply-adds by the formulas of torch.utils.flop_counter, without its slow count of each module."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, in parts where it has no formula."""
        kwargs = kwargs or {}
        formula = flop_registry.get(func.overloadpacket)
        if formula is None:
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        if formula is not None:
            self.total += formula(*args, **kwargs, out_val=result) // 2
        return result


@dataclass(frozen=True)
class _Call:
    """A call and its inputs."""

    result: Any
    batch: int
    num_steps: int  # time steps that the call stands for
    written: tuple[str, ...]  # ports whose tensors the module changes in place: it gets copies


@dataclass(frozen=True)
class Result:
    """The output of a module or function by name."""

    sizes: tuple[int, ...]  # without the batch
    part: str  # code that takes the output out of the result
    written: tuple[str, ...] = ()  # see _Call


class Probe:
    """An operation with its shapes by port and its settings; what a run shows is found once."""

    def __init__(self, row: Any, shapes: Shapes, settings: Settings) -> None:
        self.row, self.shapes, self.settings = row, dict(shapes), dict(settings)

    def module(self, device: str = "meta") -> Any:
        """Return the module, None of a function; one that its code makes serves all shapes with the same code."""
        row, settings = self.row, self.settings
        if is_inherited(row, "build") and getattr(row, "name", "torch.nn").startswith("torch.nn"):
            return _evaluated(row, row.constructor(self.shapes, settings), tuple(settings.items()), device)
        with torch.device(device):
            return row.build(self.shapes, settings)

    @cached_property
    def result(self) -> Result:
        """The output of a module or function by name. Raises ShapeError with the call and torch's own reason."""
        row, settings, shapes = self.row, self.settings, self.shapes.values()
        if "batch_first" in row.arguments and len(self.shapes[row.ports[0]].sizes) < 2:
            raise ShapeError(f"expected a sequence, got {self.shapes[row.ports[0]]}")  # would be one of the batch
        declared = getattr(row.module_class, "infer_shape", None)
        try:
            module = self.module()
            result = self._output(module) if declared is None else self._declared(declared)
        except (ShapeError, UserError):
            raise
        except Exception as error:  # raised by the module
            words = row.keywords({**row.arguments, **row.form.values}, self.shapes, settings)
            call = f"{row.__name__}({', '.join(f'{key}={word}' for key, word in words.items())})"
            reason = f"got {type(error).__name__}: {' '.join(str(error).split())}"
            raise ShapeError(f"expected {call} to accept {' and '.join(map(str, shapes))}, {reason}") from error
        self.num_parameters = _num_trainable(module)
        key = row, exact(settings), *(len(shape.sizes) for shape in shapes)
        if key not in _mixing:
            is_other = declared is None and self._output(module, _OTHER_BATCH).sizes != result.sizes
            _mixing[key] = is_other or self._is_mixing(module, result.part)
        if _mixing[key]:
            reason = "one that depends on the others of the batch"
            raise ShapeError(f"expected an output for each example alone, got {reason}")
        return result

    @cached_property
    def weight(self) -> Shape:
        """The shape of the module's weight. Raises ShapeError without one."""
        if (own := self.row.weight_shape(self.shapes, self.settings)) is not None:
            return own
        sizes = getattr(getattr(self.module(), "weight", None), "shape", ())
        if not sizes:
            raise ShapeError(f"expected an operation with a weight to share, got {self.row.__name__}")
        return Shape.of(tuple(sizes))

    @cached_property
    def num_parameters(self) -> int:
        """The number of trainable parameters: of the class, where it has none of the module."""
        own = self.row.num_parameters(self.shapes, self.settings)
        return _num_trainable(self.module()) if own is None else own

    @cached_property
    def multiply_adds(self) -> int:
        """The multiply-adds of one example: of the class, where it has none by torch.utils.flop_counter."""
        row = self.row
        if (own := row.multiply_adds(self.shapes, self.settings)) is not None:
            return own
        if row.is_layer:  # counted, each shape takes milliseconds, and a search needs thousands
            num_weights = row.num_parameters(self.shapes, {**self.settings, "bias": False})
            if num_weights is None:
                num_weights = sum(each.numel() for each in self.module().parameters() if each.dim() > 1)
            return num_weights * prod(row.infer_shape(self.shapes, self.settings).positions)
        module = self.module()

        def counted(batch: int | None) -> int:
            with MultiplyAdds() as counter:
                call = self.called(module, "meta", batch)
            return call.num_steps * counter.total // call.batch

        with suppress(Exception):  # a batch norm refuses one example in training
            return counted(1)
        return counted(None)

    def called(self, module: Any, device: str, batch: int | None = None) -> _Call:
        """Return a call with `batch` examples; None: a number that shows where they are."""
        used = {size for shape in self.shapes.values() for size in shape.sizes} | _integers(self.settings.values())
        batch = batch or next(n for n in count(_MIN_BATCH) if n not in used)
        tensors = {port: _tensor(port, shape, batch, device).clone() for port, shape in self.shapes.items()}
        num_steps = 1
        if isinstance(module, nn.RNNBase):  # slow without data
            num_steps = tensors[INPUT_PORT].shape[1]
            tensors[INPUT_PORT] = tensors[INPUT_PORT][:, :1]
        with torch.device(device), torch.no_grad():
            try:
                result = self.run(module, tensors)
            except Exception:
                if module is None or device != "meta" or not module.training:
                    raise
                try:  # in training some layers read numbers of their state, such as the batches that they have seen
                    result = self.run(module.eval(), tensors)
                finally:
                    module.train()
        return _Call(result, batch, num_steps, tuple(port for port, tensor in tensors.items() if tensor._version))

    def run(self, module: Any, tensors: Mapping[str, Tensor], code: str = "") -> Any:
        """Return the value of `code`, by default the whole result of a call, from a state of zeros and without it."""
        row, first = self.row, next(iter(tensors.values()))
        state = row.state(self.shapes, self.settings)
        zeros = {name: first.new_zeros(first.shape[0], *sizes) for name, sizes in state.items()}
        code = code or row.whole(self.shapes, self.settings)
        code = code.format(module="module", **{name: f"tensors[{name!r}]" for name in (*self.shapes, *state)})
        result = row.evaluated(code, self.settings, module=module, tensors={**tensors, **zeros})
        return result[0] if state else result

    def _declared(self, declared: Any) -> Result:
        """Return the output, see `_output`, of a class with a method `infer_shape`."""
        row = self.row
        words = row.keywords(row.arguments, self.shapes, self.settings)
        arguments = row.evaluated(f"dict({', '.join(f'{key}={word}' for key, word in words.items())})", self.settings)
        sizes = tuple(declared(self.shapes[row.ports[0]].sizes, **arguments))
        part = "".join(f"[{each!r}]" for each in row.path(self.settings))
        return Result(sizes, part if sizes else f"{part}[:, None]")

    def _output(self, module: Any, batch: int | None = None) -> Result:
        """Return the sizes of the output without the batch, its code as a part of the result, and the changed inputs.

        Raises:
            ShapeError: not one floating tensor [B, ...].
        """
        path = self.row.path(self.settings)
        call = (None if batch else self._small_call(module)) or self.called(module, "meta", batch)
        output: Any = call.result
        part = ""
        if self.row.name.startswith("torch.nn:"):
            _have_run.add(module)
        for each in path:
            if torch.is_tensor(output) and output.is_complex() and each in _COMPLEX:
                value = getattr(output, each)
                output, part = value() if callable(value) else value, part + _COMPLEX[each]
            else:
                output, part = output[each], f"{part}[{each!r}]"
        if not torch.is_tensor(output):
            keys = (
                list(output)
                if isinstance(output, Mapping)
                else range(len(output))
                if hasattr(output, "__len__")
                else ()
            )
            parts = ", ".join(map(repr, keys)) or "no parts"
            raise ShapeError(f"expected a tensor, got a {type(output).__name__} of {parts}; output names one of them")
        if not output.is_floating_point():
            is_complex = output.is_complex()
            repair = f"output names its {', '.join(_COMPLEX)}" if is_complex else "a function of yours converts it"
            raise ShapeError(f"expected an output of floating numbers, got {output.dtype}; {repair}")
        is_recurrent = isinstance(module, nn.RNNBase)
        if is_recurrent and output.shape[1:2] == (call.batch,) != output.shape[:1]:  # a state: layers first
            output, part = output.transpose(0, 1), f"{part}.transpose(0, 1)"
        if output.shape[:1] != (call.batch,):
            sizes = ", ".join("batch" if size == call.batch else f"{size}" for size in output.shape)
            raise ShapeError(f"expected an output with the batch first, got [{sizes}]")
        sizes = tuple(output.shape[1:])
        if call.num_steps > 1 and path == (0,):
            sizes = (call.num_steps, *sizes[1:])
        return Result(sizes, part if sizes else f"{part}[:, None]", call.written)

    def _small_call(self, module: Any) -> _Call | None:
        """Return a call with data of a small module of torch.nn that has run without; None otherwise."""
        if not (self.row.name.startswith("torch.nn:") and module in _have_run):
            return None
        size = _MIN_BATCH * sum(shape.num_elements for shape in self.shapes.values())
        if size + sum(each.numel() for each in module.parameters()) > _SMALL:
            return None
        try:
            with torch.random.fork_rng(devices=[]):
                return self.called(self.module("cpu"), "cpu")
        except Exception:  # the call without data says why
            return None

    def _is_mixing(self, module: Any, part: str) -> bool:
        """Return whether the output of an example changes with another one, found on data in eval mode.

        Not run, and false: a layer of torch.nn with weights, which has none that mixes; one above `_MAX_RUN`; one with
        statistics of the batch; one that needs a GPU or other data.
        """
        num_weights = 0 if module is None else sum(each.numel() for each in module.parameters())
        named = (names_in(each, self.settings[key]) for key, each in self.row.arguments.items())
        is_layer = self.row.name.startswith("torch.nn:") and not any(any(names) for names in named)
        size = num_weights + sum(2 * shape.num_elements for shape in self.shapes.values())
        if size > _MAX_RUN or (num_weights and is_layer):
            return False
        inner = () if module is None else module.modules()
        if any(getattr(each, "track_running_stats", None) is False for each in inner):
            return False
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                torch.default_generator.manual_seed(0)  # of the CPU alone
                module = self.row.build(self.shapes, self.settings)
                for each in () if module is None else module.eval().parameters():
                    # A gate that starts at zero hides what is behind it.
                    if each.is_floating_point() and bool((each == each.flatten()[:1]).all()):
                        each.normal_()
                inputs = {port: _three(shape) for port, shape in self.shapes.items()}
                code = f"{self.row.whole(self.shapes, self.settings)}{part}"
                return depends_on_batch(lambda tensors: self.run(module, tensors, code), inputs)
        except Exception:  # raised by the module
            return False


@lru_cache(maxsize=2**12)
def _evaluated(row: type[Operation], source: str, settings: tuple[tuple[str, Any], ...], device: str) -> Any:
    with torch.device(device):
        return row.evaluated(source, dict(settings)) if source else None


def _num_trainable(module: Any) -> int:
    return 0 if module is None else sum(each.numel() for each in module.parameters() if each.requires_grad)


def _integers(values: Iterable[Any]) -> set[int]:
    """Return the integers in settings."""
    nested = [each for each in values if isinstance(each, list | tuple)]
    inner = [each.values() for each in values if isinstance(each, Mapping)]
    return {each for each in values if type(each) is int}.union(*map(_integers, (*nested, *inner)))


@lru_cache(maxsize=2**12)
def _tensor(port: str, shape: Shape, batch: int, device: str) -> Tensor:
    """Return zeros, or without data, for a port."""
    dtype = torch.long if shape.layout is Layout.TOKENS else torch.get_default_dtype()
    sizes = shape.sizes if port == WEIGHT_PORT else (batch, *shape.sizes)
    return torch.zeros(sizes, dtype=dtype, device=device)


def _three(shape: Shape) -> Tensor:
    """Return a batch of three examples; tokens are 0 and 1."""
    is_tokens = shape.layout is Layout.TOKENS
    return torch.randint(0, 2, (3, *shape.sizes)) if is_tokens else torch.rand(3, *shape.sizes)


def probe(row: type[Operation], shapes: Shapes, settings: Settings) -> Probe:
    """Return the probe of an operation; of a module or function by name, one for equal shapes and settings."""
    if not hasattr(row, "module_class"):  # `AppliedOperation.at` keeps it, and making one takes less than the key
        return Probe(row, shapes, settings)
    key = row, tuple(shapes.items()), exact(settings)
    if key not in _probes:
        if len(_probes) >= _MAX_PROBES:
            _probes.clear()
        _probes[key] = Probe(row, shapes, settings)
    return _probes[key]


def check_row(row: type[Operation], name: str) -> None:
    """Raise ValueError for a user's class that violates the contract; its examples are run without data."""
    row.check(name)
    if has_code(row):
        for position, example in enumerate(row.examples):
            check_example(row, example, f"{name}.examples[{position}]")


def check_example(row: type[Operation], example: Example, name: str) -> None:
    """Run an example without data. Raises ValueError unless the output has the shape that infer_shape returns."""
    settings = dict(complete_settings(row, name, example.settings))
    inputs = example_inputs(row, example, name)
    try:
        expected, alone = row.infer_shape(inputs, settings), Probe(row, inputs, settings)
        sizes = list(alone.called(alone.module(), "meta", 2).result.shape)
    except Exception as error:  # raised by the user's own class
        reason = " ".join(str(error).split())
        raise ValueError(f"{name}: expected an output, got {type(error).__name__}: {reason}") from error
    if sizes != [2, *expected.sizes]:
        raise ValueError(f"{name}: expected {[2, *expected.sizes]} as from infer_shape, got {sizes}")
