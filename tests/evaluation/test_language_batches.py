"""Batches of a text: every section is read in order, the state passes, and a saved place continues."""

import pytest
import torch

from gflownet.evaluation.language_training import ContiguousBatches, RandomBatches


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_contiguous_rows_continue_where_the_last_batch_ended() -> None:
    text, random = torch.arange(200), generator()
    batches = ContiguousBatches(text, rows=3, length=7)
    previous = batches.next_rows(random)
    assert previous.shape == (3, 8)
    assert batches.state is None
    starts = previous[:, 0] - torch.tensor([0, 66, 132])  # 199 // 3 tokens of a section
    assert len(set(starts.tolist())) == 1
    assert int(starts[0]) < 7
    for _ in range(7):
        batches.pass_state(torch.ones(1, 3, 2, dtype=torch.bfloat16, requires_grad=True))
        assert batches.state is not None
        assert (batches.state.dtype, batches.state.requires_grad) == (torch.float32, False)
        rows = batches.next_rows(random)
        assert torch.equal(rows[:, 0], previous[:, -1])
        previous = rows


def test_contiguous_pass_ends_with_a_reset_of_the_state() -> None:
    batches, random = ContiguousBatches(torch.arange(21), rows=2, length=5), generator()
    firsts = []
    for _ in range(8):
        rows = batches.next_rows(random)
        assert int(rows.max()) <= 20
        firsts.append(batches.state is None)
        batches.pass_state(torch.zeros(1, 2, 1))
    assert firsts[0]
    assert sum(firsts) >= 4  # a section of 10 tokens has two sequences at most


@pytest.mark.parametrize("kind", [RandomBatches, ContiguousBatches])
def test_saved_place_continues_exactly(kind: type[RandomBatches] | type[ContiguousBatches]) -> None:
    text = torch.randint(256, (300,), generator=generator(), dtype=torch.uint8)
    batches, random = kind(text, rows=4, length=9), generator()
    for _ in range(5):
        batches.next_rows(random)
        batches.pass_state(torch.rand(2, 4, 3))
    again, again_random = kind(text, rows=4, length=9), torch.Generator()
    again.load_state_dict(batches.state_dict(), torch.device("cpu"))
    again_random.set_state(random.get_state())
    for _ in range(10):
        if batches.state is not None:
            assert again.state is not None
            assert torch.equal(again.state, batches.state)
        assert torch.equal(again.next_rows(again_random), batches.next_rows(random))


def test_text_too_short_for_contiguous_rows_raises() -> None:
    ContiguousBatches(torch.arange(31), rows=3, length=10)
    with pytest.raises(ValueError, match="expected at least 31 tokens for contiguous batches, got 30"):
        ContiguousBatches(torch.arange(30), rows=3, length=10)
