import math
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest
import torch

from gflownet.mdp.categorical import GraphActionCategorical
from tests.oracles import categorical as oracle

Case = tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor], int]


def cases(num: int) -> Iterator[tuple[Case, Random]]:
    """Yield cases, and a generator for further choices."""
    for rng in map(Random, range(num)):
        yield random_case(rng), rng


def random_case(rng: Random) -> Case:
    """Return (logits, masks, row_graphs, num_graphs): ragged, with empty groups, and at least one legal action each."""
    num_graphs, num_types, scale = rng.randint(1, 5), rng.randint(1, 4), rng.choice([1.0, 30.0, 1e4])
    generator = torch.Generator().manual_seed(rng.getrandbits(31))
    logits, masks, row_graphs = [], [], []
    for _ in range(num_types):
        rows = torch.randint(0, 4, (num_graphs,), generator=generator)
        graphs = torch.repeat_interleave(torch.arange(num_graphs), rows)
        columns = int(torch.randint(1, 4, (1,), generator=generator))
        logits.append(torch.randn(len(graphs), columns, generator=generator) * scale)
        masks.append(torch.rand(len(graphs), columns, generator=generator) < 0.5)
        row_graphs.append(graphs)
    # A last type, like Stop: one row per graph, legal where nothing else is.
    legal = torch.zeros(num_graphs, dtype=torch.bool)
    for mask, graphs in zip(masks, row_graphs, strict=True):
        legal.index_put_((graphs[mask.any(1)],), torch.tensor(True))
    logits.append(torch.randn(num_graphs, 1, generator=generator) * scale)
    masks.append(~legal[:, None] | (torch.rand(num_graphs, 1, generator=generator) < 0.5))
    row_graphs.append(torch.arange(num_graphs))
    return logits, masks, row_graphs, num_graphs


def build(case, *, grad: bool = False) -> GraphActionCategorical:
    logits, masks, row_graphs, num_graphs = case
    if grad:
        logits = [x.requires_grad_() for x in logits]
    return GraphActionCategorical(logits, masks, row_graphs=row_graphs, num_graphs=num_graphs)


def test_categorical_equals_softmax_per_graph():
    for case, _ in cases(25):
        logits, masks, row_graphs, num_graphs = case
        categorical = build(case)
        for graph in range(num_graphs):
            legal = oracle.legal_logits(logits, masks, row_graphs, graph)
            expected = oracle.probabilities(legal)
            assert float(categorical.logsumexp()[graph]) == pytest.approx(oracle.logsumexp(legal), rel=1e-6, abs=1e-6)
            assert float(categorical.log_n_actions()[graph]) == pytest.approx(math.log(len(legal)), abs=1e-6)
            assert float(categorical.entropy()[graph]) == pytest.approx(oracle.entropy(legal), abs=2e-5)
            for action, p in expected.items():
                actions = torch.zeros(num_graphs, 3, dtype=torch.int64)
                actions[graph] = torch.tensor(action)
                assert math.exp(float(categorical.log_prob(actions)[graph])) == pytest.approx(p, rel=2e-3, abs=1e-6)
            best = tuple(categorical.argmax()[graph].tolist())
            assert legal[best] == max(legal.values())


def test_categorical_mixing_and_temperature():
    for case, rng in cases(25):
        epsilon, temperature = rng.choice((0.0, rng.random(), 1.0)), rng.uniform(0.2, 5.0)
        logits, masks, row_graphs, num_graphs = case
        owner, log_p = build(case).tempered(temperature).mixed(epsilon).log_probs()
        for graph in range(num_graphs):
            legal = oracle.legal_logits(logits, masks, row_graphs, graph)
            tempered = oracle.probabilities({a: v / temperature for a, v in legal.items()})
            expected = [(1 - epsilon) * p + epsilon / len(legal) for p in tempered.values()]
            assert log_p[owner == graph].exp().tolist() == pytest.approx(expected, rel=1e-2, abs=1e-5)


def test_categorical_samples_legal_actions_only():
    for case, rng in cases(12):
        seed = rng.getrandbits(31)
        logits, masks, row_graphs, num_graphs = case
        categorical = build(case)
        sampled = categorical.sample(torch.Generator().manual_seed(seed))
        for graph in range(num_graphs):
            legal = oracle.legal_logits(logits, masks, row_graphs, graph)
            assert tuple(sampled[graph].tolist()) in legal
        assert bool((categorical.log_prob(sampled) > -math.inf).all())
        for t, mask in enumerate(masks):
            for graph in range(num_graphs):
                for row in range(int((row_graphs[t] == graph).sum()) + 2):
                    for column in range(mask.shape[1] + 1):
                        if (t, row, column) not in oracle.legal_logits(logits, masks, row_graphs, graph):
                            actions = sampled.clone()
                            actions[graph] = torch.tensor([t, row, column])
                            assert float(categorical.log_prob(actions)[graph]) == -math.inf
        for logits_shown, mask in zip(categorical.logits, masks, strict=True):
            assert torch.equal(logits_shown == -math.inf, ~mask)


def test_categorical_sampling_frequencies():
    logits = [torch.tensor([[0.0, 1.0], [2.0, -1.0], [5.0, 0.0]]), torch.tensor([[0.5], [1.5]])]
    masks = [torch.tensor([[True, True], [True, False], [True, True]]), torch.ones(2, 1, dtype=torch.bool)]
    row_graphs = [torch.tensor([0, 0, 1]), torch.tensor([0, 1])]
    num_draws = 20_000  # copies of the two graphs in one batch
    offsets = 2 * torch.arange(num_draws)[:, None]
    categorical = GraphActionCategorical(
        [rows.repeat(num_draws, 1) for rows in logits],
        [mask.repeat(num_draws, 1) for mask in masks],
        row_graphs=[(offsets + graphs).flatten() for graphs in row_graphs],
        num_graphs=2 * num_draws,
    )
    sampled = categorical.sample(torch.Generator().manual_seed(5))
    counts = Counter((i % 2, *action) for i, action in enumerate(sampled.tolist()))
    for graph in range(2):
        for action, p in oracle.probabilities(oracle.legal_logits(logits, masks, row_graphs, graph)).items():
            deviation = 4.5 * math.sqrt(p * (1 - p) / num_draws)
            assert counts[graph, *action] / num_draws == pytest.approx(p, abs=deviation)


def test_categorical_masked_logits_have_no_gradient():
    for case, _ in cases(12):
        categorical = build(case, grad=True)
        (categorical.logsumexp().sum() + categorical.entropy().sum()).backward()
        for values, mask in zip(case[0], case[1], strict=True):
            if values.grad is not None:
                assert bool((values.grad[~mask] == 0).all())
                assert bool(values.grad.isfinite().all())


def test_categorical_graph_without_actions_raises():
    masks = [torch.tensor([[True], [False], [True]])]
    with pytest.raises(ValueError, match="graph 1: expected at least one legal action"):
        GraphActionCategorical([torch.zeros(3, 1)], masks, row_graphs=[torch.tensor([0, 1, 2])], num_graphs=3)


@pytest.mark.parametrize(("name", "value"), [("tempered", 0.0), ("tempered", -1.0), ("mixed", 1.5), ("mixed", -0.1)])
def test_categorical_invalid_temperature_or_epsilon_raises(name, value):
    categorical = GraphActionCategorical(
        [torch.zeros(1, 1)], [torch.ones(1, 1, dtype=torch.bool)], row_graphs=[torch.tensor([0])], num_graphs=1
    )
    with pytest.raises(ValueError, match=r"expected a number"):
        getattr(categorical, name)(value)
