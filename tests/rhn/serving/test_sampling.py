"""Samples follow the distribution of the parameters, row by row."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from gflownet.rhn.serving import sampler as sampler_module
from gflownet.rhn.serving.sampler import Draw, History, RepetitionPenaltyLogitsProcessor, TokenSampler
from gflownet.rhn.serving.sampling import Sampled, SamplingError, SamplingParams

CPU = torch.device("cpu")


def oracle_probabilities(
    logits: Sequence[float], params: SamplingParams, prompt: Sequence[int], generated: Sequence[int]
) -> list[float]:
    """Return the distribution of the next token out of loops."""
    scores = list(logits)
    for token in range(len(scores)):
        if token in prompt or token in generated:
            penalty = params.repetition_penalty
            scores[token] = scores[token] / penalty if scores[token] > 0 else scores[token] * penalty
        if token in generated:
            scores[token] -= params.presence_penalty
        scores[token] -= params.frequency_penalty * list(generated).count(token)
        scores[token] += params.logit_bias.get(token, 0)
        if token in params.stop_token_ids and len(generated) < params.min_tokens:
            scores[token] = -math.inf
    largest = max(scores)
    if params.temperature == 0:
        return [float(token == scores.index(largest)) for token in range(len(scores))]
    scores = [(score - largest) / params.temperature for score in scores]
    kept = set(range(len(scores)))
    if params.top_k:
        kept = {token for token in kept if sum(other > scores[token] for other in scores) < params.top_k}
    probabilities = normalised(scores, kept)
    if params.top_p < 1:
        mass, nucleus = 0.0, set()
        for token in sorted(kept, key=lambda token: -probabilities[token]):
            if mass < params.top_p:
                nucleus.add(token)
            mass += probabilities[token]
        kept = nucleus
        probabilities = normalised(scores, kept)
    kept = {token for token in kept if probabilities[token] >= params.min_p * max(probabilities)}
    return normalised(scores, kept)


def normalised(scores: Sequence[float], kept: set[int]) -> list[float]:
    weights = [math.exp(score) if token in kept else 0.0 for token, score in enumerate(scores)]
    return [weight / sum(weights) for weight in weights]


def random_params(chance: random.Random, size: int) -> SamplingParams:
    """Return parameters of which each is at its default half the time."""

    def maybe(default: float, other: float) -> float:
        return other if chance.random() < 0.5 else default

    return SamplingParams(
        temperature=maybe(chance.choice([0, 1]), chance.uniform(0.2, 3)),
        top_k=int(maybe(0, chance.randint(1, size + 2))),
        top_p=maybe(1.0, chance.uniform(0.05, 1)),
        min_p=maybe(0.0, chance.uniform(0, 0.8)),
        repetition_penalty=maybe(1.0, chance.uniform(0.5, 2)),
        presence_penalty=maybe(0.0, chance.uniform(-2, 2)),
        frequency_penalty=maybe(0.0, chance.uniform(-2, 2)),
        logit_bias={chance.randrange(size): chance.uniform(-3, 3)} if chance.random() < 0.3 else {},
        min_tokens=int(maybe(0, 3)),
        stop_token_ids=(chance.randrange(size),) if chance.random() < 0.5 else (),
        seed=chance.randrange(-(2**63), 2**64),
        logprobs=chance.choice([None, 0, 3]),
    )


def chosen_by_oracle(probabilities: Sequence[float], draw: float) -> int:
    """Return the token whose share of the unit interval the draw falls into."""
    total = 0.0
    for token, probability in enumerate(probabilities):
        total += probability
        if draw < total:
            return token
    raise AssertionError(draw)


@pytest.mark.parametrize("seed", range(20))
def test_each_row_equals_oracle(seed: int) -> None:
    chance, size, num_slots = random.Random(seed), 11, 6
    generator = torch.Generator().manual_seed(seed)
    sampler = TokenSampler(num_slots, size, CPU)
    for _ in range(2):  # slots are taken by other requests the second time
        params = [random_params(chance, size) for _ in range(num_slots)]
        prompts = [[chance.randrange(size) for _ in range(chance.randint(1, 4))] for _ in range(num_slots)]
        for slot in range(num_slots):
            sampler.place(slot, params[slot], prompts[slot])
        draws = [random.Random((each.seed or 0) % 2**64) for each in params]
        generated: list[list[int]] = [[] for _ in range(num_slots)]
        for _ in range(5):
            slots = sorted(chance.sample(range(num_slots), chance.randint(1, num_slots)))
            asking = [chance.random() < 0.7 for _ in slots]
            logits = torch.randn(len(slots), size, generator=generator) * 3
            found = sampler.sample(slots, logits, asking)
            for slot, asks, row, sampled in zip(slots, asking, logits.double(), found, strict=True):
                if not asks:
                    assert sampled is None
                    continue
                assert isinstance(sampled, Sampled)
                wanted = oracle_probabilities(row.tolist(), params[slot], prompts[slot], generated[slot])
                draw = draws[slot].random() if params[slot].temperature > 0 else 0.0
                assert sampled.token == chosen_by_oracle(wanted, draw)
                check_logprobs(sampled, row, params[slot].logprobs)
                generated[slot].append(sampled.token)


def check_logprobs(sampled: Sampled, row: Tensor, asked: int | None) -> None:
    log_probabilities = row.log_softmax(-1)
    if asked is None:
        assert sampled == Sampled(sampled.token)
        return
    assert sampled.log_probability == pytest.approx(log_probabilities[sampled.token].item(), abs=1e-12)
    values, tokens = log_probabilities.topk(asked)
    assert [token for token, _ in sampled.likeliest] == tokens.tolist()
    assert [value for _, value in sampled.likeliest] == pytest.approx(values.tolist(), abs=1e-12)


def test_top_p_keeps_the_crossing_token_and_ties() -> None:
    logits = torch.tensor([[0.4, 0.2, 0.2, 0.1, 0.1]]).log()
    seen = {}
    for top_p in (0.3, 0.41, 0.85, 1.0):
        tokens = set()
        for seed in range(60):
            sampler = TokenSampler(1, 5, CPU)
            sampler.place(0, SamplingParams(top_p=top_p, seed=seed), [0])
            (sampled,) = sampler.sample([0], logits, [True])
            assert isinstance(sampled, Sampled)
            tokens.add(sampled.token)
        seen[top_p] = tokens
    assert seen == {0.3: {0}, 0.41: {0, 1, 2}, 0.85: {0, 1, 2, 3, 4}, 1.0: {0, 1, 2, 3, 4}}


def test_infinite_logits_fail_one_row_only() -> None:
    for params in (SamplingParams(temperature=0), SamplingParams(seed=0), SamplingParams(seed=0, logprobs=2)):
        sampler = TokenSampler(3, 4, CPU)
        for slot in range(3):
            sampler.place(slot, params, [0])
        logits = torch.tensor([[0.0, 9.0, 0, 0], [0, math.nan, 0, 0], [0, 0, math.inf, 0]])
        first, second, third = sampler.sample([0, 1, 2], logits, [True] * 3)
        assert isinstance(first, Sampled)
        assert str(second) == str(third) == "the model's logits are not finite"


class Faulty(RepetitionPenaltyLogitsProcessor):
    """Spoils the rows whose penalty is 3: by NaN, by minus infinity, or by an error."""

    kind: ClassVar[str] = ""

    def __call__(self, history: History, scores: torch.Tensor) -> torch.Tensor:
        faulty = self.penalty == 3
        if self.kind == "raises" and faulty.any():
            raise IndexError("token 256")
        return torch.where(faulty, math.nan if self.kind == "nan" else -math.inf, scores)


@pytest.mark.parametrize("logprobs", [None, 1])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["nan", "empty", "raises"])
def test_failing_processor_fails_one_row_only(
    kind: str, temperature: float, logprobs: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler_module, "RepetitionPenaltyLogitsProcessor", Faulty)
    monkeypatch.setattr(Faulty, "kind", kind)
    logits = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))

    def draw(rows: list[int]) -> dict[int, list[Draw]]:
        sampler = TokenSampler(5, 4, CPU)
        for row in rows:
            params = SamplingParams(temperature, seed=row, logprobs=logprobs if row == 4 else None)
            sampler.place(row, replace(params, repetition_penalty=3 if row == 2 else 2), [0])
        steps = [sampler.sample(rows, logits[rows], [row != 3 for row in rows]) for _ in range(3)]
        return {row: [step[place] for step in steps] for place, row in enumerate(rows)}

    healthy, every = draw([0, 1, 3, 4]), draw([0, 1, 2, 3, 4])
    message = {"raises": "sampling failed: IndexError: token 256"}.get(
        kind, "the parameters of the request leave no token"
    )
    for failed in every.pop(2):
        assert isinstance(failed, SamplingError)
        assert str(failed).startswith(message)
    assert every == healthy
    assert every[3] == [None] * 3


def test_tiny_temperature_does_not_overflow() -> None:
    sampler = TokenSampler(1, 3, CPU)
    sampler.place(0, SamplingParams(temperature=1e-300, seed=0), [0])
    (sampled,) = sampler.sample([0], torch.tensor([[-50.0, 40.0, 39.0]]), [True])
    assert sampled == Sampled(1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": -1}, "temperature: expected a number from 0 to 1e6, got -1"),
        ({"temperature": math.nan}, "temperature: expected a number from 0 to 1e6, got nan"),
        ({"temperature": 1e7}, "temperature: expected a number from 0 to 1e6, got 10000000.0"),
        ({"top_k": 1.5}, "top_k: expected a whole number from 0 to 2147483647, got 1.5"),
        ({"top_k": 2**31}, "top_k: expected a whole number from 0 to 2147483647, got 2147483648"),
        ({"top_p": 0}, "top_p: expected a number > 0 and <= 1, got 0"),
        ({"min_p": 2}, "min_p: expected a number from 0 to 1, got 2"),
        ({"repetition_penalty": 0}, "repetition_penalty: expected a number from 0.01 to 100, got 0"),
        ({"repetition_penalty": 1e-308}, "repetition_penalty: expected a number from 0.01 to 100, got 1e-308"),
        ({"repetition_penalty": 101}, "repetition_penalty: expected a number from 0.01 to 100, got 101"),
        ({"presence_penalty": 3}, "presence_penalty: expected a number from -2 to 2, got 3"),
        ({"logit_bias": {3: 101}}, "logit_bias: expected numbers from -100 to 100 by token, got {3: 101}"),
        ({"seed": "1"}, "seed: expected a whole number of 64 bits or None, got '1'"),
        ({"seed": 2**64}, "seed: expected a whole number of 64 bits or None, got 18446744073709551616"),
        ({"max_tokens": -1}, "max_tokens: expected a whole number from 0 to 2147483647, got -1"),
        ({"max_tokens": 0, "min_tokens": 1}, "min_tokens: expected at most max_tokens = 0, got 1"),
        ({"max_tokens": 2, "min_tokens": 3}, "min_tokens: expected at most max_tokens = 2, got 3"),
        ({"stop": "abc"}, "stop: expected a tuple of strings that are not empty, got 'abc'"),
        ({"stop": ("a", "")}, r"stop: expected a tuple of strings that are not empty, got \('a', ''\)"),
        ({"logprobs": 21}, "logprobs: expected a whole number from 0 to 20 or None, got 21"),
    ],
)
def test_invalid_sampling_params_raise_one_line(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        SamplingParams(**wrong)  # type: ignore[arg-type]


def test_tokens_outside_the_vocabulary_raise() -> None:
    with pytest.raises(ValueError, match=r"logit_bias: expected tokens of 0 .. 9, got 10"):
        SamplingParams(logit_bias={10: 1}).check_vocabulary(10)
    with pytest.raises(ValueError, match=r"stop_token_ids: expected tokens of 0 .. 9, got 12"):
        SamplingParams(stop_token_ids=(1, 12)).check_vocabulary(10)
    with pytest.raises(ValueError, match="stop: strings need a vocabulary of 256 bytes, this one has 10 tokens"):
        SamplingParams(stop=("a",)).check_vocabulary(10)
