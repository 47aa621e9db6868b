"""Optuna's TPE: its parameters, its study, and its gain over random search."""

import sys

import pytest

from gflownet.errors import UserError
from tests.search.searches import build, method_of, proposals, values_of


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
