"""Ensemble of small graph networks: mean and deviation of several members trained on different observations.

Each member is trained without one fold of the observations, which measures the error of its predictions: the deviation
of an ensemble alone is too small (Lakshminarayanan et al. 2017; Kuleshov et al. 2018 for the calibration).

Letters: M members, n observations, B graphs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from gflownet.data.sampler import uniform_states
from gflownet.mdp.environment import Environment
from gflownet.mdp.labelled_graphs import NO_EDGE, LabelledGraphs
from gflownet.mdp.states import UNSET, GraphStates
from gflownet.options import AT_LEAST_ONE, POSITIVE, Interval, option
from gflownet.search.config import SurrogateConfig
from gflownet.search.surrogate import CrossValidated, Prediction, Warping, check_scores
from gflownet.training.optimisers import AdamW
from gflownet.workers.process import stream_seed

# Of the first weights: predictions begin near zero.
_OUTPUT_SCALES = {"output": 0.3, "direct": 0.0}


@dataclass(frozen=True)
class LabelVocabulary:
    """Known values of the parts of labels, of edges and of places, each list ascending; others have no feature."""

    labels: tuple[Tensor, ...]  # P
    edges: Tensor  # [E]
    places: tuple[Tensor, ...]  # one per named place


@dataclass(frozen=True)
class GraphTensors:
    """B graphs as numbers, float32."""

    labels: Tensor  # [B, N, L], one-hot per part
    adjacency: Tensor  # [B, N, N], 1 for an edge s -> t
    received: Tensor  # [B, N, E], in-edges of each kind
    sent: Tensor  # [B, N, E], out-edges of each kind
    exists: Tensor  # [B, N]
    numbers: Tensor  # [B, D]: one-hot places, and numeric features

    def __len__(self) -> int:
        """Return B."""
        return len(self.labels)

    def __getitem__(self, index: Tensor | slice) -> GraphTensors:
        """Return the graphs at an index."""
        return GraphTensors(*(getattr(self, item.name)[index] for item in fields(self)))

    def double(self) -> GraphTensors:
        """Return the same numbers as float64."""
        return replace(self, **{item.name: getattr(self, item.name).double() for item in fields(self)})


def label_vocabulary(graphs: LabelledGraphs) -> LabelVocabulary:
    """Return the values that occur in some graphs."""
    edges = graphs.edges.unique()
    return LabelVocabulary(
        tuple(known_values(part) for part in graphs.labels.unbind(2)),
        edges[edges != NO_EDGE],
        tuple(known_values(place) for place in graphs.places.unbind(1)),
    )


def encode_graphs(graphs: LabelledGraphs, vocabulary: LabelVocabulary, numbers: Tensor | None) -> GraphTensors:
    """Return graphs as numbers, with numeric features [B, D] after the named places.

    Raises:
        ValueError: numeric features of the wrong shape, or not finite.
    """
    if numbers is None:
        numbers = torch.empty(len(graphs), 0)
    if numbers.dim() != 2 or len(numbers) != len(graphs) or not bool(numbers.isfinite().all()):
        raise ValueError(f"numeric features: expected finite [{len(graphs)}, D], got {list(numbers.shape)}")
    parts = [_one_hot(part, values) for part, values in zip(graphs.labels.unbind(2), vocabulary.labels, strict=True)]
    places = [_one_hot(place, values) for place, values in zip(graphs.places.unbind(1), vocabulary.places, strict=True)]
    edges = _one_hot(graphs.edges, vocabulary.edges)  # [B, N, N, E]
    return GraphTensors(
        torch.cat(parts, 2),
        (graphs.edges != NO_EDGE).float(),
        edges.sum(1),
        edges.sum(2),
        graphs.exists.float(),
        torch.cat([*places, numbers.float()], 1),
    )


def initial_weights(
    graphs: GraphTensors, *, num_members: int, width: int, num_rounds: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return random weights of M networks for graphs of this kind."""
    num_labels, num_edges, num_numbers = graphs.labels.shape[2], graphs.sent.shape[2], graphs.numbers.shape[1]
    num_pooled = (num_rounds + 1) * width + num_labels + num_numbers
    shapes = {"embedding": (num_labels + 2 * num_edges, width)}
    shapes |= {f"round{index}": (3 * width, width) for index in range(num_rounds)}
    shapes |= {"hidden": (num_pooled, width), "direct": (num_pooled, 1), "output": (width, 1)}
    weights = {}
    for name, shape in shapes.items():
        scale = math.sqrt(2 / shape[0]) * _OUTPUT_SCALES.get(name, 1.0)
        weights[name] = torch.randn(num_members, *shape, generator=generator) * scale
        weights[f"{name}_bias"] = torch.zeros(num_members, 1, shape[1])
    # Pooled values are divided by the mean size of a graph.
    weights["log_size"] = torch.full((num_members, 1, 1), math.log(max(1.0, float(graphs.exists.sum(1).mean()))))
    return weights


