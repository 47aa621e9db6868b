"""Optuna's TPE: its parameters, its study, and its gain over random search."""

import sys

import pytest

from gflownet.errors import UserError
from tests.search.searches import FailsOrRefuses, build, method_of, proposals, values_of


def test_tpe_proposes_better_architectures_than_its_start():
    trainer = build("tpe")
    list(proposals(trainer, 40))
    scores = [proposal.score for proposal in method_of(trainer)[1].proposals]
    assert sum(scores[10:]) / 30 > sum(scores[:10]) / 10 + 0.05


def test_restored_study_asks_the_same():
    trainer, other = build("tpe"), build("tpe")
    list(proposals(trainer, 24))
    (method, history), (other_method, other_history) = method_of(trainer), method_of(other)
    other_history.load_state_dict(history.state_dict())
    other_method.load_state_dict(method.state_dict())
    assert bool(method.propose(25, 5).equals(other_method.propose(25, 5)).all())


def test_refused_trials_are_replaced():
    trainer = build("tpe", f"task={__package__}.searches:{FailsOrRefuses.__name__}")
    seen = [values for states in proposals(trainer, 15, batch_size=2) for values in values_of(trainer, states)]
    assert len(seen) == 30
    assert not any(values[3] == 2 for values in seen)


def test_tpe_without_repeats_proposes_all_settings_once():
    trainer = build("tpe", "search.options.without_repeats=true", "env.choices.places={c: [0], d: [0]}")
    seen = [values for states in proposals(trainer, 6, batch_size=2) for values in values_of(trainer, states)]
    assert len(seen) == len(set(seen)) == 9


def test_missing_optuna_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"^search.method=tpe: missing package optuna: pip install"):
        build("tpe")
