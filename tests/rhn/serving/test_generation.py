"""Answers compared with the oracle, independent of the batch."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from gflownet.rhn.config import RHNConfig
from gflownet.rhn.decoding import RHNDecoder
from gflownet.rhn.network import RHN
from gflownet.rhn.serving.generation import Generation, Stream, generate, generate_batch
from gflownet.rhn.serving.sampling import FinishReason, SamplingParams
from tests.oracles import rhn as oracle
from tests.rhn.random_networks import random_case, random_network

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


@pytest.mark.parametrize("seed", range(4))
def test_generate_and_generate_batch_equal_oracle(seed: int) -> None:
    network = random_case(seed).network
    decoder = RHNDecoder(network)
    prompts = random_prompts(seed, network.config.vocabulary_size, 5)
    before = [list(prompt) for prompt in prompts]
    answers = generate_batch(decoder, prompts, [GREEDY] * 5, max_slots=1 + seed % 5)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert_is_greedy_oracle(network, prompt, answer, generate(decoder, prompt, GREEDY))
    assert prompts == before


def test_sampled_answer_is_independent_of_the_batch() -> None:
    network = random_network(RHNConfig(vocabulary_size=7, hidden_size=6, intermediate_size=8, depth=3, rank=2), 0)
    decoder = RHNDecoder(network)
    prompts = random_prompts(0, 7, 9)
    params = [SamplingParams(5.0, max_tokens=12, seed=seed, top_p=0.9, presence_penalty=0.3) for seed in range(9)]
    alone = [generate(decoder, *asked).tokens for asked in zip(prompts, params, strict=True)]
    assert [[s.token for s in Stream(decoder, *asked)] for asked in zip(prompts, params, strict=True)] == alone
    for max_slots in (2, 9):
        answers = generate_batch(decoder, prompts, params, max_slots=max_slots)
        assert [answer.tokens for answer in answers] == alone
    assert len({tuple(tokens) for tokens in alone}) == 9


def test_generate_continues_from_a_state() -> None:
    network = random_network(RHNConfig(vocabulary_size=7, hidden_size=6, intermediate_size=8, depth=3, rank=2), 1)
    decoder = RHNDecoder(network)
    whole = generate(decoder, [1, 2, 3], SamplingParams(temperature=0, max_tokens=9)).tokens
    first = Stream(decoder, [1, 2, 3], SamplingParams(temperature=0, max_tokens=4))
    tokens = [sampled.token for sampled in first]
    assert tokens == whole[:4]
    rest = generate(decoder, first.unread, SamplingParams(temperature=0, max_tokens=5), state=first.state)
    assert rest.tokens == whole[4:]