def forward(graphs: GraphTensors, weights: Mapping[str, Tensor]) -> Tensor:
    """Return the outputs [M, B] of M networks.

    Every round adds to the state of a node a function of itself, of the mean of its in-neighbours and of the mean of
    its out-neighbours. The sums over the nodes after each round, and of the labels, are read by one hidden layer and a
    linear one.
    """
    num_graphs, num_nodes, _ = graphs.labels.shape
    num_members = len(weights["embedding"])
    exists = graphs.exists.reshape(1, -1, 1)
    inputs = torch.cat([graphs.labels, graphs.received, graphs.sent], 2).flatten(0, 1)
    state = _linear(inputs.expand(num_members, -1, -1), weights, "embedding").relu() * exists
    size = weights["log_size"].exp()
    pooled = [graphs.labels.sum(1).expand(num_members, -1, -1) / size]
    forth = graphs.adjacency / graphs.adjacency.sum(1, keepdim=True).clamp(min=1)
    back = (graphs.adjacency / graphs.adjacency.sum(2, keepdim=True).clamp(min=1)).transpose(1, 2)
    for index in range(sum(name.startswith("round") and not name.endswith("_bias") for name in weights)):
        pooled.append(_pooled(state, num_graphs) / size)
        states = state.unflatten(1, (num_graphs, num_nodes))
        # [M, B, N, W]: sum over s of share[b, s, t] * state[m, b, s].
        received, sent = (torch.matmul(share.transpose(1, 2), states).flatten(1, 2) for share in (forth, back))
        state = state + _linear(torch.cat([state, received, sent], 2), weights, f"round{index}").relu() * exists
    pooled.append(_pooled(state, num_graphs) / size)
    every = torch.cat([*pooled, graphs.numbers.expand(num_members, -1, -1)], 2)
    hidden = _linear(every, weights, "hidden").relu()
    return (_linear(hidden, weights, "output") + _linear(every, weights, "direct")).squeeze(2)


def _linear(values: Tensor, weights: Mapping[str, Tensor], name: str) -> Tensor:
    """Return values [M, R, I] times weights [M, I, O] plus biases [M, 1, O]."""
    return torch.baddbmm(weights[f"{name}_bias"], values, weights[name])


def _pooled(state: Tensor, num_graphs: int) -> Tensor:
    """Return the sums over the nodes, [M, B, W], of states [M, B * N, W]."""
    return state.unflatten(1, (num_graphs, -1)).sum(2)


def known_values(codes: Tensor) -> Tensor:
    """Return the codes that occur, ascending."""
    values = codes.unique()
    return values[values != UNSET]


def _one_hot(codes: Tensor, values: Tensor) -> Tensor:
    """Return codes [...] as [..., number of values] float32, zeros for an unknown one."""
    return (codes[..., None] == values).float()


_NUM_REFERENCES = 512  # random architectures whose labels are known to the networks
_CHUNK = 2_048  # graphs predicted at once, to bound memory
_MIN_STEPS = 20  # of a fit
_MIN_STD = 1e-3  # of a prediction, in warped scores
_FACTORS = torch.tensor([0.5, 0.7, 1.0, 1.4, 2.0, 2.8], dtype=torch.float64)  # of the ensemble's deviation
_SHARES = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9, 1.1], dtype=torch.float64)  # constant deviation, over the RMS error
_REFERENCES, _WEIGHTS, _BATCHES = range(3)  # random streams


