"""Search with a surrogate: candidates are sampled in proportion to acquisition^beta.

Letters: B terminal states, n observations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from gflownet.mdp.states import GraphStates
from gflownet.search.baselines import is_allowed
from gflownet.search.candidate_model import CandidateModel, Fantasies, in_scores, observed, spread_order
from gflownet.search.features import descriptors_of
from gflownet.search.history import History, ProposalOrigin
from gflownet.search.method import Candidates, Results, SearchMethod, SearchSetup, cost_of
from gflownet.search.proposals import (
    Pool,
    accepted,
    best_states,
    evolved,
    mutations,
    origin_of,
    random_unknown,
    sampled_order,
    unknown_mask,
)
from gflownet.search.surrogate import Calibration, Prediction, Surrogate
from gflownet.workers.process import Stream

NUM_SAMPLED = 64  # samples of the policy per round
_NUM_DESIGN = 256  # random architectures of which the first ones are chosen
_NUM_FANTASISED = 256  # best candidates of a pool, out of which a batch is chosen one by one
_NUM_GENERATIONS = 2  # of mutations of the pool's best candidates
_NUM_KEPT = 256  # best candidates of a pool, with which the next one begins
_CHUNK = 4_096  # architectures predicted at once, to bound memory


class SurrogateSearch(SearchMethod):
    """Fits a surrogate to all scores, and samples a batch of unknown architectures in proportion to acquisition^beta.

    Candidates are the best ones of the last proposal, mutations of the best architectures and of the best candidates,
    and `samples`. Failed evaluations count with the floor score, refused ones not at all.
    """

    uses_surrogate = True

    def __init__(self, setup: SearchSetup) -> None:
        super().__init__(setup)
        self.config = setup.config
        self.model = CandidateModel(setup)
        self.calibration = Calibration()
        self._num_fitted = 0  # architectures of the history at the last fit
        self._mean = 0.0  # of the warped scores of the last fit
        self._kept: dict[int, Pool] = {}  # best candidates of the last two pools, by call

    @property
    def surrogate(self) -> Surrogate:
        """The surrogate of the score, or of the first objective."""
        return self.model.surrogate

    @property
    def num_first(self) -> int:
        return self.config.num_initial

    def propose(self, call: int, num: int) -> Candidates:
        """Return up to `num` unknown terminal states."""
        num_initial = self.config.num_initial - len(self.history) - len(self.history.in_flight)
        if num_initial > 0 or not self._num_fitted:
            num = min(num, num_initial) if num_initial > 0 else num
            origin = ProposalOrigin.DESIGN if num_initial > 0 else ProposalOrigin.RANDOM
            return self._first_states(call, num, origin)
        candidates = self._chosen(self.pool(call), num, call)
        if len(candidates.states):
            return candidates
        return self._chosen(_equal(self.random_states(call), ProposalOrigin.RANDOM), num, call)

    def observe(self, results: Results) -> Mapping[str, float]:
        """Compare the predictions of the new results with their scores, then fit the surrogate to all."""
        if len(self.history) > self._num_fitted:
            if self._num_fitted:
                self._calibrate()
            if len(self.history) >= self.config.num_initial:
                self._fit()
        metrics = {**self.calibration.metrics(), "fallback": float(self.calibration.is_worse_than_mean)}
        return {**metrics, **self.surrogate.metrics(), **(self.policy_metrics() if self._num_fitted else {})}

    def samples(self, call: int) -> Candidates:
        """Return candidates that are no mutations, known ones included: random architectures."""
        states = self.random_states(call)
        return Candidates(states, origin_of((ProposalOrigin.RANDOM, len(states))))

    def policy_metrics(self) -> Mapping[str, float]:
        """Return metrics of the policy that samples, of which there is none here."""
        return {}

    def predicted(self, states: GraphStates) -> Prediction | None:
        """Return the distributions of the scores of terminal states [B]; None before the first observation."""
        if not self._num_fitted:
            self._fit()
        if not self._num_fitted or self.model.has_objectives:
            return None
        chunks = (states[first : first + _CHUNK] for first in range(0, max(len(states), 1), _CHUNK))
        parts = [self.model.predict(self.model.encode(chunk)) for chunk in chunks]
        mean, std = (torch.cat([getattr(each, name) for each in parts]) for name in ("mean", "std"))
        noise = torch.tensor([1.0, 1.0 + parts[0].noise], dtype=torch.float64)  # the warp is linear above 0
        return Prediction(*in_scores(self.surrogate, Prediction(mean, std)), float(self.surrogate.unwarp(noise).diff()))

    def state_dict(self) -> dict[str, Any]:
        return {
            "num_fitted": self._num_fitted,
            "prior": self.setup.prior.state_dict(),
            "start": None if self.setup.start is None else self.setup.start.state_dict(),
            "calibration": self.calibration.state_dict(),
            "model": self.model.state_dict(),
            "kept": {call: pool.state_dict() for call, pool in self._kept.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._kept = {call: Pool.of_state(pool) for call, pool in state["kept"].items()}
        self.setup.prior.load_state_dict(state["prior"])
        if self.setup.start is not None:
            self.setup.start.load_state_dict(state.get("start"))
        self.calibration.load_state_dict(state["calibration"])
        self.model.load_state_dict(state["model"])
        if state["num_fitted"]:
            self._fit()

    def observations(self) -> tuple[Tensor, Tensor]:
        """Return the positions [n] of the observations in the history, and their scores or first utilities."""
        positions = observed(self.history)
        return positions, self.model.targets(self.history)[positions, 0]

    def _fit(self) -> None:
        positions, scores = self.observations()
        if len(positions):
            self.model.fit(self.history, positions)
            self._mean = float(self.surrogate.warp(scores).mean())
            self._num_fitted = len(self.history)

    def _calibrate(self) -> None:
        positions, scores = self.observations()
        is_new = positions >= self._num_fitted
        if bool(is_new.any()):
            prediction = self.model.predict(self.model.encode(self.history.states[positions[is_new]]))
            self.calibration.add(prediction, self.surrogate.warp(scores[is_new]), earlier_mean=self._mean)

    def pool(self, call: int) -> Pool:
        """Return the candidates with the logarithm of their acquisition; equal values for a bad surrogate."""
        if self.calibration.is_worse_than_mean:
            generator = self.setup.generator(call, Stream.POOL)
            varied = mutations(self.env, best_states(self.history), self.config.proposals.num_mutations, generator)
            others = self.random_states(call)
            origin = origin_of((ProposalOrigin.MUTATION, len(varied)), (ProposalOrigin.RANDOM, len(others)))
            states = GraphStates.cat([varied, others])
            is_unknown = unknown_mask(self.history, states)
            return _equal(states[is_unknown], origin[is_unknown])
        pool = self.evolved_pool(call, self.setup.generator(call, Stream.POOL))
        # That of the call before stays, because an interrupted call is repeated.
        self._kept = {**self._kept_before(call), call: pool.best(_NUM_KEPT)}
        return pool

    def evolved_pool(self, call: int, generator: torch.Generator) -> Pool:
        """Return earlier candidates, mutations of the best architectures, samples, and mutations of the best of these.

        It begins with the best candidates of the last proposal, whose predictions are renewed: generations continue.
        """
        options, samples = self.config.proposals, self.samples(call)
        varied = mutations(self.env, best_states(self.history), options.num_mutations, generator)
        earlier = self._kept_before(call).values()
        origins = [origin_of((ProposalOrigin.MUTATION, len(varied))), samples.origins]
        return evolved(
            self.history,
            GraphStates.cat([*(pool.states for pool in earlier), varied, samples.states]),
            self.log_values,
            origin=torch.cat([*(pool.origin for pool in earlier), *origins]),
            num_mutations=options.num_mutations,
            num_generations=_NUM_GENERATIONS,
            generator=generator,
        )

    def _kept_before(self, call: int) -> dict[int, Pool]:
        """Return the latest kept pool of an earlier call, by that call; empty without one."""
        return dict([each for each in self._kept.items() if each[0] < call][-1:])

    def best_of_pool(self, num: int) -> GraphStates | None:
        """Return up to `num` best candidates of the last proposal, best first; None before the first one."""
        return list(self._kept.values())[-1].states[:num] if self._kept else None

    def log_values(self, states: GraphStates) -> Tensor:
        """Return the logarithm of the acquisition of terminal states, [B] float64."""
        if not len(states):
            return torch.empty(0, dtype=torch.float64)
        return self.model.log_values(self.model.encode(states))

    def random_states(self, call: int) -> GraphStates:
        """Return random unknown architectures, fewer where a space has hardly any left."""
        return random_unknown(self.history, NUM_SAMPLED, self.setup.generator(call, Stream.RANDOM))

    def _chosen(self, pool: Pool, num: int, call: int) -> Candidates:
        order = sampled_order(
            pool.log_values, self.setup.generator(call, Stream.ORDER), beta=self.config.acquisition.beta
        )
        is_joint = num > 1 or len(self.history.in_flight) > 0
        if is_joint and self._num_fitted and not self.calibration.is_worse_than_mean:
            order = self._ordered_in_turn(pool, order, num, self.setup.generator(call, Stream.BATCH))
        positions = accepted(pool.states, order, num, self.setup.is_refused_at)
        return Candidates(pool.states[positions], pool.origin[positions])

    def _ordered_in_turn(self, pool: Pool, order: Tensor, num: int, generator: torch.Generator) -> Tensor:
        """Return an order whose first `num` are sampled one by one.

        Each one is sampled as if those before and the candidates in flight had the score of their predicted mean.
        """
        rows = order[:_NUM_FANTASISED]
        features = self.model.encode(GraphStates.cat([pool.states[rows], self.history.states_in_flight]))
        fantasies, following = self.model.fantasies(features), iter(range(len(rows)))
        for part, position in product(fantasies, range(len(rows), len(features))):
            part.add(position)
        if len(features) > len(rows):
            following = self._following(features, fantasies, len(rows), generator)
        passed, chosen = set[int](), list[int]()
        while len(chosen) < num and (position := next(following, None)) is not None:
            if position in passed:
                continue
            passed.add(position)
            if not self.setup.is_refused_at(pool.states, int(rows[position])):
                chosen.append(position)
                for part in fantasies:
                    part.add(position)
                following = self._following(features, fantasies, len(rows), generator)
        first = rows[torch.tensor(chosen, dtype=torch.int64)]
        return torch.cat([first, order[~torch.isin(order, first)]])

    def _following(
        self, features: Any, fantasies: Sequence[Fantasies], num: int, generator: torch.Generator
    ) -> Iterator[int]:
        """Return the first `num` candidates in an order sampled by their acquisition."""
        values = self.model.log_values(features, fantasies)[:num]
        return iter(sampled_order(values, generator, beta=self.config.acquisition.beta).tolist())

    def _first_states(self, call: int, num: int, origin: ProposalOrigin) -> Candidates:
        """Return the best of earlier searches, env.start and its edits, those of the first design, then random ones."""
        parts = [self._earlier_best, self._start_design, self._design, self.random_states(call)]
        kinds = (ProposalOrigin.EARLIER, ProposalOrigin.START, origin, origin)
        origins = origin_of(*((kind, len(part)) for kind, part in zip(kinds, parts, strict=True)))
        states = GraphStates.cat(parts)
        is_unknown = unknown_mask(self.history, states)
        states, origins = states[is_unknown], origins[is_unknown]
        positions = accepted(states, torch.arange(len(states)), num, self.setup.is_refused_at)
        return Candidates(states[positions], origins[positions])

    @cached_property
    def _earlier_best(self) -> GraphStates:
        """The best architectures of earlier searches within today's hard caps: half of the first design.

        With several objectives the whole: a front has many, and its ends are as spread as a design.
        """
        num = self.config.num_initial
        states = self.setup.prior.best(num, self.model.measured)
        num = num if self.model.has_objectives else (num + 1) // 2
        return states[accepted(states, torch.arange(len(states)), num, self.setup.is_refused_at)]

    @cached_property
    def _start_design(self) -> GraphStates:
        """The network of env.start within today's hard caps, and its edits."""
        if self.setup.start is None:
            return self.env.initial_states(0)

        def sizes(states: GraphStates) -> Tensor:
            costs = [cost_of(self.setup.task, self.env.terminal(states, index)) for index in range(len(states))]
            return torch.tensor([math.nan if each is None else each.num_parameters * each.flops for each in costs])

        generator, is_within = self.setup.generator(0, Stream.START), partial(is_allowed, self.setup)
        return self.setup.start.design(self.config.num_initial, generator, is_allowed=is_within, sizes=sizes)

    @cached_property
    def _design(self) -> GraphStates:
        """Random architectures, those first whose descriptors are far from each other."""
        states = self.setup.random_draws(0, Stream.POOL)(_NUM_DESIGN, self.setup.generator(0, Stream.RANDOM))
        states = states[unknown_mask(History(self.env), states)]
        return states[spread_order(descriptors_of(self.env, self.setup.seed)(states))]


def _equal(states: GraphStates, origin: Tensor | ProposalOrigin) -> Pool:
    if isinstance(origin, ProposalOrigin):
        origin = origin_of((origin, len(states)))
    return Pool(states, torch.zeros(len(states), dtype=torch.float64), origin)
