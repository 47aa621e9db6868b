"""Scores of choices in a user's own code: a function builds a module, which is trained, or returns the score."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from gflownet.errors import UserError
from gflownet.evaluation.candidates.tensor_task import TensorTask
from gflownet.evaluation.config import TaskConfig
from gflownet.evaluation.data.datasets import splits_of, standardised, with_standard_targets
from gflownet.evaluation.data.examples import Splits
from gflownet.evaluation.store.fingerprint import data_digest, function_digest
from gflownet.evaluation.task import GFNTask, Score
from gflownet.graphs.assignment import Assignment
from gflownet.options import option
from gflownet.plugins import load_function


@dataclass
class ChoicesTaskConfig:
    """The user's functions, of which either `score` or `build` is needed, and the data."""

    score: str = option("", "module:function of (choices, seed): the score of a setting, in [0, 1]")
    test: str = option("", "score: module:function of (choices, seed): the test score in the final report; empty: none")
    build: str = option("", "module:function of the choices: an nn.Module, which is trained on the data")
    data: str = option("digits", "build: name of a data set, a path (npz, CSV, IDX) or module:callable")
    kind: Literal["auto", "classes", "numbers"] = option("auto", "build: the targets are classes or numbers")
    duplicates: Literal["refuse", "together", "keep"] = option(
        "refuse", "build: examples of one split that are in another: refuse more than 5 %, together, or keep"
    )
    normalise: Literal["none", "channel"] = option(
        "none", "build: channel: mean 0 and deviation 1 of each channel or column over the training examples"
    )
    data_test: str = option("", "build: path of test data; empty: those of the data, or a fifth of them")


class ChoicesTask(TensorTask):
    """Scores a setting of `env.choices` by a function of the user's, or by training the module that one builds."""

    Config = ChoicesTaskConfig
    environment = "choices"

    def __init__(self, config: TaskConfig) -> None:
        options = config.task_options
        if bool(options.score) == bool(options.build):
            got = "both" if options.score else "none"
            raise UserError(
                "task_options: expected either score=module:function of (choices, seed) or build=module:function of "
                f"choices, got {got}"
            )
        name = "build" if options.build else "score"
        self._function: Callable[..., Any] = load_function(f"task_options.{name}", options[name])
        self._test_function = load_function("task_options.test", options.test) if options.test else None
        self._trains = bool(options.build)
        if self._trains:
            super().__init__(config)
        else:
            GFNTask.__init__(self, config)
            self.max_score = 1.0

    @property
    def score_name(self) -> str:  # type: ignore[override]
        return super().score_name if self._trains else GFNTask.score_name

    @property
    def metric_name(self) -> str:  # type: ignore[override]
        return super().metric_name if self._trains else ""

    def data(self) -> Splits:
        splits = splits_of(self.config)
        splits = with_standard_targets(splits)
        return standardised(splits, per_channel=True) if self.config.task_options.normalise == "channel" else splits

    def to_device(self, device: torch.device) -> None:
        super().to_device(device) if self._trains else GFNTask.to_device(self, device)

    def build_model(self, candidate: Assignment) -> nn.Module:
        """Return the untrained module of a setting."""
        model = self._function(candidate.as_dict())
        if not isinstance(model, nn.Module):
            raise ValueError(f"task_options.build: expected an nn.Module, got {type(model).__name__}")
        self._check_outputs(model)
        return model

    def _check_outputs(self, model: nn.Module) -> None:
        """Raise ValueError unless a module predicts the targets; it sets the sizes of lazy layers."""
        inputs = next(iter(self.train.in_order()))[0][:2].cpu()
        with torch.no_grad():
            outputs = model.eval()(inputs)
        model.train()
        targets = self.train.targets
        shape = [len(inputs), *targets.shape[1:], *([] if targets.is_floating_point() else [self.num_outputs])]
        got = list(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
        is_usual = ":" not in self.config.evaluation.training.loss
        if not isinstance(outputs, torch.Tensor) or (is_usual and got != shape):
            raise ValueError(
                f"task_options.build: expected a module with outputs {shape} for inputs {list(inputs.shape)}, got {got}"
            )

    def cost(self, graph: Assignment) -> None:
        """Return None: the size of a module is known when it is built."""
        return None

    def evaluate(self, graph: Assignment, *, seed: int) -> Score:
        """Return the score of a setting."""
        return super().evaluate(graph, seed=seed) if self._trains else self._called(self._function, graph, seed)

    @property
    def has_test(self) -> bool:
        """Whether there is a function for test scores, or a module with test data."""
        return self._trains or self._test_function is not None

    def test(self, graph: Assignment, *, seed: int) -> float | None:
        """Return the test score of a setting, None where scores come from a function without one for tests."""
        if self._trains:
            return super().test(graph, seed=seed)
        return None if self._test_function is None else self._called(self._test_function, graph, seed).value

    def description(self, candidate: Assignment) -> Mapping[str, Any]:
        """Return the name of the function that builds the module, for `gflownet.load`; empty for other functions."""
        return {"module": {"build": self.config.task_options.build}} if self._trains else {}

    @property
    def trains_seeds_together(self) -> bool:
        """Whether seeds train as one model; no scores of a function."""
        return self._trains and super().trains_seeds_together

    def remarks(self) -> Sequence[str]:
        return super().remarks() if self._trains else ()

    def fingerprint(self) -> str:
        """Return a digest of the code behind the function, and of the data."""
        code = function_digest(self._function)
        return data_digest([super().fingerprint(), code]) if self._trains else code

    def _called(self, function: Callable[..., Any], graph: Assignment, seed: int) -> Score:
        """Return the result of a function: a number, or a Score with parameters and metrics."""
        result = function(graph.as_dict(), seed)
        return result if isinstance(result, Score) else Score(result)  # checked like the scores of every task
