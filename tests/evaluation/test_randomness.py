"""Saved states of the global generators."""

import io
import random

import numpy as np
import torch

from gflownet.evaluation.randomness import global_states, seeded, set_global_states


def numbers() -> list[float]:
    return [torch.rand(()).item(), float(np.random.rand()), float(np.random.randn()), random.random(), random.gauss()]


def test_global_states_continue_after_a_round_trip():
    with seeded(3):
        numbers()  # one Gaussian of a pair is left in numpy's and Python's state
        buffer = io.BytesIO()
        torch.save(global_states(), buffer)
        expected = [numbers(), numbers()]
    buffer.seek(0)
    with seeded(4):
        set_global_states(torch.load(buffer, weights_only=True))
        assert [numbers(), numbers()] == expected
