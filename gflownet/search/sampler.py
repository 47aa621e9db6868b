"""The sampler that is trained after a search, and its target: predicted scores, relative to good candidates.

Letters: B trajectories or terminal states, P candidates of a pool, K objectives, L limits of the environment, n
candidates of a ranking.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from gflownet.errors import UserError
from gflownet.evaluation.conditioning import Conditioning
from gflownet.evaluation.config import TemperatureConfig
from gflownet.evaluation.task import GFNTask
from gflownet.learning.learner import Learner
from gflownet.learning.sampler import conditions_of, sample_forward
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.search.amortised_search import LOG_RANGE, AmortisedPolicy, PredictedOnce
from gflownet.search.candidate_model import CandidateModel, observed
from gflownet.search.history import Proposal, ProposalOrigin
from gflownet.search.method import Candidates, Learned, Results, SearchMethod, SearchSetup
from gflownet.search.proposals import accepted, distinct, mutations, origin_of, unknown_mask
from gflownet.search.surrogate import rank_correlation
from gflownet.training.steps import map_tensors
from gflownet.workers.process import Stream, stream_seed

_NUM_BEST = 64  # candidates under a condition into which backward trajectories are sampled
_LOG_REWARD_OF_LAST = -10.0  # of these, where the temperature is chosen from the scores
_MIN_SPREAD = 1e-3  # of their log-scores: equal scores give equal rewards
# The pool: random networks, and mutations of the best ones under as many conditions, several times.
_NUM_RANDOM, _NUM_GENERATIONS, _NUM_CONDITIONS, _NUM_PARENTS, _NUM_MUTATIONS = 512, 3, 12, 10, 288
# Learning rates of maximum likelihood and of the objective, which fall to 0.
LIKELIHOOD_RATE, OBJECTIVE_RATE = 0.003, 0.0007
_CHUNK = 4_096  # architectures predicted at once, to bound memory
_NUM_CHECKED = 64  # samples on which the trained sampler is checked


class ScoreModel:
    """The surrogate of a run, fitted to its first `num` evaluations."""

    def __init__(self, setup: SearchSetup, num: int) -> None:
        history, self._model, self.num = setup.history, CandidateModel(setup), num
        positions, self._column = observed(history), quality_column(setup.task)
        positions = positions[positions < num]
        self._model.fit(history, positions)
        largest = float(self._model.targets(history)[positions].max())
        self._largest = 1.0 if largest <= 1 else setup.task.max_score  # scores are best within [0, 1]

    def __call__(self, states: GraphStates) -> Tensor:
        """Return expected scores [B], or utilities [B, K], within the range of the measured ones, float64.

        Where policies are conditioned on a limit of a size, the score is the first objective that is no cost.
        """
        parts = [states[first : first + _CHUNK] for first in range(0, len(states), _CHUNK)]
        scores = [self._model.expected_scores(self._model.encode(part)) for part in parts]
        together = torch.cat(scores).clamp(max=self._largest)
        return together if self._column is None else together[:, self._column]


def score_column(task: GFNTask) -> int | None:
    """Return the position of the first objective that is no cost, rather of a larger-is-better one; None without."""
    places = [(way, place) for place, (name, way) in enumerate(task.directions().items()) if name not in task.costs]
    return min(places)[1] if places else None


def quality_column(task: GFNTask) -> int | None:
    """Return the position of the objective that is the score under a limit, None without a limit or such a one."""
    return None if task.config.cond.limit.metric is None else score_column(task)


def sampler_conditioning(task: GFNTask, num: int, generator: torch.Generator, **fixed: Any) -> Conditioning:
    """Return sampled conditions of `num` trajectories of a sampler, some of them fixed; None: sampled.

    Preferences are equal under a limit, with which the score is one objective.

    Raises:
        UserError: a condition that training never samples.
    """
    if quality_column(task) is not None and not task.config.cond.preferences.weights:
        if (preferences := fixed.get("preferences")) is not None:
            raise UserError(
                f"preferences: expected none with cond.limit.metric, the score is one objective, got {preferences}"
            )
        fixed = fixed | {"preferences": [1.0] * len(task.chosen_objectives)}
    return task.override_conditioning(task.sample_conditioning(num, generator=generator), **fixed)


def capped_conditioning(
    task: GFNTask,
    env: Environment,
    num: int,
    generator: torch.Generator,
    *,
    caps: Mapping[str, int | None],
    **fixed: Any,
) -> Conditioning:
    """Return sampled conditions within caps of sizes, by default the environment's highest and cond.limit.high.

    Raises:
        UserError: the environment has no such cap.
    """
    highest = dict(zip(env.vocabulary.limits, env.vocabulary.caps, strict=True))
    requested = {name: cap for name, cap in caps.items() if cap is not None}
    for name in requested:
        if name not in highest:
            raise UserError(
                f"max_{name}: expected an environment with a cap of its {name}, such as operation_graph with "
                f"env.operation_graph.max_{name}, got {task.config.env.name} with {', '.join(highest) or 'none'}"
            )
    default, (metric, high) = highest, (task.config.cond.limit.metric, task.config.cond.limit.high)
    if metric is not None and high is not None:
        default = highest | {metric: high}
    limits = {name: min(highest[name], cap) for name, cap in (default | requested).items()}
    if metric is not None:
        fixed = fixed | {"limit": limits[metric]}
    conditioning = sampler_conditioning(task, num, generator, **fixed)
    return replace(conditioning, limit=torch.tensor([*limits.values()], dtype=torch.int64).expand(num, -1))


@dataclass(frozen=True)
class RewardScale:
    """Log-rewards beta * (log-score - that of the best candidate of a pool under the same condition), at least -50.

    A temperature that is chosen from the scores gives the 64th best candidate under each condition a log-reward of -10.
    """

    task: GFNTask
    scores: Tensor  # [P], or utilities [P, K], predicted
    sizes: Tensor  # [P, L] int64
    chooses_beta: bool
    random_score: float  # mean predicted score of random architectures, of the first objective

    def log_reward(self, scores: Tensor, conditioning: Conditioning) -> Tensor:
        """Return the log-rewards [B] of scores [B], or of utilities [B, K], under their conditions."""
        best, beta = self.levels(conditioning)
        return (beta * (log_score(self.task, scores, conditioning) - best)).clamp(min=LOG_RANGE)

    def levels(self, conditioning: Conditioning) -> tuple[Tensor, Tensor]:
        """Return the best log-score of the pool under each condition [B], and the inverse temperature [B]."""
        values, _ = self.ranked(conditioning, _NUM_BEST)
        if not self.chooses_beta:
            return values[:, 0], conditioning.beta
        spread = values[:, 0] - values.masked_fill(values.isinf(), torch.inf).amin(1)
        return values[:, 0], -_LOG_REWARD_OF_LAST / spread.clamp(min=_MIN_SPREAD)

    def ranked(self, conditioning: Conditioning, num: int) -> tuple[Tensor, Tensor]:
        """Return log-scores and positions of the `num` best candidates under each condition, [B, n], best first.

        Candidates above a limit have the log-score -inf.
        """
        shape = len(conditioning.beta), len(self.scores)
        if self.scores.dim() == 1:
            one = conditioning[torch.zeros(shape[1], dtype=torch.int64)]
            values = log_score(self.task, self.scores, one).expand(shape)
        else:
            each = conditioning[torch.arange(shape[0]).repeat_interleave(shape[1])]
            values = log_score(self.task, self.scores.repeat(shape[0], 1), each).reshape(shape)
        if conditioning.limit is not None:
            values = values.where((self.sizes <= conditioning.limit[:, None]).all(2), -torch.inf)
        best, order = values.sort(dim=1, descending=True, stable=True)
        return best[:, :num], order[:, :num]

    def state_dict(self) -> dict[str, Any]:
        """Return the scores, safe to load with `weights_only=True`."""
        return {name: value for name, value in vars(self).items() if name != "task"}


def log_score(task: GFNTask, scores: Tensor, conditioning: Conditioning) -> Tensor:
    """Return log-rewards [B] at an inverse temperature of 1, of scores [B] or utilities [B, K]."""
    return task.log_reward(scores.float(), replace(conditioning, beta=torch.ones_like(conditioning.beta)))


class SamplerTarget:
    """Rewards of predicted scores, with a pool of known, random and mutated candidates.

    Attributes:
        pool: [P], distinct, each predicted once.
    """

    def __init__(
        self,
        setup: SearchSetup,
        model: ScoreModel,
        *,
        chooses_beta: bool,
        generator: torch.Generator,
        known: Mapping[int, Tensor] | None = None,  # earlier predictions, by code
    ) -> None:
        self._env, self._task = setup.context.env, setup.task
        self.predict = PredictedOnce(self._env, model, known)
        self.pool = setup.history.states
        random = setup.random_draws(Stream.SAMPLER_POOL)(_NUM_RANDOM, generator)
        predicted = self.predict(random)
        random_score = float(
            (predicted if predicted.dim() == 1 else predicted[:, score_column(self._task) or 0]).mean()
        )
        sizes = self._env.sizes(self.pool)
        self.scale = RewardScale(self._task, self.predict(self.pool), sizes, chooses_beta, random_score)
        self._add(random)

    def grow(self, generator: torch.Generator) -> Generator[Mapping[str, float]]:
        """Add the mutations, and yield after each generation."""
        for _ in range(_NUM_GENERATIONS):
            yield {}
            _, parents = self.scale.ranked(self.conditioning(_NUM_CONDITIONS, generator), _NUM_PARENTS)
            self._add(mutations(self._env, self.pool[parents.T.flatten()], _NUM_MUTATIONS, generator))

    def conditioning(self, num: int, generator: torch.Generator) -> Conditioning:
        sampled = sampler_conditioning(self._task, num, generator)  # a cap is at least the size of some candidate
        return self._task.reaching(sampled, self.scale.sizes.amin(0).expand(num, -1))

    def best(self, conditioning: Conditioning, generator: torch.Generator) -> GraphStates:
        values, positions = self.scale.ranked(conditioning, _NUM_BEST)
        choice = torch.multinomial(values.isfinite().float(), 1, generator=generator)
        return self.pool[positions.gather(1, choice).squeeze(1)]

    def log_reward(self, states: GraphStates, conditioning: Conditioning) -> Tensor:
        return self.scale.log_reward(self.predict(states), conditioning).float()

    def _add(self, states: GraphStates) -> None:
        self.pool = distinct(self._env, GraphStates.cat([self.pool, states]))
        self.scale = replace(self.scale, scores=self.predict(self.pool), sizes=self._env.sizes(self.pool))


def sample_metrics(policy: AmortisedPolicy, target: SamplerTarget) -> dict[str, float]:
    """Return the mean predicted score and log-reward of a policy's last samples, and their `balance_correlation`."""
    batch = policy.sampled
    if batch is None:
        return {}
    scores = log_score(target.scale.task, target.predict(batch.terminal), conditions_of(batch)).exp()
    metrics = {"predicted_score_mean": float(scores.mean()), "log_reward_mean": float(batch.log_reward.mean())}
    correlation = balance_correlation(policy.learner, batch)
    return metrics if correlation is None else metrics | {"sampler_rank_correlation": correlation}


