"""The sampler that is trained after a search: its pool, rewards, conditions and exact distribution on a small space."""

import copy
import io
import itertools
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from gflownet.certificate.exact import (
    enumerate_states,
    forward_scores,
    policy_log_prob,
    terminating_distribution,
    total_variation,
)
from gflownet.errors import UserError
from gflownet.evaluation.conditioning import Conditioning
from gflownet.evaluation.statistics import spearman
from gflownet.evaluation.task import GFNTask
from gflownet.learning.sampler import sample_forward
from gflownet.run.trainer import GFNTrainer
from gflownet.search import amortised_search
from gflownet.search.loop import LoopOptions, SearchLoop
from gflownet.search.method import Candidates, Learned
from gflownet.search.sampler import (
    RewardScale,
    SamplerTarget,
    ScoreModel,
    capped_conditioning,
    quality_column,
    sampler_conditioning,
)
from tests.search.searches import (
    RIDGE,
    DirectEvaluator,
    ScoresPlaces,
    build,
    evaluations,
    method_of,
    proposals,
    values_of,
)

CAPPED = ("env.choices.cost=tests.search.searches:cost", "env.choices.max_parameters=9", "cond.limit.metric=parameters")
UPDATES = ("search.sampler.num_updates=165", "model.num_emb=32")


def searched(*overrides: str, num_rounds: int = 3) -> GFNTrainer:
    trainer = build("random", RIDGE, *overrides)
    list(proposals(trainer, num_rounds, batch_size=8))
    return trainer


def train(trainer: GFNTrainer) -> list[dict[str, float]]:
    return [dict(step.metrics) for step in map(Learned.of, trainer.sampler.work(0)) if step.metrics]


def target_of(trainer: GFNTrainer, *, chooses_beta: bool = True) -> SamplerTarget:
    generator = torch.Generator().manual_seed(0)
    method, history = method_of(trainer)
    model = ScoreModel(method.setup, len(history))
    target = SamplerTarget(method.setup, model, chooses_beta=chooses_beta, generator=generator)
    for _ in target.grow(generator):
        pass
    return target


def scale_of(scores: Tensor, sizes: Tensor, *, chooses_beta: bool) -> RewardScale:
    def log_reward(values: Tensor, conditioning: Conditioning) -> Tensor:
        return conditioning.beta * values.clamp(min=1e-4).log()

    return RewardScale(cast(GFNTask, SimpleNamespace(log_reward=log_reward)), scores, sizes, chooses_beta, 0.5)


def test_temperature_gives_the_64th_best_within_the_cap_a_log_reward_of_minus_10():
    scores, sizes = torch.linspace(0.1, 0.9, 200, dtype=torch.float64), torch.arange(200)[:, None]
    scale = scale_of(scores, sizes, chooses_beta=True)
    conditioning = Conditioning(torch.zeros(3, 1), torch.ones(3), torch.tensor([[199], [99], [9]]))
    best, beta = scale.levels(conditioning)
    assert best.exp().tolist() == pytest.approx([0.9, float(scores[99]), float(scores[9])])
    of_best = scale.log_reward(scores[[199, 99, 9]], conditioning)
    of_last = scale.log_reward(scores[[136, 36, 0]], conditioning)
    assert of_best.tolist() == pytest.approx([0.0] * 3, abs=1e-4)
    assert of_last.tolist() == pytest.approx([-10.0] * 3, rel=1e-3)
    assert float(scale.log_reward(torch.tensor([1e-9]), conditioning[:1])) == -50
    assert float(beta[0]) != pytest.approx(float(beta[2]))


def test_given_temperature_is_kept_and_equal_scores_have_equal_rewards():
    scores, sizes = torch.full((80,), 0.5, dtype=torch.float64), torch.zeros(80, 0, dtype=torch.int64)
    conditioning = Conditioning(torch.zeros(2, 1), torch.tensor([3.0, 5.0]))
    given = scale_of(scores, sizes, chooses_beta=False).log_reward(torch.tensor([0.25, 0.25]), conditioning)
    assert given.tolist() == pytest.approx([3 * math.log(0.5), 5 * math.log(0.5)])
    assert scale_of(scores, sizes, chooses_beta=True).log_reward(scores[:2], conditioning).tolist() == [0, 0]


