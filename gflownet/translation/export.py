"""Export of a model: torch.export and, with the extra [onnx], ONNX; its latency."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from gflownet.operations.code import slot_name
from gflownet.training.steps import evaluating
from gflownet.translation.model import TranslatedModel
from gflownet.translation.model_set import ModelSet

ONNX_PACKAGES = ("onnx", "onnxscript")
_MAX_MESSAGE = 2**31 - 1  # bytes of a message of protobuf
# Largest difference of outputs of an ONNX model, in units of 1 + the largest one.
_ROUNDING = {torch.float16: 0.05, torch.float32: 1e-3, torch.float64: 1e-6}


def export_program(model: TranslatedModel, *, batch_size: int = 2) -> ExportedProgram:
    """Return the model in eval mode as an ExportedProgram with a free batch dimension.

    A feed-forward model maps x to y. A recurrent one is exported as StepModule: its state, in the order of
    model.plan.slots, goes in after x and comes out after y. An operation graph has the arguments of its forward.
    `batch_size` (at least 2): batch of the traced example.
    """
    with evaluating(model):
        module, example, _, _ = _traceable(model, batch_size)
        return torch.export.export(module, example, dynamic_shapes=_free_batch(module, example))


def to_onnx(model: TranslatedModel | ModelSet, path: str | Path, *, batch_size: int = 2) -> None:
    """Write the model in eval mode as an ONNX file with a free batch dimension; inputs and outputs as export_program.

    A set of networks is one file, without state.

    The inputs are called x, then output3, hidden5, ... for the state; the outputs y, then next_output3, ... The inputs
    of an operation graph with several are called x0, x1, ... by node id, and its outputs that are not vectors y5, ...
    Next to it are the columns of a table, NAME.columns.json (`TableColumns.from_dict` reads them), or the classes and
    scales of images and signals, NAME.arrays.json (`ArrayInputs.from_dict`).

    Raises:
        ImportError: the packages of the extra [onnx] are missing.
        ValueError: a model in bfloat16, one that ONNX cannot hold, or one whose outputs differ there (compared where
            onnxruntime is installed): no file is written.
    """
    missing = [name for name in ONNX_PACKAGES if find_spec(name) is None]
    if missing:
        raise ImportError(f"expected the packages of gflownet[onnx] for an ONNX export, missing {', '.join(missing)}")
    autocasts = {each.plan.autocast for each in model.modules() if isinstance(each, TranslatedModel)}
    if torch.bfloat16 in {each.dtype for each in (*model.parameters(), *model.buffers())} or "bfloat16" in autocasts:
        raise ValueError(
            "expected float16, float32 or float64 for ONNX, got bfloat16, which few of its operators take: "
            "use model.float(), without the option autocast"
        )
    with evaluating(model):
        module, example, input_names, output_names = _traceable(model, batch_size)
        program = torch.onnx.export(
            module,
            example,
            input_names=input_names,
            output_names=output_names,
            dynamic_shapes=_free_batch(module, example),
            custom_translation_table={
                torch.ops.aten.sort.stable: _onnx_stable_sort(),
                torch.ops.aten._adaptive_avg_pool3d.default: _onnx_average_of_volumes(),
            },
            dynamo=True,
            verbose=False,
        )
        assert program is not None
        for node in program.model.graph:  # the exporter of torch 2.13 gives the first output of an LSTM a wrong shape
            for output in node.outputs:
                output.shape = output.shape if output.uses() or output.is_graph_output() else None
        _check_onnx(program.model_proto, path)
        _compare_onnx(program.model_proto, module, example, path)
    program.save(str(path), external_data=False)
    for source, suffix in ((model.columns, ".columns.json"), (model.arrays, ".arrays.json")):
        if source is not None:
            Path(path).with_suffix(suffix).write_text(json.dumps(source.to_dict(), indent=1) + "\n")


def _check_onnx(content: Any, path: str | Path) -> None:
    """Raise ValueError for an invalid ONNX model."""
    from onnx import checker, shape_inference  # pyright: ignore[reportMissingImports]

    try:
        checker.check_model(content, full_check=True)
    except (checker.ValidationError, shape_inference.InferenceError) as error:
        raise ValueError(f"{path}: expected a valid ONNX model, got: {' '.join(str(error).split())}") from None


@torch.no_grad()
def _compare_onnx(content: Any, module: nn.Module, example: tuple[Tensor, ...], path: str | Path) -> None:
    """Compare the outputs of an ONNX model with those of the module, on random inputs, where onnxruntime is installed.

    Not compared: a model with operators or types that onnxruntime lacks, or above the 2 GB of a message.

    Raises:
        ValueError: an output differs by more than rounding.
    """
    if find_spec("onnxruntime") is None or content.ByteSize() > _MAX_MESSAGE:
        return
    import onnxruntime  # pyright: ignore[reportMissingImports]

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(x.shape, generator=generator).to(x) if x.is_floating_point() else x.clone() for x in example]
    try:
        session = onnxruntime.InferenceSession(content.SerializeToString(), options, ["CPUExecutionProvider"])
    except Exception:  # it lacks an operator or a type
        return
    names = [each.name for each in session.get_inputs()]
    try:
        found = session.run(None, {name: x.cpu().numpy() for name, x in zip(names, inputs, strict=True)})
    except Exception as error:  # of many kinds
        reason = " ".join(str(error).split())
        raise ValueError(f"{path}: expected an ONNX model that runs, got {reason}; see export_program") from None
    outputs = module(*inputs)
    for name, ours, theirs in zip(
        (each.name for each in session.get_outputs()),
        [outputs] if isinstance(outputs, Tensor) else outputs,
        found,
        strict=True,
    ):
        expected, values = ours.double().cpu(), torch.as_tensor(theirs).double()
        limit = _ROUNDING[ours.dtype] * (1 + float(expected.abs().nan_to_num(0, 0, 0).max()))
        if values.shape != expected.shape or not torch.allclose(values, expected, 0, limit, equal_nan=True):
            first = expected.flatten()[:1].tolist(), values.flatten()[:1].tolist()
            raise ValueError(
                f"{path}: expected an ONNX model with the outputs of the model, got others at {name} (such as "
                f"{first[1]} for {first[0]}): the exporter of torch writes an operation wrongly; see export_program"
            )


def _onnx_stable_sort() -> Callable[..., Any]:
    """Return aten.sort.stable, missing in the ONNX exporter of torch 2.13, as TopK of all (ties: lower index)."""
    from onnxscript import opset18  # pyright: ignore[reportMissingImports]

    op: Any = opset18

    def stable_sort(values: Any, stable: bool = True, dim: int = -1, descending: bool = False) -> Any:
        assert stable
        count = op.Gather(op.Shape(values), op.Constant(value_ints=[dim]))
        return op.TopK(values, count, axis=dim, largest=int(descending), sorted=1)

    return stable_sort


def _onnx_average_of_volumes() -> Callable[..., Any]:
    """Return aten._adaptive_avg_pool3d, missing there too, as one product with a matrix of averages per axis."""
    from onnx import numpy_helper  # pyright: ignore[reportMissingImports]
    from onnxscript import opset18  # pyright: ignore[reportMissingImports]

    op: Any = opset18

    def average(values: Any, sizes: Sequence[int]) -> Any:
        matrices = []
        for length, count in zip(values.shape[2:], sizes, strict=True):
            row = torch.eye(length)[:, None]  # each place as a signal: its share of every window
            matrix = numpy_helper.from_array(torch.nn.functional.adaptive_avg_pool1d(row, count)[:, 0].numpy())
            matrices.append(op.CastLike(op.Constant(value=matrix), values))
        return op.Einsum(values, *matrices, equation="bcdhw,dx,hy,wz->bcxyz")

    return average


class StepModule(nn.Module):
    """One time step as a pure function: (inputs, state tensors [B, *shape] ...) -> (y, state tensors ...)."""

    def __init__(self, model: TranslatedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the output and the state after the step, flat."""
        count = len(self.model.plan.slots)
        y, state = self.model.step(*tensors[:-count], tensors[-count:])
        return (*(y if isinstance(y, tuple) else (y,)), *state)


