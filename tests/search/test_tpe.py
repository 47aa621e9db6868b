"""Optuna's TPE: its constructions, its study, and its gain over random search."""

from __future__ import annotations

import random
import sys

import pytest

from gflownet.errors import UserError
from gflownet.mdp.action import GraphActionType
from gflownet.search.tpe import construct
from tests.contracts.environments import ENVIRONMENTS
from tests.search.searches import build, method_of, proposals
from tests.search.terminal_states import ENVIRONMENT_NAMES


def test_tpe_proposes_better_architectures_than_its_start():
    trainer = build("tpe")
    list(proposals(trainer, 40))
    scores = [proposal.score for proposal in method_of(trainer)[1].proposals]
    assert sum(scores[10:]) / 30 > sum(scores[:10]) / 10 + 0.05


def test_missing_optuna_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"^search.method=tpe: missing package optuna: pip install"):
        build("tpe")


@pytest.mark.parametrize("name", ENVIRONMENT_NAMES)
def test_construct_names_have_one_number_of_choices(name):
    env, source, sizes, codes = ENVIRONMENTS[name](), random.Random(0), {}, []
    for _ in range(8):
        chosen = []

        def choose(name: str, size: int, chosen=chosen) -> int:
            assert sizes.setdefault(name, size) == size > 1
            chosen.append(source.randrange(size))
            return chosen[-1]

        state = construct(env, choose)
        assert bool(env.forward_masks(state).masks[GraphActionType.Stop].all())
        again = construct(env, lambda name, size, chosen=chosen: chosen.pop(0))
        assert env.identify(again).tolist() == env.identify(state).tolist()
        codes += env.identify(state).tolist()
    assert len(set(codes)) > 1


def test_construct_chooses_places_by_name():
    names = []
    construct(build("random").env, lambda name, size: names.append(name) or 2)
    assert [name.partition(":")[0] for name in names] == ["a", "b", "c", "d"]