def balance_correlation(learner: Learner, batch: TrajectoryBatch) -> float | None:
    """Return the rank correlation of log Z + log P_F - log P_B of trajectories and their log-rewards.

    Both are equal where trajectories are balanced (Malkin et al. 2022, equation 8). None: an objective of the user has
    no reader.
    """
    objective, conditioning = learner.objective, conditions_of(batch)
    reader = getattr(objective, "reader", None)
    if reader is None:
        return None
    with torch.no_grad():
        steps = reader.read(learner.trained, batch)
        log_z = objective.log_partition(learner.trained, conditioning.encoding, conditioning.limit)
    return rank_correlation(steps.log_ratio() + steps.log_reward + (0.0 if log_z is None else log_z), steps.log_reward)


class Sampler(SearchMethod):
    """Trains the policy of a run on predicted scores, from its first weights, then proposes new samples of it.

    Attributes:
        searched: the method of the search, which learns from the samples, too.
        num_trained_on: architectures of the history when the policy was trained on it; 0: it was not.
        scale: of the rewards of that training.
        num_done: updates of an unfinished training after which a resumed run continues.
    """

    def __init__(
        self,
        searched: SearchMethod,
        *,
        learner: Learner,
        build_learners: Callable[[], Iterable[tuple[Learner, int]]],
        seed: int,
        num_verified: int,
    ) -> None:
        """Keep the components.

        Args:
            searched: method of the search.
            learner: of the run, whose networks get the trained weights.
            build_learners: returns the learners of a new policy, in order, with their numbers of updates.
            seed: of the run.
            num_verified: samples that are evaluated.
        """
        super().__init__(searched.setup)
        self.searched, self.learner, self.num_verified = searched, learner, num_verified
        self.num_trained_on = self.num_done = 0
        self.scale: RewardScale | None = None
        self._training: dict[str, Any] | None = None  # state of an unfinished training after its last whole sampling
        self._build_learners, self._seed = build_learners, seed
        self._model: ScoreModel | None = None  # the last one

    @property
    def is_used(self) -> bool:
        """Return whether the policy is trained after the search: not on the scores themselves, and not off."""
        return not self.searched.trains_policy and self.setup.config.train_sampler

    @property
    def is_trained(self) -> bool:
        """Return whether the policy was trained on all evaluations but those of its own samples."""
        return self.num_trained_on > 0 and self.num_trained_on + len(self.verified) == len(self.history)

    @property
    def verified(self) -> list[Proposal]:
        """Return the evaluated samples."""
        is_later = (each for each in self.history.proposals if each.position >= self.num_trained_on)
        return [each for each in is_later if each.origin is ProposalOrigin.SAMPLER]

    def score_model(self) -> ScoreModel:
        """Return the surrogate, fitted to the evaluations that the policy was trained on, to all before."""
        num = self.num_trained_on or len(self.history)
        if self._model is None or self._model.num != num:
            self._model = ScoreModel(self.setup, num)
        return self._model

    def samples(self, **fixed: Any) -> TrajectoryBatch:
        """Return the samples that are checked, without exploration; some conditions are fixed."""
        generator = self._generator(Stream.CHECK)
        conditioning = capped_conditioning(self.setup.task, self.env, _NUM_CHECKED, generator, caps={}, **fixed)
        policy = self.learner.sampling
        return sample_forward(self.setup.context, policy, conditioning=conditioning, generator=generator)

    def _generator(self, *stream: int) -> torch.Generator:
        return torch.Generator().manual_seed(stream_seed(self._seed, Stream.SAMPLER, *stream))

    def propose(self, call: int, num: int) -> Candidates:
        """Return up to `num` samples that are not evaluated yet; none before the training, and after `num_verified`."""
        num = min(num, self.num_verified - len(self.verified)) if self.is_trained else 0
        if num <= 0:
            return Candidates(self.env.initial_states(0))
        states = self.samples().terminal
        new = unknown_mask(self.history, states).nonzero().squeeze(1)
        states = states[accepted(states, new, num, self.setup.is_refused_at)]
        return Candidates(states, origin_of((ProposalOrigin.SAMPLER, len(states))))

    def observe(self, results: Results) -> Mapping[str, float] | Learned:
        return self.searched.observe(results)

    def work(self, round: int) -> Generator[Mapping[str, float] | Learned]:
        """Train the policy, unless it has learned from all evaluations; each update is a step of the run.

        A resumed run continues after the last sampling from which all updates were taken.
        """
        if self.is_trained:
            return
        if self._training is not None and self._training["num"] != len(self.history):
            self._training = None
        self.num_trained_on, self.scale = 0, None
        before: dict[str, Any] = self._training or {"phase": 0, "done": 0, "codes": [], "values": []}
        model, generator = self.score_model(), self._generator()
        yield {}
        known = dict(zip(before["codes"], before["values"], strict=True))
        temperature = cast(Mapping[str, Any], self.setup.task.config.cond.temperature)
        chooses_beta = dict(temperature) == asdict(TemperatureConfig())
        target = SamplerTarget(self.setup, model, chooses_beta=chooses_beta, generator=generator, known=known)
        yield from target.grow(generator)
        self.num_done, learner = (done := before["done"]), self.learner
        for phase, (learner, num) in enumerate(self._build_learners()):
            if phase < before["phase"]:
                continue
            policy, sampled, of_samples = AmortisedPolicy(self.setup.context, learner), None, dict[str, float]()
            log_rewards: list[float] = []
            if "policy" in before and phase == before["phase"]:
                policy.load_state_dict(before["policy"])
            first = policy.num_samplings
            for metrics in policy.train(num - policy.num_updates, target, partial(self._generator, phase), first=first):
                if policy.sampled is not None and policy.sampled is not sampled:
                    sampled = policy.sampled
                    of_samples = sample_metrics(policy, target)
                    log_rewards = sampled.log_reward.tolist()
                if not metrics:
                    continue
                done, is_resumable = done + 1, policy.num_samplings > first and policy.num_updates < num
                if is_resumable:
                    first, self.num_done = policy.num_samplings, done
                    self._training = self._state_of(policy, target, phase)
                likelihoods = {f"likelihood_{name}": value for name, value in metrics.items()}
                named = likelihoods if learner.objective.imitates else {**metrics, **of_samples}
                yield Learned(named, log_rewards, is_resumable=is_resumable)
                log_rewards = []
        self.learner.take_weights(learner)
        self.num_trained_on, self.scale, self._training, self.num_done = len(self.history), target.scale, None, 0

    def _state_of(self, policy: AmortisedPolicy, target: SamplerTarget, phase: int) -> dict[str, Any]:
        """Return the state of an unfinished training; predictions are kept, which depend on what is predicted with."""
        known = target.predict.known
        return {
            "num": len(self.history),
            "done": self.num_done,
            "phase": phase,
            "policy": map_tensors(Tensor.clone, policy.state_dict()),
            "codes": [*known],
            "values": torch.stack([*known.values()]),
        }

    def state_dict(self) -> dict[str, Any]:
        scale = None if self.scale is None else self.scale.state_dict()
        return {"num_trained_on": self.num_trained_on, "scale": scale, "training": self._training}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_trained_on, scale, self._training = state["num_trained_on"], state["scale"], state["training"]
        self.num_done = self._training["done"] if self._training else 0
        self.scale = None if scale is None else RewardScale(self.setup.task, **scale)
