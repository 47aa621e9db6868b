"""REINFORCE: its gradient, its baseline, and what it learns."""

import pytest
import torch

from gflownet.search.reinforce import Reinforce
from tests.search.searches import build, evaluations, method_of, proposals, values_of


def reinforce(*overrides: str):
    trainer = build("reinforce", *overrides)
    method = method_of(trainer)[0]
    assert isinstance(method, Reinforce)
    return trainer, method


def test_baseline_is_the_unbiased_moving_average():
    trainer, method = reinforce("search.options.baseline_decay=0.75")
    list(proposals(trainer, 5))
    states = method.propose(6, 1)
    method.history.add(states, evaluations(trainer, states))
    observed = method.observe(6)["baseline"]
    scores = [proposal.score for proposal in method_of(trainer)[1].proposals]
    weights = [0.75 ** (5 - number) for number in range(6)]
    expected = sum(w * s for w, s in zip(weights, scores, strict=True)) / sum(weights)
    assert observed == pytest.approx(expected)


def test_reinforce_prefers_better_architectures():
    trainer, _ = reinforce("search.options.learning_rate=0.02", "search.options.entropy=0.002")
    batches = list(proposals(trainer, 40, batch_size=8))
    scores = torch.tensor([proposal.score for proposal in method_of(trainer)[1].proposals])
    assert float(scores[-80:].mean()) > float(scores[:80].mean()) + 0.1
    assert len({values for states in batches[-10:] for values in values_of(trainer, states)}) > 1
