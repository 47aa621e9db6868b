"""Global generators: a candidate uses them without a trace in the states of the run."""

import random

import numpy as np
import pytest
import torch

from gflownet.training.random_states import get_random_state, seeded, set_random_state
from gflownet.workers.process import seed_all


def numbers() -> list[float]:
    return [torch.rand(()).item(), float(np.random.rand()), float(np.random.randn()), random.random(), random.gauss()]


@pytest.fixture(autouse=True)
def unchanged():
    before = get_random_state()
    yield
    set_random_state(before)


def oracle(seed: int, num: int) -> list[list[float]]:
    seed_all(seed)
    return [numbers() for _ in range(num)]


def test_states_in_a_block_are_its_own():
    with seeded(7):
        first = get_random_state()
        expected = numbers()
        set_random_state(first)
        assert numbers() == expected
    assert oracle(7, 1) == [expected]


def test_seeded_restores_after_an_exception():
    seed_all(5)
    expected = oracle(5, 1)[0]
    seed_all(5)
    with pytest.raises(KeyboardInterrupt), seeded(7), seeded(8):
        raise KeyboardInterrupt
    assert numbers() == expected


def test_generator_of_a_gpu_is_seeded_and_restored(monkeypatch):
    gpu = torch.Generator()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "manual_seed", gpu.manual_seed)
    monkeypatch.setattr(torch.cuda, "get_rng_state", gpu.get_state)
    monkeypatch.setattr(torch.cuda, "set_rng_state", gpu.set_state)

    def draw() -> float:
        return float(torch.rand(1, generator=gpu))

    gpu.manual_seed(5)
    expected = [draw() for _ in range(2)]
    gpu.manual_seed(5)
    for seed in (7, 8):
        with seeded(seed):
            state = get_random_state()
            first = draw()
            set_random_state(state)
            assert draw() == first == float(torch.rand(1, generator=torch.Generator().manual_seed(seed)))
    assert [draw() for _ in range(2)] == expected
