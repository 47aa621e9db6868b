"""Numeric features of architectures that need no training: zero-cost proxies and sizes.

A zero-cost proxy correlates with the score of a candidate. From a forward or a backward pass of its untrained model it
takes milliseconds; a training takes seconds to hours. Larger is better by construction, on a logarithmic scale.

Letters: B architectures or examples of a fixed batch, D proxies, A binary codes of activations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from gflownet.data.sampler import uniform_states
from gflownet.errors import UserError
from gflownet.evaluation.candidates.tensor_task import TensorTask
from gflownet.evaluation.candidates.trainer import outputs_of
from gflownet.evaluation.data.examples import Split
from gflownet.evaluation.task import GFNTask
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates
from gflownet.training.random_states import seeded
from gflownet.workers.process import stream_seed

MISSING = math.nan
_EIGENVALUE_FLOOR = 1e-5  # Mellor et al. 2020, section 4
# Operators of activation functions; the sign of their first argument is a binary code.
_ACTIVATIONS = {
    *("relu", "leaky_relu", "elu", "gelu", "silu", "mish", "softplus", "hardtanh", "hardswish", "hardsigmoid", "tanh"),
    *("sigmoid", "log_sigmoid_forward", "_prelu_kernel", "rrelu_with_noise"),
}


def naswot(model: nn.Module, inputs: Tensor) -> float:
    """Return log det(I + K), K[i, j] = number of activations with the same sign for examples i and j.

    NASWOT (Mellor et al. 2021, "Neural Architecture Search without Training", eq. 2). The identity, which the paper
    does not add, keeps the value finite for examples with equal codes.
    """
    model.train()
    with torch.no_grad(), _ActivationKernel(len(inputs)) as kernel:
        outputs_of(model, inputs)
    return float(torch.linalg.slogdet(kernel.matrix + torch.eye(len(inputs), dtype=torch.float64)).logabsdet)


def jacov(model: nn.Module, inputs: Tensor) -> float:
    """Return -log(sum of log v + 1 / v), v: eigenvalues of the correlations of the examples' input gradients.

    The first version of the same paper (Mellor et al. 2020, arXiv:2006.04647v1, eq. 3), on a logarithmic scale.
    """
    model.train()
    leaves = inputs.detach().clone().requires_grad_()
    outputs = outputs_of(model, leaves)
    (gradients,) = torch.autograd.grad(outputs.sum(), leaves, allow_unused=True)
    if gradients is None:
        return MISSING
    correlations = torch.corrcoef(gradients.flatten(1).double())  # [B, B]
    if not bool(correlations.isfinite().all()):
        return MISSING
    eigenvalues = torch.linalg.eigvalsh(correlations).clamp(min=0) + _EIGENVALUE_FLOOR
    return -math.log(float((eigenvalues.log() + 1 / eigenvalues).sum()))


def synflow(model: nn.Module, inputs: Tensor) -> float:
    """Return log(1 + sum |w dR/dw|), R: sum of the outputs for inputs of ones with absolute weights.

    SynFlow (Tanaka et al. 2020, eq. 1) over the weight matrices and kernels, as in Abdelfattah et al. 2021. In eval
    mode a new batch norm is the identity. In float64: R is a product over the layers. Weights, dtype and mode are
    restored.
    """
    with _absolute_doubles(model):
        model.eval()
        ones = torch.ones_like(inputs[:1])
        outputs = outputs_of(model, ones.double() if ones.is_floating_point() else ones)
        weights = [weight for weight in model.parameters() if weight.requires_grad and weight.ndim > 1]
        gradients = torch.autograd.grad(outputs.sum(), weights, allow_unused=True) if weights else ()
        flows = ((w * g).detach().abs().sum() for w, g in zip(weights, gradients, strict=True) if g is not None)
        total = math.fsum(float(flow) for flow in flows)
    return math.log1p(total)


# Proxies that need a model, by name.
MODEL_PROXIES: Mapping[str, Callable[[nn.Module, Tensor], float]] = {
    "naswot": naswot,
    "jacov": jacov,
    "synflow": synflow,
}


class _ActivationKernel(TorchDispatchMode):
    """Adds up, over all activation functions of a forward pass, how many codes two examples share."""

    def __init__(self, num_examples: int) -> None:
        super().__init__()
        self.matrix = torch.zeros(num_examples, num_examples, dtype=torch.float64)  # [B, B]

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: Mapping[str, Any] | None = None
    ) -> Any:
        if function.overloadpacket.__name__.removesuffix("_") in _ACTIVATIONS:  # in place or not
            values = arguments[0]
            if values.ndim > 1 and len(values) == len(self.matrix):
                self._add(values)
        return function(*arguments, **(keywords or {}))

    def _add(self, values: Tensor) -> None:
        codes = (values > 0).flatten(1).float()  # [B, A]; products are exact up to A = 2^24
        shared = (codes @ codes.T).double()
        num_positive = shared.diagonal()
        # Both positive, and both not: A - p_i - p_j + shared.
        self.matrix += 2 * shared + codes.shape[1] - num_positive[:, None] - num_positive[None, :]


@contextmanager
def _absolute_doubles(model: nn.Module) -> Iterator[None]:
    """Give a model absolute float64 weights, and restore weights, dtypes and mode at the end."""
    tensors = [*model.parameters(), *model.buffers()]
    stored, is_training = [(tensor, tensor.data) for tensor in tensors], model.training
    try:
        for tensor in tensors:
            if tensor.is_floating_point():
                tensor.data = tensor.data.double().abs()
        yield
    finally:
        for tensor, data in stored:
            tensor.data = data
        model.train(is_training)


KEY = "search.surrogate.proxies"
SIZES = ("parameters", "multiply_adds")
_MAX_MODELS = 2_000  # of a space that is scored as a whole: a minute
_NUM_EXAMPLES = 32  # of the batch that all models see
_NUM_REFERENCES = 32  # random architectures that determine mean and deviation of each proxy
_BOUND = 4.0  # of a standardised proxy: one outlier does not determine the scale of a model
_CONSTANT = 1e-9  # relative deviation below which a proxy is constant
_BATCH, _REFERENCES, _WEIGHTS = range(3)  # random streams


class ProxyFeatures:
    """Standardised proxies of terminal states, computed once per architecture.

    Means and deviations are those of random architectures, so that the features of an architecture never change. A
    proxy that cannot be computed has the mean, 0.
    """

    def __init__(self, env: Environment, task: GFNTask, names: Sequence[str], *, seed: int) -> None:
        """Keep the components.

        Args:
            env: builds the architectures.
            task: builds their models, and computes their sizes.
            names: of MODEL_PROXIES and SIZES.
            seed: of the examples, the first weights and the random architectures.

        Raises:
            UserError: an unknown name, or a task without models or sizes.
        """
        check_proxies(names, task)
        self.env, self.names = env, tuple(names)
        self._task, self._seed = task, seed
        self._values: dict[int, list[float]] = {}  # by code
        self._inputs: Tensor | None = None
        self._error: Exception | None = None  # of the last proxy that could not be computed

    def __call__(self, states: GraphStates) -> Tensor:
        """Return the standardised proxies [B, D] float64 of terminal states."""
        mean, deviation = self._scale
        return ((self.raw(states) - mean) / deviation).nan_to_num(0.0).clamp(-_BOUND, _BOUND)

    def raw(self, states: GraphStates) -> Tensor:
        """Return the proxies [B, D] float64, NaN where one cannot be computed."""
        codes = self.env.identify(states).tolist()
        for index, code in enumerate(codes):
            if code not in self._values:
                self._values[code] = self._proxies(self.env.terminal(states, index))
        rows = [self._values[code] for code in codes]
        return torch.tensor(rows, dtype=torch.float64).reshape(len(codes), len(self.names))

    def affordable(self, num: int) -> int:
        """Return the number of architectures, up to `num`, of which all proxies can be computed at once."""
        return min(num, _MAX_MODELS) if any(name in MODEL_PROXIES for name in self.names) else num

    def _proxies(self, candidate: Any) -> list[float]:
        values: dict[str, float] = {}
        try:
            cost = self._task.cost(candidate)
            if cost is not None:
                values = {"parameters": math.log1p(cost.num_parameters), "multiply_adds": math.log1p(cost.flops / 2)}
        except ValueError as error:  # a candidate whose evaluation fails, too
            self._error = error
        if isinstance(self._task, TensorTask) and not set(self.names) <= set(values):
            with seeded(stream_seed(self._seed, _WEIGHTS) % 2**31):
                values = {**self._of_model(self._task, candidate), **values}
        return [values.get(name, MISSING) for name in self.names]

    def _of_model(self, task: TensorTask, candidate: Any) -> dict[str, float]:
        """Return the proxies of an untrained model; those that fail are left out."""
        values: dict[str, float] = {}
        try:
            model = task.build_model(candidate)
            values["parameters"] = math.log1p(task.num_parameters(model))
            for name in self.names:
                if name in MODEL_PROXIES:
                    values[name] = MODEL_PROXIES[name](model, self._examples(task))
        except Exception as error:  # of a user's module: one without gradients, or that refuses inputs of ones
            self._error = error
        return {name: value for name, value in values.items() if math.isfinite(value)}

    @cached_property
    def _scale(self) -> tuple[Tensor, Tensor]:
        """Mean and deviation [D] of random architectures. Raises UserError for a proxy that none of them has."""
        generator = torch.Generator().manual_seed(stream_seed(self._seed, _REFERENCES))
        values = self.raw(uniform_states(self.env, _NUM_REFERENCES, generator=generator))
        is_missing = values.isnan().all(0).tolist()
        if any(is_missing):
            name, reason = self.names[is_missing.index(True)], f": {self._error}" if self._error else ""
            raise UserError(f"{KEY}: expected {name} of some random architectures, got none{reason}")
        return mean_and_deviation(values)

    def _examples(self, task: TensorTask) -> Tensor:
        """Return inputs of random training examples, the same for all models."""
        if self._inputs is not None:
            return self._inputs
        train, generator = task.train, torch.Generator().manual_seed(stream_seed(self._seed, _BATCH))
        order = torch.randperm(len(train), generator=generator)[:_NUM_EXAMPLES]
        inputs = train.inputs[order] if isinstance(train, Split) else train.batch(order.tolist())[0]
        self._inputs = inputs
        return inputs


def check_proxies(names: Sequence[str], task: GFNTask) -> None:
    """Raise UserError for an unknown or repeated proxy, or one that the task has no model or size for."""
    known = (*MODEL_PROXIES, *SIZES)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UserError(f"{KEY}: expected some of {', '.join(known)}, got {unknown[0]!r}")
    if len(set(names)) < len(names):
        raise UserError(f"{KEY}: expected different names, got {', '.join(names)}")
    if isinstance(task, TensorTask) and task.max_fidelity:  # a task of choices without data trains no models
        return
    of_model = [name for name in names if name in MODEL_PROXIES]
    if of_model:
        raise UserError(f"{KEY}: expected a task that trains models on examples for {of_model[0]}, got {_name(task)}")
    if names and type(task).cost is GFNTask.cost:
        raise UserError(f"{KEY}: expected a task that defines cost for {names[0]}, got {_name(task)}")


def mean_and_deviation(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation [D] of the finite values of each column of [n, D]; 1 for a constant one."""
    mean = values.nanmean(0)
    deviation = (values - mean).square().nanmean(0).sqrt()
    return mean, torch.where(deviation > _CONSTANT * (1 + mean.abs()), deviation, 1.0)


def _name(task: GFNTask) -> str:
    return f"task={task.config.task}"