def _traceable(
    model: TranslatedModel | ModelSet, batch_size: int
) -> tuple[nn.Module, tuple[Tensor, ...], list[str], list[str]]:
    """Return a module without hidden state in eval mode, its arguments as zeros, and names of inputs and outputs."""
    if batch_size < 2:
        raise ValueError(f"batch_size: expected >= 2 (tracing treats 1 as a constant), got {batch_size}")
    first = model.translated if isinstance(model, ModelSet) else model
    plan, slots = first.plan, first.plan.slots
    example = (*first.zeros(batch_size), *(first.reference.new_zeros(batch_size, *slot.shape) for slot in slots))
    several = len(plan.outputs) > 1 and not plan.is_concatenated
    outputs = [f"y{node_id}" for node_id, _ in plan.outputs] if several else ["y"]
    inputs = [name for name, _ in plan.arguments] if len(plan.arguments) > 1 else ["x"]
    states = [slot_name(slot.kind, slot.node_id) for slot in slots]
    module = StepModule(first) if slots else model
    return module.eval(), example, [*inputs, *states], [*outputs, *(f"next_{state}" for state in states)]


def _free_batch(module: nn.Module, example: tuple[Tensor, ...]) -> tuple[object, ...]:
    batch = {0: Dim("batch")}
    if isinstance(module, StepModule | ModelSet):  # forward(*inputs)
        return (tuple(batch for _ in example),)
    return tuple(batch for _ in example)


NUM_WARM_UP = 5


@dataclass(frozen=True)
class Latency:
    """Seconds per forward call, over many calls in eval mode without autograd."""

    median_seconds: float
    fastest_seconds: float
    slowest_seconds: float
    num_calls: int
    batch_size: int


def measure_latency(model: TranslatedModel, *, batch_size: int = 1, num_calls: int = 100) -> Latency:
    """Time `num_calls` forward calls on zeros after a warm-up; the model's state is unchanged."""
    if batch_size < 1 or num_calls < 1:
        raise ValueError(f"expected batch_size and num_calls >= 1, got {batch_size} and {num_calls}")
    inputs = model.zeros(batch_size)
    with evaluating(model), torch.no_grad():
        seconds = [_timed(model, inputs) for _ in range(NUM_WARM_UP + num_calls)][NUM_WARM_UP:]
    return Latency(median(seconds), min(seconds), max(seconds), num_calls, batch_size)


def _timed(model: TranslatedModel, inputs: tuple[Tensor, ...]) -> float:
    start = perf_counter()
    model.first_step(*inputs)
    if inputs[0].is_cuda:
        torch.cuda.synchronize(inputs[0].device)  # forward only queues kernels
    return perf_counter() - start
