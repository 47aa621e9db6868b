"""Numeric features of architectures that need no training: zero-cost proxies and sizes.

Letters: B architectures, D proxies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gflownet.data.uniform import uniform_states
from gflownet.errors import UserError
from gflownet.evaluation.examples import Split
from gflownet.evaluation.task import GFNTask
from gflownet.evaluation.tensor_task import TensorTask
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates
from gflownet.search.zero_cost import MISSING, MODEL_PROXIES
from gflownet.training.random_states import seeded
from gflownet.workers.process import stream_seed

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
        """Return the proxies of one architecture in the order of their names."""
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
