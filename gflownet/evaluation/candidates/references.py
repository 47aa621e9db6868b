"""References of a TensorTask: scikit-learn's estimators and known networks on the same splits and seeds."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import nn

from gflownet.errors import counted
from gflownet.evaluation.candidates.metrics import constant_prediction
from gflownet.evaluation.candidates.tensor_task import TensorTask
from gflownet.evaluation.candidates.trainer import Length, Measure, ModelTraining, constant_batches
from gflownet.evaluation.data.examples import Split
from gflownet.evaluation.presentation import Reference, ReferenceMethod, joined
from gflownet.evaluation.store.fingerprint import context_of
from gflownet.files import cached
from gflownet.operations.tensor_shape import Layout
from gflownet.training.random_states import seeded

_SMALLEST_PROBABILITY = 1e-12
# Training examples from which a tenth of them is enough to tell when a network no longer improves.
_MIN_HELD_OUT = 1_000
# Packages beside scikit-learn, with the options that keep them quiet.
_QUIET = {"catboost": {"verbose": False, "allow_writing_files": False}, "tabpfn": {}}
OPTIONAL = tuple(_QUIET)


def estimator_method(task: TensorTask, name: str, build: Callable[[int], Any]) -> ReferenceMethod:
    """Return a scikit-learn estimator on flat inputs; it has no scores for examples that are a Dataset.

    Args:
        task: its splits and its metric.
        name: of the reference.
        build: returns an estimator for a seed.
    """

    def of_seed(seed: int) -> Reference:
        assert isinstance(task.train, Split)
        estimator = build(seed)
        is_network = {"hidden_layer_sizes", "early_stopping"} <= estimator.get_params().keys()
        if is_network and len(task.train) >= _MIN_HELD_OUT:
            estimator.set_params(max_iter=_num_epochs(task, name, build))
        estimator = _fitted(estimator, task.train)
        size = _num_parameters(estimator)
        validation, test = (
            measure.score(_value(estimator, measure, task.num_outputs)) for measure in (task.measure, task.test_measure)
        )
        if size is not None:
            validation = task.value(validation, size)
        module, kind = type(estimator).__module__.partition("._")[0], type(estimator).__name__
        code = f"from {module} import {kind}; model = {kind}().fit(inputs, targets)"
        return Reference(name, [validation], [test], size, code)

    def result(seeds: Sequence[int]) -> Reference | None:
        return _of_seeds(task, name, of_seed, seeds) if isinstance(task.train, Split) else None

    return ReferenceMethod(name, result)


def _num_epochs(task: TensorTask, name: str, build: Callable[[int], Any]) -> int:
    """Return the epochs after which a network no longer improves on a tenth of the training examples, held out once.

    All of them are trained on for so long: with a tenth less, the networks are worse.
    """

    def computed() -> bytes:
        assert isinstance(task.train, Split)
        estimator = build(task.config.evaluation.split_seed).set_params(early_stopping=True)
        return str(_fitted(estimator, task.train).n_iter_).encode()

    key = json.dumps([*_key(task, name), "epochs"])
    return cached("references.json", key, compute=computed, parse=int)


def model_method(task: TensorTask, name: str, build: Callable[..., nn.Module], *arguments: int) -> ReferenceMethod:
    """Return the method `build(*arguments)`, trained as the candidates of the final stage are."""
    num_epochs = task.config.final.epochs or task.max_fidelity

    def of_seed(seed: int) -> Reference:
        with seeded(seed):
            training = ModelTraining(build(*arguments), torch.Generator().manual_seed(seed))
            task.trainer.continue_training(training, Length(num_epochs, num_epochs), validation=task.measure)
        size = task.num_parameters(training.model)
        call = f"{build.__name__}({', '.join(map(str, arguments))})"
        code = f"from {build.__module__} import {build.__name__}; model = {call}"
        validation, test = task.value(task.quality(training.values), size), task.test_score(training.model)
        return Reference(f"{name}, {counted(num_epochs, 'epoch')}", [validation], [test], size, code)

    return ReferenceMethod(name, lambda seeds: _of_seeds(task, name, of_seed, seeds))


def _of_seeds(task: TensorTask, name: str, of_seed: Callable[[int], Reference], seeds: Sequence[int]) -> Reference:
    """Return the results of a method, those of earlier runs from the cache of the user."""

    def cached_of(seed: int) -> Reference:
        def computed() -> bytes:
            return json.dumps(asdict(of_seed(seed))).encode()

        return cached("references.json", json.dumps([*_key(task, name), seed]), compute=computed, parse=_parsed)

    return joined([cached_of(seed) for seed in seeds])


def _parsed(content: bytes) -> Reference:
    return Reference(**json.loads(content))


def _key(task: TensorTask, name: str) -> list[Any]:
    """Return all that results of a method depend on but the seed: data, code, options, libraries, kind of machine."""
    versions = [platform.python_version(), platform.machine(), torch.__version__, np.__version__]
    for package in ("scikit-learn", *OPTIONAL):
        with suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{package} {importlib.metadata.version(package)}")
    return [name, context_of(task), task.config.final.epochs, str(task.device), *versions]


def methods_at_positions(task: TensorTask) -> Sequence[ReferenceMethod]:
    """Return the best constant prediction, and a linear layer at each position, trained."""
    constant = constant_prediction(task.train.targets, task.num_outputs, quantile=task.measure.metric.quantile)
    validation, test = (
        [each.score(each.value_of(constant_batches(constant, each.examples.targets, axis=each.metric.axis)))]
        for each in (task.measure, task.test_measure)
    )
    name = "mean at each position" if task.train.targets.is_floating_point() else "most frequent class"
    methods = [ReferenceMethod(name, lambda seeds: Reference(name, validation * len(seeds), test * len(seeds)))]
    inputs, num = task.input_shape, task.num_outputs
    match inputs.layout:
        case Layout.TOKENS:
            num_tokens = 1 + max(int(tokens.max()) for split in task.splits_in_use for tokens, *_ in split.in_order())
            build, sizes = nn.Embedding, (num_tokens, num)
        case Layout.SEQUENCE:
            build, sizes = nn.Linear, (inputs.channels, num)
        case _:
            build = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[len(inputs.positions) - 1]
            sizes = (inputs.channels, num, 1)
    if inputs.positions == task.output_shape.positions:
        methods.append(model_method(task, "linear at each position", build, *sizes))
    return methods


def classifier_or_regressor(task: TensorTask, classifier: str, regressor: str) -> Callable[[int], Any]:
    """Return a builder of the estimator that fits the targets, by seed: `module.Class` of scikit-learn or OPTIONAL."""
    is_classes = not task.train.targets.is_floating_point()
    module, _, class_name = (classifier if is_classes else regressor).rpartition(".")

    def build(seed: int) -> Any:
        from importlib import import_module

        package = import_module(module if module in OPTIONAL else f"sklearn.{module}")
        estimator = getattr(package, class_name)(random_state=seed, **_QUIET.get(module, {}))
        options: dict[str, Any] = {}
        if task.config.evaluation.training.class_weights != "none":
            options["class_weight"] = task.config.evaluation.training.class_weights
        if task.measure.metric.quantile is not None:
            options |= {"loss": "quantile", "quantile": task.measure.metric.quantile}
        # Of estimators that have all of them: HistGradientBoosting predicts quantiles, a forest does not.
        return estimator.set_params(**options) if options.keys() <= estimator.get_params().keys() else estimator

    return build


def _fitted(estimator: Any, data: Split) -> Any:
    """Return a fitted estimator; one thread is faster than several on small data."""
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    is_column = data.targets.ndim == 2 and data.targets.shape[1] == 1
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the default number of iterations
        options = {} if data.weights is None else {"sample_weight": data.weights.cpu().numpy()}
        targets = (data.targets.squeeze(1) if is_column else data.targets).cpu().numpy()
        return estimator.fit(_features(data), targets, **options)


def _value(estimator: Any, measure: Measure, num_outputs: int) -> float:
    data = measure.examples
    assert isinstance(data, Split)
    targets, *weights = (each.cpu() for each in data.tensors[1:])
    if targets.is_floating_point():
        outputs = torch.from_numpy(np.asarray(estimator.predict(_features(data)))).reshape(targets.shape)
        return measure.value_of([(outputs.to(targets.dtype), targets, *weights)])
    probabilities = np.full((len(data), num_outputs), _SMALLEST_PROBABILITY)
    probabilities[:, estimator.classes_] = np.maximum(estimator.predict_proba(_features(data)), _SMALLEST_PROBABILITY)
    return measure.value_of([(torch.from_numpy(np.log(probabilities)), targets, *weights)])


def _features(data: Split) -> np.ndarray:
    return data.inputs.flatten(1).cpu().numpy()


def _num_parameters(estimator: Any) -> int | None:
    """Return the number of weights of a network, None for other estimators."""
    if not hasattr(estimator, "coefs_"):
        return None
    return sum(values.size for values in (*estimator.coefs_, *estimator.intercepts_))