def test_pool_has_known_random_and_mutated_candidates_once():
    trainer = searched()
    pool, history = target_of(trainer).pool, method_of(trainer)[1]
    codes = trainer.env.identify(pool).tolist()
    assert len(set(codes)) == len(codes)
    assert codes[: len(history)] == trainer.env.identify(history.states).tolist()
    assert len(pool) > len(history) + 20


def test_predictions_stay_within_the_range_of_scores():
    trainer = searched()
    method, history = method_of(trainer)
    sums = [sum(cast(Any, trainer.env.terminal(history.states, place)).values) for place in range(len(history))]
    history.measured[:] = [min(1.0, 0.2 + 0.2 * total) for total in sums]
    space = enumerate_states(trainer.env)
    scores = ScoreModel(method.setup, len(history))(space.states[space.terminal])
    assert float(scores.max()) == 1.0


def test_backward_trajectories_end_in_good_candidates_within_their_caps():
    trainer = searched(*CAPPED)
    target, generator = target_of(trainer), torch.Generator().manual_seed(1)
    conditioning = target.conditioning(200, generator)
    states = target.best(conditioning, generator)
    assert conditioning.limit is not None
    assert bool((trainer.env.sizes(states) <= conditioning.limit).all())
    assert len(conditioning.limit.unique()) > 4
    uncapped = target.best(replace(conditioning, limit=torch.full_like(conditioning.limit, 9)), generator)
    assert bool((trainer.env.sizes(uncapped) > conditioning.limit).any()), "else the caps would exclude nothing"


def test_samples_are_within_every_cap_and_follow_it():
    trainer = searched(*CAPPED, "search.sampler.num_updates=50")
    metrics = train(trainer)
    assert metrics[-1]["sampler_rank_correlation"] > 0.3
    generator, means = torch.Generator().manual_seed(0), []
    for cap in (2, 5, 9):
        conditioning = capped_conditioning(trainer.task, trainer.env, 256, generator, caps={"parameters": cap})
        batch = sample_forward(
            trainer.context, trainer.learner.sampling, conditioning=conditioning, generator=generator
        )
        sizes = trainer.env.sizes(batch.terminal)
        assert int((sizes <= cap).sum()) == 256
        means.append(float(sizes.double().mean()))
    assert means == sorted(means)


class Priced(ScoresPlaces):
    """The score and two costs."""

    objectives, costs = ("parameters", "flops", "value", "loss"), {"parameters": 5.0, "flops": 5.0}

    def utility(self, objective: str, value: float) -> float:
        return 1 / (1 + value) if objective == "loss" else super().utility(objective, value)


def priced(*overrides: str, objectives: str) -> GFNTrainer:
    options = (f"task={__name__}:Priced", f"evaluation.objectives=[{objectives}]")
    trainer = searched(*options, *overrides, num_rounds=0)
    method, history = method_of(trainer)
    states = Candidates.of(method.propose(1, 8)).states
    history.start(states)
    history.add(states, evaluations(trainer, states))
    sizes = [sum(values) for values in values_of(trainer, states)]
    rows = zip(history.scores, sizes, strict=True)
    history.metrics[:] = [{"value": x, "loss": 1 - x, "parameters": 9.0 + n, "flops": 99.0} for x, n in rows]
    return trainer


@pytest.mark.parametrize("objectives", ["loss,parameters,value"])
def test_score_under_a_limit_is_the_objective_that_is_no_cost(objectives):
    """In any order of the objectives; without a limit random networks are compared by it."""
    for limit in (CAPPED, ()):
        trainer = priced(*limit, objectives=objectives)
        target, history = target_of(trainer), method_of(trainer)[1]
        known = target.scale.scores[: len(history)]
        scores = known if limit else known[:, objectives.split(",").index("value")]
        assert target.scale.random_score == pytest.approx(float(scores.mean()), abs=0.15)
        assert spearman(scores.numpy(), torch.tensor(history.scores).numpy()) > 0.6


def test_objectives_under_a_limit_that_are_all_costs_have_preferences():
    assert quality_column(priced(*CAPPED, objectives="flops,parameters").task) is None
    assert quality_column(priced(*CAPPED, objectives="parameters,loss").task) == 1


