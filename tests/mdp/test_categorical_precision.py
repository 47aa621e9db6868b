"""Logits of 1e4: the log-normaliser alone would leave three digits of a float32 probability."""

import math

import pytest
import torch

from gflownet.mdp.categorical import GraphActionCategorical
from tests.oracles import categorical as oracle


def close_race(seed: int) -> tuple[list, list, list, int]:
    """Return graphs whose best logits lie around 1e4 and within a few units of one another."""
    generator = torch.Generator().manual_seed(seed)
    num_graphs = 6
    base = 1e4 * torch.randn(num_graphs, generator=generator)
    row_graphs = [torch.arange(num_graphs).repeat_interleave(2), torch.arange(num_graphs)]
    logits = [base[g][:, None] + 3 * torch.randn(len(g), 3, generator=generator) for g in row_graphs]
    masks = [torch.rand(x.shape, generator=generator) < 0.8 for x in logits]
    masks[1][:, 0] = True
    return logits, masks, row_graphs, num_graphs


@pytest.mark.parametrize("seed", range(5))
def test_categorical_precision_of_probabilities(seed):
    logits, masks, row_graphs, num_graphs = close_race(seed)
    categorical = GraphActionCategorical(logits, masks, row_graphs=row_graphs, num_graphs=num_graphs)
    owner, log_p = categorical.log_probs()
    mixed = categorical.mixed(0.25).log_probs()[1]
    for graph in range(num_graphs):
        expected = oracle.probabilities(oracle.legal_logits(logits, masks, row_graphs, graph))
        probabilities = list(expected.values())
        assert log_p[owner == graph].exp().tolist() == pytest.approx(probabilities, abs=1e-6)
        assert mixed[owner == graph].exp().tolist() == pytest.approx(
            [0.75 * p + 0.25 / len(expected) for p in probabilities], abs=1e-6
        )
        for action, p in expected.items():
            actions = torch.zeros(num_graphs, 3, dtype=torch.int64)
            actions[graph] = torch.tensor(action)
            assert math.exp(float(categorical.log_prob(actions)[graph])) == pytest.approx(p, abs=1e-6)


def test_categorical_gradients_of_large_logits():
    logits, masks, row_graphs, num_graphs = close_race(9)
    logits = [x.requires_grad_() for x in logits]
    categorical = GraphActionCategorical(logits, masks, row_graphs=row_graphs, num_graphs=num_graphs)
    actions = torch.zeros(num_graphs, 3, dtype=torch.int64)
    actions[:, 0] = 1
    categorical.log_prob(actions).sum().backward()
    for graph in range(num_graphs):
        probabilities = oracle.probabilities(
            oracle.legal_logits([x.detach() for x in logits], masks, row_graphs, graph)
        )
        for (t, row, column), p in probabilities.items():
            position = (row_graphs[t] == graph).nonzero().squeeze(1)[row]
            gradient = logits[t].grad
            assert gradient is not None
            expected = float((t, row, column) == (1, 0, 0)) - p
            assert float(gradient[position, column]) == pytest.approx(expected, abs=1e-6)
