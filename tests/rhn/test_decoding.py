"""One-token steps with few and many rows, in float64 and float32, compared with the oracle."""

from __future__ import annotations

import random

import pytest
import torch

from gflownet.rhn import decoding
from gflownet.rhn.config import RHNConfig
from gflownet.rhn.decoding import RHNDecoder
from gflownet.rhn.network import RHN, RecurrentStack
from tests.oracles import rhn as oracle
from tests.rhn.random_networks import Case, random_case, random_network, random_stack
from tests.rhn.rounding import num_terms_of_token, rounding_tolerance


@pytest.fixture(params=["few rows", "many rows"])
def _method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with the adapters of all layers made at once, and layer by layer."""
    if request.param == "many rows":
        monkeypatch.setattr(decoding, "ADAPTER_BYTES", 0)


def oracle_logits(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    config = case.network.config
    parameters = {name: parameter.detach() for name, parameter in case.network.named_parameters()}
    return oracle.forward(
        parameters, case.tokens, depth=config.depth, epsilon=config.epsilon, state=case.state, norm=config.norm
    )


def assert_near(got: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10 * max(1.0, wanted.abs().max().item()))


@pytest.mark.usefixtures("_method")
@pytest.mark.parametrize("seed", range(8))
def test_prefill_and_steps_equal_oracle(seed: int) -> None:
    case = random_case(seed)
    wanted, wanted_states = oracle_logits(case)
    model = RHNDecoder(case.network)
    logits, states = model.prefill(case.tokens, case.state)
    assert_near(logits, wanted[:, -1])
    assert_near(states, wanted_states)
    for copies in (1, 65):  # 65 copies are more than one tile
        total = len(case.tokens) * copies
        states = torch.full((model.state_shape[0], total, model.state_shape[1]), 3.0, dtype=torch.float64)
        if case.state is not None:
            states = case.state.repeat(1, copies, 1)
        starts = torch.ones(total, dtype=torch.bool) if case.state is None else None
        for k, tokens in enumerate(case.tokens.repeat(copies, 1).unbind(1)):
            before = states.clone()
            logits, new_states = model.step(tokens, states, starts if k == 0 else None)
            assert torch.equal(states, before)
            states = new_states
            assert_near(logits, wanted[:, k].repeat(copies, 1))
        assert_near(states, wanted_states.repeat(1, copies, 1))


@pytest.mark.usefixtures("_method")
def test_step_outputs_can_be_changed_and_differentiated() -> None:
    model = RHNDecoder(random_case(0).network)
    tokens, states = torch.zeros(3, dtype=torch.long), torch.zeros(model.state_shape[0], 3, model.state_shape[1])
    for made in (*model.step(tokens, states.double(), None), *model.prefill(tokens[:, None], None)):
        assert not made.is_inference()
        made.add_(1)
        (made * torch.ones_like(made, requires_grad=True)).sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("num_rows", "bottleneck"), [(3, 16), (8, 5), (33, 16), (130, 5)])
def test_step_of_a_row_in_any_batch_agrees_within_rounding(num_rows: int, bottleneck: int, dtype: torch.dtype) -> None:
    config = RHNConfig(hidden_size=64, intermediate_size=72, depth=3, rank=4, bottleneck=bottleneck)
    model, chance = RHNDecoder(random_network(config, 0).to(dtype)), random.Random(num_rows)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(256, (num_rows,), generator=generator)
    states = torch.randn(3, num_rows, 64, generator=generator).to(dtype)
    starts = torch.rand(num_rows, generator=generator) < 0.3
    logits, new_states = model.step(tokens, states, starts)
    largest = max(logits.abs().max().item(), new_states.abs().max().item())
    tolerance = rounding_tolerance(dtype, num_terms=num_terms_of_token(config), magnitude=largest)
    assert (logits[0] - logits[1]).abs().max() > 100 * tolerance  # rows mixed up would be seen
    for size in {1, 2, num_rows // 2 + 1, num_rows - 1, num_rows}:
        rows = chance.sample(range(num_rows), size)
        row_logits, row_states = model.step(tokens[rows], states[:, rows], starts[rows])
        torch.testing.assert_close(row_logits, logits[rows], rtol=0, atol=tolerance)
        torch.testing.assert_close(row_states, new_states[:, rows], rtol=0, atol=tolerance)
        if dtype == torch.float64:
            assert torch.equal(row_logits.argmax(-1), logits[rows].argmax(-1))


@pytest.mark.usefixtures("_method")
@pytest.mark.parametrize("network", [random_case(0).network, random_stack(1), random_stack(4)])
def test_step_ignores_non_finite_state_of_first_tokens(network: RHN | RecurrentStack) -> None:
    decoder = RHNDecoder(network)
    tokens, starts = torch.zeros(3, dtype=torch.int64), torch.tensor([True, False, True])
    states = torch.randn(decoder.state_shape[0], 3, decoder.state_shape[1], dtype=torch.float64)
    expected, _ = decoder.step(tokens, states, starts)
    states[:, starts] = torch.tensor([torch.nan, torch.inf], dtype=torch.float64).view(1, 2, 1)
    logits, new_states = decoder.step(tokens, states, starts)
    assert torch.equal(logits, expected)
    assert bool(new_states.isfinite().all())


def test_refresh_reads_changed_weights() -> None:
    case = random_case(2)
    decoder = RHNDecoder(case.network)
    before, _ = decoder.prefill(case.tokens, None)
    with torch.no_grad():
        case.network.norm.weight.mul_(2)
    assert torch.equal(decoder.prefill(case.tokens, None)[0], before)
    decoder.refresh()
    assert_near(decoder.prefill(case.tokens, None)[0], 2 * before)


def test_prefill_without_a_token_raises() -> None:
    with pytest.raises(ValueError, match="at least one of each"):
        RHNDecoder(random_case(0).network).prefill(torch.zeros(1, 0, dtype=torch.long), None)