def test_preferences_are_equal_under_a_limit_and_refused():
    """`gflownet.sample` passes None for what is not given."""
    task, env = (trainer := priced(*CAPPED, objectives="value,parameters")).task, trainer.env
    given = {"caps": {"parameters": 5}, "beta": None, "focus": None}
    conditioning = capped_conditioning(task, env, 4, torch.Generator(), preferences=None, **given)
    assert len(conditioning.encoding.unique(dim=0)) == 1
    with pytest.raises(UserError, match=r"preferences: expected none with cond.limit.metric, .* got \[0.9, 0.1\]"):
        capped_conditioning(task, env, 4, torch.Generator(), preferences=[0.9, 0.1], **given)


def test_cap_is_at_most_the_largest_of_training_by_default():
    trainer = build("random", RIDGE, *CAPPED, "cond.limit.high=6")
    for cap, expected in ((None, 6), (4, 4), (8, 8), (99, 9)):
        caps = {"parameters": cap}
        conditioning = capped_conditioning(trainer.task, trainer.env, 2, torch.Generator(), caps=caps)
        assert conditioning.limit is not None
        assert conditioning.limit.tolist() == [[expected]] * 2


def test_cap_that_the_environment_does_not_have_raises():
    trainer, message = (
        build("random", RIDGE, *CAPPED),
        "expected an environment with a cap of its multiply_adds, .* got ",
    )
    with pytest.raises(UserError, match=f"max_multiply_adds: {message}"):
        capped_conditioning(trainer.task, trainer.env, 2, torch.Generator(), caps={"multiply_adds": 5})


@pytest.mark.parametrize("num_verified", [0, 3])
def test_sampler_proposes_so_many_new_samples_once(num_verified):
    trainer = searched("search.sampler.num_updates=2")
    trainer.sampler.num_verified = num_verified
    rule = LoopOptions(max(num_verified, 1), max(num_verified, 1), num_rounds=1)
    for num_trained in (4, 0):  # a resumed run trains and evaluates nothing again
        steps = list(SearchLoop(trainer.sampler, rule).steps(DirectEvaluator(trainer.task)))
        assert sum(not step.evaluations for step in steps) == num_trained
        assert len(trainer.sampler.verified) == num_verified


@pytest.mark.parametrize(("num_taken", "num_done"), [(0, 0), (3, 2), (5, 4), (9, 9)])
def test_interrupted_training_continues_after_its_last_whole_sampling(num_taken, num_done, monkeypatch):
    monkeypatch.setattr(amortised_search, "_NUM_SAMPLED", 32)  # 2 updates per sampling
    updates = ("search.sampler.num_updates=5", "num_training_steps=5")
    whole, interrupted, resumed = (searched(*updates, num_rounds=1) for _ in range(3))
    untrained = copy.deepcopy(whole.policy.state_dict())
    assert len(train(whole)) == 10
    list(itertools.islice(filter(None, interrupted.sampler.work(0)), num_taken))
    torch.save(interrupted.sampler.state_dict(), file := io.BytesIO())
    file.seek(0)
    resumed.sampler.load_state_dict(torch.load(file, weights_only=True))
    assert resumed.sampler.num_done == num_done
    assert len(train(resumed)) == 10 - num_done
    first, second = whole.policy.state_dict(), resumed.policy.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(first[name], untrained[name]) for name in first)


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1, 2])
def test_sampler_approaches_the_reward_of_predictions(factor, monkeypatch):
    """With twice the inverse temperature in training the distance is seen."""
    trainer, levels = searched(*UPDATES, num_rounds=5), RewardScale.levels
    with monkeypatch.context() as patch:
        patch.setattr(RewardScale, "levels", lambda *args: (levels(*args)[0], factor * levels(*args)[1]))
        train(trainer)
    graph, sampler = enumerate_states(trainer.env), trainer.sampler
    assert sampler.scale is not None
    condition = sampler_conditioning(trainer.task, 1, torch.Generator().manual_seed(0))
    each = condition[torch.zeros(len(graph.terminal), dtype=torch.int64)]
    log_reward = sampler.scale.log_reward(sampler.score_model()(graph.states[graph.terminal]), each)
    target = torch.zeros(len(graph), dtype=torch.float64)
    target[graph.terminal] = log_reward.double().softmax(0)
    scores = forward_scores(trainer.context, trainer.learner.sampling, condition.encoding[0])
    distance = total_variation(terminating_distribution(graph, policy_log_prob(graph, scores)), target)
    assert distance < 0.15 if factor == 1 else distance > 0.25