@dataclass
class GraphNetworksConfig:
    """The networks and their training."""

    num_members: int = option(5, "networks of the ensemble", Interval(2))
    width: int = option(24, "width of the hidden layers", AT_LEAST_ONE)
    num_rounds: int = option(2, "rounds of messages between neighbours", AT_LEAST_ONE)
    num_steps: int = option(200, "optimiser steps of the first fit", AT_LEAST_ONE)
    num_refit_steps: int = option(
        4, "optimiser steps per new observation of further fits, which start from the last weights", AT_LEAST_ONE
    )
    batch_size: int = option(128, "observations per optimiser step", AT_LEAST_ONE)
    learning_rate: float = option(0.01, "learning rate at the start of a fit; it decreases to zero", POSITIVE)
    weight_decay: float = option(1.0, "decoupled weight decay", Interval(0))


class GraphNetworks(CrossValidated):
    """Message passing on the graphs of architectures; fits start from the weights of the last one."""

    Config = GraphNetworksConfig

    def __init__(self, env: Environment, config: SurrogateConfig, *, seed: int) -> None:
        super().__init__(env, config, seed=seed)
        options = config.options
        self.options = options if isinstance(options, GraphNetworksConfig) else GraphNetworksConfig()
        self._vocabulary: LabelVocabulary | None = None
        self._weights: dict[str, Tensor] | None = None  # float32
        self._doubles: dict[str, Tensor] = {}  # the same in float64: predictions do not depend on the batch
        self._num_fitted = 0
        self._factor, self._constant = 1.0, 0.0  # deviation: sqrt((factor * that of the ensemble)^2 + constant^2)
        self._left_out: Prediction | None = None
        self._last: tuple[GraphTensors, Tensor] | None = None  # features and the outputs of the members

    def encode(self, states: GraphStates, extra: Tensor | None = None) -> GraphTensors:
        """Return the graphs of B terminal states, with numeric features [B, D]."""
        if self._vocabulary is None:
            generator = torch.Generator().manual_seed(stream_seed(self.seed, _REFERENCES))
            references = uniform_states(self.env, _NUM_REFERENCES, generator=generator)
            self._vocabulary = label_vocabulary(self.env.labelled_graphs(references))
        return encode_graphs(self.env.labelled_graphs(states), self._vocabulary, extra)

    def fit(self, features: GraphTensors, scores: Tensor) -> None:
        """Train all members on n observations: many steps at first, few when observations are added."""
        check_scores(features, scores)
        self._warping = Warping.of(scores)
        if len(features) != self._num_fitted or self._weights is None:
            self._train(features, self.warp(scores).float())
        self._last = None
        self._doubles = {name: weight.double() for name, weight in (self._weights or {}).items()}
        self._calibrate(features, self.warp(scores))

    def predict(self, features: GraphTensors) -> Prediction:
        values = self._outputs(features)  # [M, B]
        deviation = (self._factor * values.std(0)).square() + self._constant**2
        return Prediction(values.mean(0), deviation.sqrt().clamp(min=_MIN_STD), self._noise)

    def covariance(self, features: GraphTensors, row: int) -> Tensor:
        """Return the scaled covariances of the outputs, and at `row` the rest of the variance without noise."""
        outputs = self._outputs(features)
        centred = outputs - outputs.mean(0)
        result = self._factor**2 * (centred.T @ centred[:, row]) / (len(outputs) - 1)
        result[row] += self._constant**2 - self._noise**2
        return result

    def held_out(self) -> Prediction:
        """Return the predictions [n] of the members trained without each observation."""
        assert self._left_out is not None
        return self._left_out

    @property
    def _noise(self) -> float:
        """Half of the constant variance: the rest is the error of the networks."""
        return self._constant / math.sqrt(2)

    def state_dict(self) -> dict[str, Any]:
        if self._weights is None:
            return {}
        return {"weights": {name: weight.clone() for name, weight in self._weights.items()}, "num": self._num_fitted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`; a fit to the same observations restores the rest."""
        self._weights = {name: weight.clone() for name, weight in state["weights"].items()} if state else None
        self._num_fitted = state.get("num", 0)

    def _train(self, features: GraphTensors, targets: Tensor) -> None:
        """Minimise the squared errors of all members, each without its fold."""
        options, num = self.options, len(features)
        is_first = self._weights is None or num < self._num_fitted
        if self._weights is None or is_first:
            generator = torch.Generator().manual_seed(stream_seed(self.seed, _WEIGHTS))
            sizes = {"num_members": options.num_members, "width": options.width, "num_rounds": options.num_rounds}
            self._weights = initial_weights(features, **sizes, generator=generator)
        weights = {name: weight.requires_grad_() for name, weight in self._weights.items()}
        num_steps = options.num_steps
        if not is_first:
            num_steps = min(num_steps, max(_MIN_STEPS, options.num_refit_steps * (num - self._num_fitted)))
        optimiser = AdamW(weights.values(), lr=options.learning_rate, weight_decay=options.weight_decay, foreach=True)
        generator = torch.Generator().manual_seed(stream_seed(self.seed, _BATCHES, num))
        included = ~self._is_held_out(num)  # [M, n]
        for step in range(num_steps):
            for group in optimiser.param_groups:
                group["lr"] = options.learning_rate * (1 - step / num_steps)
            rows = torch.randperm(num, generator=generator)[: options.batch_size]
            errors = (forward(features[rows], weights) - targets[rows]) * included[:, rows]
            optimiser.zero_grad()
            (errors.square().sum() / len(rows)).backward()
            optimiser.step()
        self._weights = {name: weight.detach() for name, weight in weights.items()}
        self._num_fitted = num

    def _is_held_out(self, num: int) -> Tensor:
        """Return which of n observations each member is trained without, [M, n] bool; none of very few."""
        members = torch.arange(self.options.num_members)
        held_out = torch.arange(num)[None] % len(members) == members[:, None]
        return held_out & (num > 2 * len(members))

    def _calibrate(self, features: GraphTensors, values: Tensor) -> None:
        """Set the deviation of predictions by the likelihood of the errors on the held-out folds."""
        held_out = self._is_held_out(len(features))
        if not bool(held_out.any()):
            self._factor, self._constant = 1.0, float(values.std(correction=0)) + _MIN_STD
            self._left_out = Prediction(values.mean().expand(len(values)), torch.full((len(values),), self._constant))
            return
        outputs = self._outputs(features)
        rows = torch.arange(len(features))
        member = held_out.int().argmax(0)
        errors = outputs[member, rows] - values
        others = outputs.masked_fill(held_out, math.nan)
        spread = (others - others.nanmean(0)).square().nansum(0) / (len(outputs) - 2)  # variance of the other members
        scale = float(errors.square().mean().sqrt()) + _MIN_STD
        variance = _FACTORS.square()[:, None, None] * spread + (scale * _SHARES).square()[None, :, None]
        likelihood = -(variance.log() + errors.square() / variance).sum(2)  # [factors, shares]
        factor, share = divmod(int(likelihood.argmax()), len(_SHARES))
        self._factor, self._constant = float(_FACTORS[factor]), scale * float(_SHARES[share])
        deviation = (self._factor**2 * spread + self._constant**2).sqrt()
        self._left_out = Prediction(outputs[member, rows], deviation, self._noise)

    @torch.no_grad()
    def _outputs(self, features: GraphTensors) -> Tensor:
        """Return the outputs of all members, [M, B] float64."""
        if not self._doubles:
            raise ValueError("predict: expected a fitted surrogate, got one without observations")
        if self._last is None or self._last[0] is not features:
            starts = range(0, max(len(features), 1), _CHUNK)
            parts = [forward(features[first : first + _CHUNK].double(), self._doubles) for first in starts]
            self._last = features, torch.cat(parts, 1)
        return self._last[1]
