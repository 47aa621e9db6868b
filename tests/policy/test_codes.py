"""Every way of being joined has a code of its own, within the table."""

import pytest
import torch

from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.states import MOST_VALUES, GraphVocabulary
from gflownet.policy.codes import PairCodes
from tests.contracts.environments import ENVIRONMENTS


def codes(*, num_edge_types: int, directed: bool) -> tuple[PairCodes, torch.Tensor]:
    """Return the codes of one pair for every edge type, reachable and not, [2 * (types + 1)]."""
    context = GraphBuildingEnvContext(ENVIRONMENTS["undirected"]())
    names = tuple(map(str, range(num_edge_types)))
    context.env.vocabulary = GraphVocabulary(("a",), max_nodes=2, directed=directed, edge_types=names)
    kinds = torch.arange(-1, num_edge_types, dtype=torch.int8).repeat(2)
    edge_type = torch.full((len(kinds), 2, 2), -1, dtype=torch.int8)
    edge_type[:, 0, 1] = kinds
    reach = torch.zeros_like(edge_type, dtype=torch.bool)
    reach[num_edge_types + 1 :] = True
    batch = {"edge_type": edge_type, "reach": reach}
    table = PairCodes(context)
    return table, table(batch)[:, 0, 1, 0]


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("num_edge_types", [1, 2, MOST_VALUES // 2, MOST_VALUES])
def test_edge_types_and_reachability_have_codes_of_their_own(num_edge_types, directed):
    table, found = codes(num_edge_types=num_edge_types, directed=directed)
    assert len(found.unique()) == len(found)
    assert int(found.min()) >= 0
    assert int(found.max()) < table.num_codes
