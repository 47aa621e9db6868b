"""One token at a time says what the loops say, whatever the number of rows."""

from __future__ import annotations

import pytest
import torch

from gflownet.rhn.decoding import RHNDecoder
from tests.oracles import rhn as oracle
from tests.rhn.random_networks import Case, random_case


def oracle_logits(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    config = case.network.config
    parameters = {name: parameter.detach() for name, parameter in case.network.named_parameters()}
    return oracle.forward(
        parameters, case.tokens, depth=config.depth, epsilon=config.epsilon, state=case.state, norm=config.norm
    )


def assert_near(got: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10 * max(1.0, wanted.abs().max().item()))


@pytest.mark.parametrize("seed", range(24))
def test_prefill_and_steps_are_the_oracle(seed: int) -> None:
    case = random_case(seed)
    wanted, wanted_states = oracle_logits(case)
    decoder = RHNDecoder(case.network)
    logits, states = decoder.prefill(case.tokens, case.state)
    assert_near(logits, wanted[:, -1])
    assert_near(states, wanted_states)
    rows = len(case.tokens)
    for copies in (1, 13):  # 13 makes more than a tile, the last one not full
        total = rows * copies
        states = torch.full((decoder.state_shape[0], total, decoder.state_shape[1]), 3.0, dtype=torch.float64)
        if case.state is not None:
            states = case.state.repeat(1, copies, 1)
        starts = torch.ones(total, dtype=torch.bool) if case.state is None else None
        for k, tokens in enumerate(case.tokens.repeat(copies, 1).unbind(1)):
            before = states.clone()
            logits, new_states = decoder.step(tokens, states, starts if k == 0 else None)
            assert torch.equal(states, before)
            states = new_states
            assert_near(logits, wanted[:, k].repeat(copies, 1))
        assert_near(states, wanted_states.repeat(1, copies, 1))


@pytest.mark.parametrize("rows", [4, 12])
def test_rows_that_start_and_rows_that_go_on_share_a_step(rows: int) -> None:
    case = random_case(0)
    decoder = RHNDecoder(case.network)
    tokens = torch.randint(decoder.vocabulary_size, (rows,))
    starts = torch.arange(rows) % 2 == 0
    states = torch.randn(decoder.state_shape[0], rows, decoder.state_shape[1], dtype=torch.float64)
    logits, new_states = decoder.step(tokens, states, starts)
    for row in range(rows):
        state = None if starts[row] else states[:, row : row + 1]
        wanted, wanted_states = decoder.prefill(tokens[row : row + 1, None], state)
        assert_near(logits[row], wanted[0])
        assert_near(new_states[:, row], wanted_states[:, 0])


def test_a_change_of_the_weights_is_read_by_refresh() -> None:
    case = random_case(2)
    decoder = RHNDecoder(case.network)
    before, _ = decoder.prefill(case.tokens, None)
    with torch.no_grad():
        case.network.norm.weight.mul_(2)
    assert torch.equal(decoder.prefill(case.tokens, None)[0], before)
    decoder.refresh()
    assert_near(decoder.prefill(case.tokens, None)[0], 2 * before)


def test_a_prefill_without_a_token_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one of each"):
        RHNDecoder(random_case(0).network).prefill(torch.zeros(1, 0, dtype=torch.long), None)
