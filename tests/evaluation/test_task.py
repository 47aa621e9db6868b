"""GFNTask: log-rewards, isolation of a candidate's randomness, the size objective."""

import math
import random

import numpy as np
import pytest
import torch

from gflownet.evaluation.task import Conditioning, GFNTask, Score, soft_size_objective
from gflownet.training.random_states import candidate_seed
from tests.evaluation.candidates import StubCandidate, StubTask, config_with


def test_log_reward_is_beta_times_log_score_above_the_floor():
    task = StubTask({}, config_with("evaluation.floor_score=0.25"))
    conditioning = Conditioning(torch.zeros(4, 8), torch.tensor([1.0, 2.0, 2.0, 0.0]))
    log_reward = task.log_reward(torch.tensor([1.0, 0.5, 0.0, 0.5]), conditioning)
    assert log_reward.tolist() == pytest.approx([0.0, 2 * math.log(0.5), 2 * math.log(0.25), 0.0])


class ForgetsTheBase(GFNTask):
    def __init__(self, config):
        self.data = config

    def evaluate(self, graph, *, seed):
        return Score(1.0)


def test_task_without_super_init_raises():
    task = ForgetsTheBase(config_with())
    for use in (lambda: task.num_cond_dim, lambda: task.sample_conditioning(1, generator=torch.Generator())):
        with pytest.raises(ValueError, match=r"^task: expected ForgetsTheBase\.__init__ to call super\(\)\.__init__"):
            use()


def test_a_task_without_sizes_has_none():
    assert (ForgetsTheBase.input_sizes, ForgetsTheBase.output_sizes) == ((), ())


class RandomTask(StubTask):
    def evaluate(self, graph: StubCandidate, *, seed: int) -> Score:
        return Score(float(torch.rand(())) + np.random.rand() + random.random())


def test_global_randomness_is_the_candidate_s_own_and_is_put_back():
    task = RandomTask({})
    values = []
    for seed in (5, 5, 6):
        before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]
        (score,) = task.evaluate_many([StubCandidate("a")], seeds=[seed])
        assert isinstance(score, Score)
        values.append(score.value)
        assert torch.equal(before[0], torch.get_rng_state())
        assert before[1:] == (np.random.get_state()[1].tolist(), random.getstate())  # type: ignore[index]
        assert torch.rand(1) + np.random.rand() + random.random() < 3  # moves every global generator on
    assert values[0] == values[1] != values[2]


def test_candidate_seeds_differ_by_run_and_by_graph():
    seeds = {candidate_seed(run, graph) for run in range(20) for graph in ("a", "b", "c")}
    assert len(seeds) == 60
    assert all(0 <= seed < 2**31 for seed in seeds)
    # Pinned: a change would make every stored score another candidate's.
    assert candidate_seed(0, "a") == 1_324_999_421


def test_size_objective_is_mnasnet_s():
    def objective(num_parameters: int, size_weight: float) -> float:
        return soft_size_objective(0.9, num_parameters, target_parameters=1_000, size_weight=size_weight)

    assert objective(123, 0.0) == 0.9
    assert objective(1_000, 0.07) == 0.9
    # Tan et al.: with w = -0.07 doubling the cost has to be paid for by 5 % more accuracy.
    assert objective(2_000, 0.07) == pytest.approx(0.9 * 0.9526, abs=1e-4)
    assert objective(500, 0.07) == pytest.approx(0.9 / 0.9526, abs=1e-4)
    assert math.isfinite(objective(0, 0.07))
