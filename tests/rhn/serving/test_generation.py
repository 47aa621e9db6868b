"""Answers compared with the oracle, independent of the batch."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from gflownet.rhn.decoding import RHNDecoder
from gflownet.rhn.network import RHN
from gflownet.rhn.serving.generation import Generation, generate, generate_batch
from gflownet.rhn.serving.sampling import FinishReason, SamplingParams
from tests.fast_cases import slow_except
from tests.oracles import rhn as oracle
from tests.rhn.random_networks import random_case

GREEDY = SamplingParams(temperature=0, max_tokens=6, logprobs=20)


def oracle_log_probabilities(network: RHN, tokens: Sequence[int]) -> Tensor:
    """Return [T, V], of the tokens after each."""
    config = network.config
    parameters = {name: parameter.detach() for name, parameter in network.named_parameters()}
    logits, _ = oracle.forward(
        parameters, torch.tensor([list(tokens)]), depth=config.depth, epsilon=config.epsilon, norm=config.norm
    )
    return logits[0].log_softmax(-1)


def assert_is_greedy_oracle(network: RHN, prompt: Sequence[int], *answers: Generation) -> None:
    """Compare tokens, and the log-probabilities of the whole vocabulary to 1e-10."""
    tokens = answers[0].tokens
    assert len(tokens) == GREEDY.max_tokens
    wanted = oracle_log_probabilities(network, [*prompt, *tokens])[len(prompt) - 1 : -1]
    for answer in answers:
        assert answer.finish_reason is FinishReason.LENGTH
        assert answer.tokens == wanted.argmax(-1).tolist()
        for sampled, row in zip(answer.sampled, wanted.tolist(), strict=True):
            got = dict(sampled.likeliest)
            assert [got[token] for token in range(len(row))] == pytest.approx(row, rel=1e-10, abs=1e-10)
            assert sampled.log_probability == got[sampled.token]


def random_prompts(seed: int, vocabulary_size: int, count: int) -> list[list[int]]:
    chance = random.Random(seed)
    return [[chance.randrange(vocabulary_size) for _ in range(chance.randint(1, 7))] for _ in range(count)]


@pytest.mark.parametrize("seed", slow_except((0, 1), range(4)))
def test_generate_and_generate_batch_equal_oracle(seed: int) -> None:
    network = random_case(seed).network
    decoder = RHNDecoder(network)
    prompts = random_prompts(seed, network.config.vocabulary_size, 5)
    before = [list(prompt) for prompt in prompts]
    answers = generate_batch(decoder, prompts, [GREEDY] * 5, max_slots=1 + seed % 5)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert_is_greedy_oracle(network, prompt, answer, generate(decoder, prompt, GREEDY))
    assert prompts == before
