"""The sides of scripts/bench_rhn.py compute the same outputs and gradients as the oracle."""

from __future__ import annotations

import pytest

from gflownet.rhn.network import Stack
from scripts.rhn_sides import CASES, STACKS
from tests.rhn.random_networks import answer_of, assert_equal, oracle_answer, random_case


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS.keys())
def test_rhn_sides_match_the_oracle(seed: int, stack: Stack) -> None:
    case = random_case(seed)
    assert case.network.config.norm == "dora"  # the norm of `materialised`
    assert_equal(answer_of(case, stack), oracle_answer(case))


def test_multiply_adds_of_a_cell() -> None:
    """About 0.43 million for hidden 128, intermediate 256, rank 8, bottleneck 16, counted by hand without A itself."""
    medium = CASES["M"]
    cells = medium.depth * medium.tokens * medium.rows
    assert medium.multiply_adds / cells == pytest.approx(0.43e6, rel=0.05)
