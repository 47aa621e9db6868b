"""Global generators: a candidate of another thread uses them without a trace in the states of the run."""

import random
import threading

import numpy as np
import pytest
import torch

from gflownet.training.random_states import get_random_state, seeded, set_random_state
from gflownet.workers.process import seed_all


def numbers() -> list[float]:
    return [torch.rand(()).item(), float(np.random.rand()), float(np.random.randn()), random.random(), random.gauss()]


class CandidateThread:
    """A thread in a seeded block, which draws at its start and at its end."""

    def __init__(self, seed: int) -> None:
        self.drawn: list[list[float]] = []
        self._seed, self._is_inside, self._may_end = seed, threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()
        assert self._is_inside.wait(30)

    def __exit__(self, *_: object) -> None:
        self._may_end.set()
        self._thread.join()

    def _run(self) -> None:
        with seeded(self._seed):
            self.drawn.append(numbers())
            with seeded(99):
                numbers()
            self._is_inside.set()
            assert self._may_end.wait(30)
            self.drawn.append(numbers())


@pytest.fixture(autouse=True)
def unchanged():
    before = get_random_state()
    yield
    set_random_state(before)


def oracle(seed: int, num: int) -> list[list[float]]:
    seed_all(seed)
    return [numbers() for _ in range(num)]


def test_states_during_evaluation_of_another_thread():
    expected = oracle(5, 3)
    seed_all(5)
    assert numbers() == expected[0]
    candidate = CandidateThread(7)
    with candidate:
        during = get_random_state()  # as of a checkpoint
        assert set(during) == {"torch", "numpy", "python"}
    assert numbers() == expected[1]
    set_random_state(during)
    assert [numbers(), numbers()] == expected[1:]
    assert candidate.drawn == oracle(7, 2)


def test_set_states_during_evaluation_of_another_thread():
    seed_all(5)
    state, expected = get_random_state(), numbers()
    seed_all(6)
    candidate = CandidateThread(7)
    with candidate:
        set_random_state(state)
        set_random_state(get_random_state())
    assert numbers() == expected
    assert candidate.drawn == oracle(7, 2)


def test_states_in_the_thread_of_a_candidate_are_its_own():
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
