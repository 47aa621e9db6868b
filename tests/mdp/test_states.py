import networkx as nx
import pytest
import torch

from gflownet.mdp.states import Attribute, GraphStates, GraphVocabulary, bridges, transitive_closure
from tests.contracts.environments import ENVIRONMENTS


def random_adjacency(n: int, num: int, *, density: float, directed: bool, seed: int) -> torch.Tensor:
    """Return [num, n, n] bool; undirected graphs are symmetric and without loops."""
    edges = torch.rand(num, n, n, generator=torch.Generator().manual_seed(seed)) < density
    return edges if directed else edges.triu(1) | edges.triu(1).transpose(1, 2)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 9, 17])
@pytest.mark.parametrize("density", [0.08, 0.3])
def test_transitive_closure_matches_networkx(n, density):
    adjacency = random_adjacency(n, 10, density=density, directed=True, seed=n)
    for one, closed in zip(adjacency, transitive_closure(adjacency), strict=True):
        graph = nx.from_numpy_array(one.numpy(), create_using=nx.DiGraph)
        expected = {(s, t) for s in graph for t in nx.descendants(graph, s)} | {(v, v) for v in graph}
        assert {(s, t) for s, t in closed.nonzero().tolist()} == expected


def test_transitive_closure_of_longest_chain():
    for n in (2, 3, 4, 5, 8, 9, 33, 64, 65):
        chain = torch.diag_embed(torch.ones(1, n - 1), 1).bool()
        assert bool(transitive_closure(chain)[0, 0].all())


@pytest.mark.parametrize("n", [2, 4, 7, 12, 40])
@pytest.mark.parametrize("degree", [1.0, 1.8, 3.0])
def test_bridges_match_networkx(n, degree):
    """Also on graphs of several components, and with nodes that have no edge."""
    adjacency = random_adjacency(n, 12, density=degree / n, directed=False, seed=n)
    for one, result in zip(adjacency, bridges(adjacency), strict=True):
        expected = set(nx.bridges(nx.from_numpy_array(one.numpy())))
        assert {(s, t) for s, t in result.triu(1).nonzero().tolist()} == {tuple(sorted(e)) for e in expected}
        assert torch.equal(result, result.T)


def test_bridges_of_cycle_and_chain():
    """The effective resistance of an edge of a cycle of N nodes is 1 - 1/N: as close to a bridge's 1 as it gets."""
    chain = torch.diag_embed(torch.ones(126), 1)
    chain = chain + chain.T
    cycle = chain.clone()
    cycle[0, 126] = cycle[126, 0] = 1
    assert not bool(bridges(cycle.bool()[None]).any())
    assert torch.equal(bridges(chain.bool()[None])[0], chain.bool())


def test_equals_compares_every_field():
    env = ENVIRONMENTS["directed_attributes"]()
    states = env.initial_states(2)
    for name, value in vars(states).items():
        changed = states.clone()
        tensor = getattr(changed, name)
        if tensor[1].numel():
            tensor[1] = tensor[1] + 1 if tensor.dtype != torch.bool else ~tensor[1]
            assert states.equals(changed).tolist() == [True, False], name
        assert value.data_ptr() != tensor.data_ptr() or not tensor.numel()


def test_states_indexing_by_slice_mask_or_index():
    env = ENVIRONMENTS["computation_graph"]()
    states = env.initial_states(3)
    states.num_nodes[:] = torch.tensor([2, 3, 4])
    assert states[1:].num_nodes.tolist() == [3, 4]
    assert states[torch.tensor([False, True, True])].num_nodes.tolist() == [3, 4]
    assert states[torch.tensor([2, 0])].num_nodes.tolist() == [4, 2]
    assert GraphStates.cat([states[2:], states[:1]]).num_nodes.tolist() == [4, 2]
    assert len(states[torch.tensor([], dtype=torch.int64)]) == 0


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"node_types": ()}, "expected 1 to 127 types, values and nodes"),
        ({"max_nodes": 128}, "expected 1 to 127 types, values and nodes"),
        ({"node_attributes": (Attribute("mark", ()),)}, "expected 1 to 127 types, values and nodes"),
        ({"node_types": ("a", "b", "a")}, "expected distinct types and values, got .'a', 'b', 'a'."),
        ({"edge_attributes": (Attribute("bond", (1, "1")),)}, "expected distinct types and values"),
    ],
)
def test_invalid_vocabulary_raises(choices, message):
    with pytest.raises(ValueError, match=message):
        GraphVocabulary(**{"node_types": ("a",), "max_nodes": 3, "directed": True, **choices})
