"""Tasks on tensors: the model of a candidate is trained on examples and scored on validation data."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import groupby
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import nn

from gflownet.errors import UserError, with_summary
from gflownet.evaluation.candidates.metrics import (
    FOR_UNBALANCED,
    balanced_weights,
    build_loss,
    build_metric,
    original_units,
    weighted,
)
from gflownet.evaluation.candidates.trainer import (
    CandidateDivergedError,
    Length,
    ModelTrainer,
    ModelTraining,
    build_measure,
    loss_limit,
    outputs_of,
)
from gflownet.evaluation.config import EvaluationConfig, TaskConfig, TrainingConfig
from gflownet.evaluation.data.checks import check_splits
from gflownet.evaluation.data.examples import (
    Examples,
    Split,
    Splits,
    check_augmentation,
    in_columns,
    input_shape,
    is_classification,
    labelled_classes,
    output_shape,
)
from gflownet.evaluation.store.fingerprint import data_digest, function_digest
from gflownet.evaluation.task import CandidateTraining, Cost, GFNTask, Score, soft_size_objective
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.operations.tensor_shape import Layout
from gflownet.plugins import load_function
from gflownet.training.precision import synchronize
from gflownet.training.random_states import seeded
from gflownet.translation import GraphOutline, can_stack, inherit_weights, to_pytorch_model

# Forward passes whose median is the latency. The median varied by 3 to 11 % with 20 passes, by 0.3 to 8 % with 100 (a
# few milliseconds) and by 0.3 to 1 % with 400.
NUM_TIMED_CALLS = 100
LATENCY = "latency"
# Entries of the state of a candidate that begins with the weights of another one, and metrics of its row: the share of
# its weights that are from there, and its epochs.
PARENT, WEIGHTS = "parent", "weights"
INHERITED, EPOCHS = "inherited_share", "epochs"
# Share of the epochs of an inherited training at a share of weights of 1, what it grows by to a share of 0, and its
# least.
_EPOCHS, _FURTHER_EPOCHS, _LEAST_EPOCHS = 0.12, 0.36, 0.15
# Examples of the largest class per example of the smallest from which classes are called unbalanced.
_UNBALANCED = 4
_NUM_WARM_UP = 5
_VOCABULARIES = {"embedding": "vocabulary_size", "torch.nn:Embedding": "num_embeddings"}


@dataclass(frozen=True)
class Start:
    """A candidate and the saved training that it continues."""

    candidate: Any
    seed: int
    state: Mapping[str, Any] | None = None


class TensorTraining(CandidateTraining):
    """The training of one candidate of a TensorTask."""

    def __init__(self, task: TensorTask, candidate: Any, training: ModelTraining) -> None:
        self._task, self._candidate, self._training = task, candidate, training
        self.fidelity, self.model = training.num_epochs, training.model
        size = task.num_parameters(training.model)
        values = training.values
        self.curve = tuple(task.value(task.quality(values[: end + 1]), size) for end in range(len(values)))

    def score(self) -> Score:
        return self._task.score_of(self._candidate, self._training)

    def test(self) -> float:
        return self._task.test_score(self._training.model)

    def state_dict(self) -> dict[str, Any]:
        return self._training.state_dict()


class TensorTask(GFNTask):
    """Train the model of a candidate on training examples and score it by a metric on validation examples.

    A subclass defines `data`, and `build_model` and `cost` for candidates other than computation graphs.
    """

    objectives = ("accuracy", "parameters", "flops", LATENCY)  # of a task, the name of its metric comes first

    def __init__(self, config: TaskConfig) -> None:
        self.config = config  # for `data`, before the names of objectives are known
        self._evaluation = plain_evaluation(config.evaluation)
        self.max_fidelity = self._evaluation.num_epochs
        data = self.data()
        self.summary = data.summary
        with with_summary(data.summary):
            self._use(data)
            super().__init__(config)

    def _use(self, data: Splits) -> None:
        """Check the examples, and build sizes, trainer and metrics for them."""
        check_splits(data, key="data")
        self.splits_in_use = data.changed(lambda part: replace(part, targets=in_columns(part.targets)))
        self.train, self.validation, self.test_split = self.splits_in_use
        if not self._evaluation.batch_size:
            self._evaluation = replace(self._evaluation, batch_size=automatic_batch_size(len(self.train)))
        self.input_shape = input_shape(self.splits_in_use)
        if self.input_shape.layout is Layout.TOKENS:
            self._check_embeddings()
        is_vector = self.input_shape.layout is Layout.VECTOR
        self.input_sizes = (self.input_shape.num_elements if is_vector else self.input_shape,)
        self.output_shape = output_shape(self.splits_in_use)
        self.num_outputs = self.output_shape.channels
        if self._is_padded and (self.input_shape.layout is not Layout.SIGNAL or self.output_shape.positions):
            got = f"{self.input_shape} and targets {[*self.train.targets.shape]}"
            raise UserError(f"data: expected signals of several lengths with one target each, got {got}")
        self.output_sizes = (self.output_shape if self.output_shape.positions else self.num_outputs,)
        self._choose_memory_format()
        self._build_training()
        self._metric_name = name = self.measure.metric.name
        self.objectives = tuple(name if each == "accuracy" else each for each in self.objectives)
        targets = {each: getattr(self._evaluation, f"target_{each}") for each in ("parameters", "flops", LATENCY)}
        self.costs = {**targets, LATENCY: targets[LATENCY] or 1.0, **self.costs}  # 1 s before the first measurements

    @abstractmethod
    def data(self) -> Splits:
        """Return the examples, the same for the same config; called once."""

    def build_model(self, candidate: Any) -> nn.Module:
        """Return an untrained model of a candidate; first values come from torch's global generator."""
        model = to_pytorch_model(candidate, self.translation_settings)
        self._check_sizes(candidate, model)
        return model

    @property
    def lacks_target(self) -> bool:
        """Return whether the utility of latencies needs `target_latency_of` some architectures."""
        return LATENCY in self.chosen_objectives and not self._evaluation.target_latency

    def target_latency_of(self, candidates: Iterable[Any]) -> float:
        """Make the median latency of some candidates the target, and return it, in seconds."""
        seconds = list[float]()
        for candidate in candidates:
            with suppress(ValueError):  # of a candidate whose evaluation fails, too
                seconds.append(self._measured(LATENCY, candidate, self.build_model(candidate), math.nan))
        target = float(f"{median(seconds):.3g}") if seconds else self.costs[LATENCY]
        self.costs = {**self.costs, LATENCY: target}
        return target

    def to_device(self, device: torch.device) -> None:
        """Move the examples to a device, and train and measure there from now on."""
        super().to_device(device)
        self.train, self.validation, self.test_split = moved = [part.to(device) for part in self.splits_in_use]
        self.splits_in_use = replace(self.splits_in_use, train=moved[0], validation=moved[1], test=moved[2])
        self._build_training()

    def cost(self, graph: Any) -> Cost | None:
        """Return the size of a computation graph's model. Raises ValueError for an invalid graph."""
        return computation_graph_cost(graph, projection=self._evaluation.projection)

    def evaluate(self, graph: Any, *, seed: int) -> Score:
        """Return the score on validation data after training, scaled by size with `evaluation.size_weight`."""
        return self.score_of(graph, self._trained(graph, seed=seed))

    @property
    def trains_seeds_together(self) -> bool:
        """Whether seeds of one graph train as one model; grouped convolutions are fast in channels_last only."""
        options, is_known = self._evaluation, isinstance(self.train, Split)  # a Dataset may draw random numbers
        return is_known and options.memory_format == "channels_last" and options.training.optimizer != "muon"

    def train_many(
        self,
        graphs: Sequence[Any],
        *,
        seeds: Sequence[int],
        fidelity: int,
        schedule: int,
        states: Sequence[Mapping[str, Any] | None],
    ) -> Iterator[CandidateTraining | Exception]:
        """Yield the training of each graph up to an epoch, see GFNTask.train_many."""
        starts = [Start(*start) for start in zip(graphs, seeds, states, strict=True)]
        trainings = self._continued_many(starts, Length(fidelity, schedule))
        for start, training in zip(starts, trainings, strict=True):
            if isinstance(training, CandidateDivergedError) and PARENT in (start.state or {}):  # the parent is to blame
                (training,) = self._continued_many([replace(start, state=None)], self._full)
            yield training if isinstance(training, Exception) else TensorTraining(self, start.candidate, training)

    @torch.inference_mode()
    def outputs(self, graph: Any, weights: Mapping[str, torch.Tensor], *, split: str) -> torch.Tensor:
        """Return the outputs [N, ..., C] of a model with these weights on a split, on the CPU."""
        with seeded(0):
            model = self.build_model(graph).to(self.device).eval()
            model.load_state_dict(weights)
            batches = getattr(self.splits_in_use, split).in_order()
            outputs = torch.cat([outputs_of(model, inputs) for inputs, *_ in batches]).float().cpu()
            return outputs.movedim(self._class_axis or -1, -1)

    def test(self, graph: Any, *, seed: int) -> float:
        """Return the test score of the model that `evaluate` scored, trained again from the same seed."""
        return self.test_score(self._trained(graph, seed=seed).model)

    def test_score(self, model: nn.Module) -> float:
        """Return the metric's score of a trained model on test data, without the size of the model."""
        return self.test_measure.score(self.test_measure.value(model))

    def fingerprint(self) -> str:
        """Return a digest of the examples, and of the code of a user's loss and metric."""
        contents = [part for split in self.splits_in_use for part in _contents(split)]
        options = self._evaluation.training
        functions = [load_function("", name) for name in (options.loss, options.metric) if ":" in name]
        return data_digest([*contents, *map(function_digest, functions)])

    def description(self, candidate: Any) -> Mapping[str, Any]:
        """Return the columns of a table, or the classes and scales of arrays, so that a loaded model predicts."""
        columns, arrays = self.splits_in_use.columns, self.splits_in_use.arrays
        if columns is not None:
            return {"columns": columns.to_dict()}
        if arrays is None:
            return {}
        labels = arrays.target.labels or tuple(range(self.num_outputs if arrays.target.has_classes else 0))
        shaped = replace(arrays, shape=self.input_shape.sizes, target=replace(arrays.target, labels=labels))
        if self.output_shape.positions:
            shaped = replace(shaped, layout=str(self.input_shape.layout), output=self.output_shape.sizes)
        return {"arrays": shaped.to_dict()}

    def remarks(self) -> Sequence[str]:
        """Return a line about unbalanced classes, with the metric and the option that fit them."""
        targets = self.train.targets
        if not is_classification(targets) or self._predicts_tokens or self.measure.metric.name in FOR_UNBALANCED:
            return ()
        targets = labelled_classes(targets)
        counts = torch.bincount(targets, minlength=self.num_outputs)
        ends = int(counts.argmax()), int(counts.argmin())
        if counts[ends[0]] < _UNBALANCED * counts[ends[1]]:
            return ()
        source = self.splits_in_use.columns or self.splits_in_use.arrays
        names = (source.target.labels if source is not None else ()) or range(self.num_outputs)
        shares = ", ".join(f"{100 * int(counts[place]) / len(targets):.3g} % {names[place]}" for place in ends)
        metrics = f"evaluation.training.metric={' or '.join(FOR_UNBALANCED)}"
        return (f"unbalanced classes: {shares}; {metrics} fits them, evaluation.training.class_weights=balanced too",)

    @property
    def translation_settings(self) -> Mapping[str, Any]:
        """The projection of the config, the dtype of the examples, and whether they are padded."""
        example = self.train.example
        dtype = str(example.dtype).removeprefix("torch.") if example.is_floating_point() else "float32"
        padded = {"padded": True} if self._is_padded else {}
        return {"projection": self._evaluation.projection, "dtype": dtype, **padded}

    @property
    def _is_padded(self) -> bool:
        """Whether the last channel of the inputs is the mask of signals of several lengths."""
        return self.splits_in_use.arrays is not None and self.splits_in_use.arrays.is_padded

    def utility(self, objective: str, value: float) -> float:
        """Return the score of the validation metric, or 1 / (1 + cost / target) of a cost: 1/2 at its target."""
        return self.measure.score(value) if objective == self._metric_name else super().utility(objective, value)

    @property
    def score_name(self) -> str:  # type: ignore[override]
        """The validation metric; of one of which less is better, its score."""
        metric, weight = self.measure.metric, self._evaluation.size_weight
        name = f"score of {metric.name}" if metric.smaller_is_better else metric.name
        return f"{name}, scaled by size" if weight else name

    @property
    def metric_name(self) -> str:  # type: ignore[override]
        """The validation metric of which less is better; empty where the score is scaled by size."""
        metric = self.measure.metric
        return metric.name if metric.smaller_is_better and not self._evaluation.size_weight else ""

    def metric_of(self, score: float) -> float:
        """Return the validation metric of a score, NaN for a score without one."""
        return self.measure.metric_of(score) if self.metric_name else math.nan

    def score_of(self, candidate: Any, training: ModelTraining) -> Score:
        """Return the score of a model after its training."""
        quality, size = self.quality(training.values), self.num_parameters(training.model)
        metric = training.values[-1]
        metrics = {f"validation_{self.measure.metric.name}": metric, "train_loss": training.train_loss}
        metrics |= self._metrics_of_targets(training.model)
        if training.inherited:
            metrics |= {INHERITED: training.inherited, EPOCHS: float(training.num_epochs)}
        measured = {name: self._measured(name, candidate, training.model, metric) for name in self.measured_objectives}
        return Score(self.value(quality, size), size, metrics | measured, training.model)

    def _metrics_of_targets(self, model: nn.Module) -> dict[str, float]:
        """Return the validation metric of each of several target columns."""
        source = self.splits_in_use.columns
        if source is None or source.target.name.count(",") != self.num_outputs - 1 or self.num_outputs < 2:
            return {}
        names = [f"validation_{self.measure.metric.name} {name}" for name in source.target.name.split(",")]
        return dict(zip(names, self.measure.of_model(model), strict=True))

    def quality(self, values: Sequence[float]) -> float:
        """Return the score of the last value of the validation metric."""
        return self.measure.score(values[-1])

    def value(self, quality: float, num_parameters: int) -> float:
        """Return the quality scaled by the size of the model, see evaluation.size_weight."""
        return soft_size_objective(
            quality,
            num_parameters,
            target_parameters=self._evaluation.target_parameters,
            size_weight=self._evaluation.size_weight,
        )

    def num_parameters(self, model: nn.Module) -> int:
        """Return the number of parameters of a model."""
        return sum(parameter.numel() for parameter in model.parameters())

    def _choose_memory_format(self) -> None:
        """Replace memory_format=auto by channels_last for images and signals, in the options of the run too.

        Raises:
            UserError: channels_last for other inputs.
        """
        chosen, has_channels = self._evaluation.memory_format, self.input_shape.layout in (Layout.IMAGE, Layout.SIGNAL)
        if chosen == "auto":
            chosen = "channels_last" if has_channels else "contiguous"
        if chosen == "channels_last" and not has_channels:
            raise UserError(f"evaluation.memory_format: expected contiguous for {self.input_shape}, got channels_last")
        self._evaluation = replace(self._evaluation, memory_format=chosen)
        self.config.evaluation.memory_format = chosen

    def _check_embeddings(self) -> None:
        """Raise UserError for tokens below 0, and for an embedding of the search space that lacks some of the data."""
        ends = [inputs.aminmax() for part in self.splits_in_use for inputs, *_ in part.in_order()]
        smallest, largest = min(int(each.min) for each in ends), max(int(each.max) for each in ends)
        if smallest < 0:
            raise UserError(f"data: expected tokens from 0, got {smallest}")
        choices = self.config.env.operation_graph.choices
        for name, key in _VOCABULARIES.items():
            values = choices.get(name, {}).get(key, ())
            listed = values if isinstance(values, Sequence) else [values]
            if any(isinstance(each, int) and each <= largest for each in listed):
                place = f"env.operation_graph.choices.{name}.{key}"
                raise UserError(f"{place}: expected more than {largest}, the largest token of the data, got {values}")

    def _build_training(self) -> None:
        """Build loss, metric and trainer."""
        options, classifies = self._evaluation.training, is_classification(self.train.targets)
        is_weighted = classifies and options.class_weights == "balanced"
        weights = balanced_weights(self.train.targets, self.num_outputs) if is_weighted else None
        axis = self._class_axis
        place = -1 if axis is None else axis
        kinds: dict[str, Any] = {"is_classification": classifies, "is_weighted": self.train.weights is not None}
        loss = build_loss(options, class_weights=weights, axis=place, **kinds)
        if self.train.weights is not None:
            if self.train.targets.ndim > 2 or self.output_shape.positions:
                raise UserError("task_options.weights: expected none with targets of positions")
            loss = partial(weighted, loss=loss, mean=float(self.train.weights.mean()))
        limit = loss_limit(loss, self.train)
        if options.augment and self._is_padded:
            raise UserError(f"evaluation.training.augment: expected none for padded signals, got {options.augment[0]}")
        check_augmentation(options.augment, self.train, loss=options.loss, output=self.output_shape)
        self.trainer = ModelTrainer(self.train, loss, self._evaluation, limit, self.num_outputs)
        kind = {"is_classification": classifies, "is_text": self._predicts_tokens, "quantile": options.quantile}
        metric = build_metric(options.metric, axis=axis, **kind)
        source = self.splits_in_use.columns or self.splits_in_use.arrays
        if source is not None and source.target.transform:
            units = partial(original_units, target=source.target)
            metric = replace(metric, units=partial(units, scale=float(units(self.train.targets).std(correction=0))))
        self.measure, self.test_measure = (
            build_measure(metric, split, train=self.train, num_outputs=self.num_outputs)
            for split in (self.validation, self.test_split)
        )

    @property
    def _predicts_tokens(self) -> bool:
        """Whether there is a target for each token of a text."""
        return self.train.targets.ndim > 1 and self.input_shape.layout is Layout.TOKENS

    @property
    def _class_axis(self) -> int | None:
        """The axis of the classes in outputs [B, ...] with positions, None of other outputs."""
        has_classes = is_classification(self.train.targets)
        return self.output_shape.channel_axis + 1 if has_classes and self.output_shape.positions else None

    def _trained(self, candidate: Any, *, seed: int) -> ModelTraining:
        (training,) = self._continued_many([Start(candidate, seed)], self._full)
        if isinstance(training, Exception):
            raise training
        return training

    @property
    def _full(self) -> Length:
        """The full training, measured only where its score needs it."""
        num = self._evaluation.num_epochs
        return Length(num, num, num - 1)

    def _continued_many(self, starts: Sequence[Start], length: Length) -> Iterator[ModelTraining | Exception]:
        """Yield the training of each candidate up to an epoch, in order; a function of candidate and seed."""
        for _, seeds in groupby(starts, self._structure):
            yield from self._continued_seeds(list(seeds), length)

    def _structure(self, start: Start) -> Any:
        """Return a key that is equal for seeds of one graph that may train side by side."""
        is_new_graph = isinstance(start.candidate, ComputationGraph) and start.state is None
        return start.candidate.canonical_key() if self.trains_seeds_together and is_new_graph else object()

    def _continued_seeds(self, starts: Sequence[Start], length: Length) -> Iterable[ModelTraining | Exception]:
        """Return the trainings of one candidate: side by side where model and memory allow it, else one by one."""
        trainings = list[ModelTraining]()
        with suppress(Exception):  # of building a model, which each training names
            trainings += [self._begun(start) for start in starts] if len(starts) > 1 else []
        one_by_one = (self._prepared(start, length) for start in starts)
        if not trainings or not can_stack(*(training.model for training in trainings)):
            return one_by_one
        try:
            errors = self.trainer.continue_side_by_side(trainings, length, validation=self.measure)
        except (MemoryError, torch.OutOfMemoryError):
            return one_by_one
        except Exception as error:
            return [error] * len(trainings)
        return [error or training for error, training in zip(errors, trainings, strict=True)]

    def _begun(self, start: Start) -> ModelTraining:
        with seeded(start.seed):
            return self._new_training(start.candidate, seed=start.seed)

    def _prepared(self, start: Start, length: Length) -> ModelTraining | Exception:
        """Return a training by autograd up to an epoch, or the exception; one of a group has only begun."""
        with seeded(start.seed):
            try:
                training = self._new_training(start.candidate, seed=start.seed)
                if start.state is not None:
                    self._restore(training, start.candidate, start.state)
                length = training.length or length
                if training.num_epochs > length.num_epochs:
                    got = f"at most {length.num_epochs} epochs, got {training.num_epochs}"
                    raise ValueError(f"expected a training of {got}")
                if not self._is_grouped(training.model):
                    self.trainer.continue_training(training, length, validation=self.measure)
                return training
            except Exception as error:
                return error

    def _restore(self, training: ModelTraining, candidate: Any, state: Mapping[str, Any]) -> None:
        """Continue from a state, or begin with the weights of another candidate, and fewer epochs."""
        if PARENT not in state:
            training.restore(state)
            return
        networks = [self.network(each) for each in (candidate, type(candidate).from_dict(state[PARENT]))]
        own, other = (GraphOutline(each) for each in networks if each is not None)
        share = inherit_weights(training.model, state[WEIGHTS], own.matches(other)[0])
        num = self._evaluation.num_epochs
        num = max(math.ceil(_LEAST_EPOCHS * num), round(num * (_EPOCHS + _FURTHER_EPOCHS * (1 - share))))
        training.inherited, training.length = share, Length(num, num, num - 1)

    def _new_training(self, candidate: Any, *, seed: int) -> ModelTraining:
        """Return the training of an untrained model, which is built on the CPU: its first values are those there."""
        return ModelTraining(self.build_model(candidate).to(self.device), torch.Generator().manual_seed(seed))

    def _is_grouped(self, model: nn.Module) -> bool:
        """Return whether a model trains in a group, see SupervisedTask."""
        return False

    def _measured(self, objective: str, candidate: Any, model: nn.Module, metric: float) -> float:
        """Return an objective in its unit; costs are per example."""
        match objective:
            case self._metric_name:
                return metric
            case "parameters":
                return float(self.num_parameters(model))
            case "flops":
                cost = self.cost(candidate)
                if cost is None:
                    raise ValueError(f"flops: expected {type(self).__name__}.cost to be defined")
                return float(cost.flops)
            case _:
                return seconds_per_call(model, self.train.example, num_calls=NUM_TIMED_CALLS)

    def _check_sizes(self, graph: ComputationGraph, model: Any) -> None:
        """Raise ValueError unless the graph maps an example to one output per class or number."""
        plan = model.plan
        if plan.takes_columns:
            expected = (self.input_shape.num_elements, self.num_outputs)
            got = (plan.input_size, plan.output_size)
            if got != expected:
                raise ValueError(
                    f"expected a graph from {expected[0]} features to {expected[1]} classes, got {got[0]} to {got[1]}"
                )
            return
        inputs = ", ".join(str(shape) for _, _, shape in plan.inputs)
        if self.output_shape.positions:
            expected, got = (f"{self.input_shape} to {self.output_shape}", f"{inputs} to {plan.outputs[0][1]}")
            if got != expected or len(plan.outputs) > 1:
                raise ValueError(f"expected a graph from {expected}, got {got}")
            return
        if self.train.targets.ndim > 2:
            got = list(self.train.targets.shape)
            raise ValueError(f"expected classes [N, *positions] or numbers [N, channels, *positions], got {got}")
        num_outputs = sum(shape.sizes[-1] for _, shape in plan.outputs)
        if (inputs, num_outputs) != (str(self.input_shape), self.num_outputs):
            raise ValueError(
                f"expected a graph from {self.input_shape} to {self.num_outputs} outputs, got {inputs} to {num_outputs}"
            )


