"""Optuna's TPE: its parameters, its study, and its gain over random search."""

from __future__ import annotations

import random
import sys

import pytest
import torch

from gflownet.data.sampler import uniform_states
from gflownet.errors import UserError
from gflownet.mdp.action import GraphActionType
from gflownet.mdp.environment import Environment
from gflownet.search.tpe import construct, decisions_of
from tests.contracts.environments import ENVIRONMENTS
from tests.search.searches import build, method_of, proposals, values_of
from tests.search.terminal_states import ENVIRONMENT_NAMES


def test_tpe_proposes_better_architectures_than_its_start():
    trainer = build("tpe")
    list(proposals(trainer, 40))
    scores = [proposal.score for proposal in method_of(trainer)[1].proposals]
    assert sum(scores[10:]) / 30 > sum(scores[:10]) / 10 + 0.05


def test_tpe_without_repeats_proposes_all_settings_once():
    trainer = build("tpe", "search.options.without_repeats=true", "env.choices.places={c: [0], d: [0]}")
    seen = [values for states in proposals(trainer, 6, batch_size=2) for values in values_of(trainer, states)]
    assert len(seen) == len(set(seen)) == 9


def test_missing_optuna_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"^search.method=tpe: missing package optuna: pip install"):
        build("tpe")


@pytest.fixture(params=ENVIRONMENT_NAMES)
def env(request) -> Environment:
    return ENVIRONMENTS[request.param]()


def test_decisions_of_construct_the_same_state(env):
    states = uniform_states(env, 4, generator=torch.Generator().manual_seed(1))
    for index in range(4):
        decisions = {decision.name: decision for decision in decisions_of(env, states[index : index + 1])}

        def choose(name: str, size: int, decisions=decisions) -> int:
            assert decisions[name].num_choices == size
            return decisions[name].choice

        state = construct(env, choose)
        assert env.identify(state).tolist() == env.identify(states[index : index + 1]).tolist()


def test_construct_replaces_illegal_choices(env):
    source, sizes, codes = random.Random(0), {}, set()
    for _ in range(8):

        def choose(name: str, size: int) -> int:
            assert sizes.setdefault(name, size) == size, "one name, one number of choices"
            return source.randrange(size)

        state = construct(env, choose)
        assert bool(env.forward_masks(state).masks[GraphActionType.Stop].all())
        codes.add(int(env.identify(state)[0]))
    assert len(codes) > 1