def automatic_batch_size(num_examples: int) -> int:
    """Return about a 128th of the training examples, a power of 2 from 16 to 256."""
    return min(256, max(16, 2 ** round(math.log2(num_examples / 128))))


def plain_evaluation(config: EvaluationConfig) -> EvaluationConfig:
    """Return the options as plain dataclasses: reading from OmegaConf takes 1 % of the time of a candidate."""
    values = {item.name: getattr(config, item.name) for item in fields(EvaluationConfig)}
    training = {item.name: getattr(config.training, item.name) for item in fields(TrainingConfig)}
    return EvaluationConfig(**{**values, "training": TrainingConfig(**training)})


def computation_graph_cost(graph: ComputationGraph, *, projection: Any) -> Cost:
    """Return the size of a computation graph's model from its plan. Raises ValueError for an invalid graph."""
    # Graphs too large to translate have a plan too.
    typed = graph.typed(projection)
    problems = [each for each in typed.problems if each.code != "too_many_parameters"]
    if problems:
        raise ValueError("; ".join(problem.message for problem in problems))
    return Cost(typed.cost.num_parameters, typed.cost.flops)


@torch.inference_mode()
def seconds_per_call(model: nn.Module, example: torch.Tensor, *, num_calls: int) -> float:
    """Return the median time of a forward pass of one example in eval mode."""
    inputs = example.unsqueeze(0)
    model.eval()
    seconds = []
    for _ in range(_NUM_WARM_UP + num_calls):
        start = perf_counter()
        outputs_of(model, inputs)
        synchronize(inputs.device)
        seconds.append(perf_counter() - start)
    return median(seconds[_NUM_WARM_UP:])


def _contents(split: Examples) -> Iterator[Any]:
    """Yield the tensors of a split; of a dataset, its targets and some inputs."""
    if isinstance(split, Split):
        inputs, *others = split.tensors
        yield from (*others, inputs)
        return
    yield split.targets
    yield from split.digest_inputs()
