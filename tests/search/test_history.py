"""The history of a search: distinct architectures, proposals, what is in flight, and checkpoints."""

import io
from dataclasses import replace

import pytest
import torch

from gflownet.evaluation.evaluator import Evaluation
from gflownet.evaluation.store.rows import EvaluationStatus
from gflownet.learning.sampler import uniform_states
from gflownet.mdp.states import GraphStates
from gflownet.search.history import History, ProposalOrigin
from tests.contracts.environments import ENVIRONMENTS

OK = Evaluation(0.5, EvaluationStatus.OK, 2.0, None, 7, {"m": 1.0}, False, (0.1, 0.2), "h")


@pytest.fixture
def env():
    return ENVIRONMENTS["cells"]()


def distinct(env, num: int) -> GraphStates:
    states = uniform_states(env, 60, generator=torch.Generator().manual_seed(0))
    codes = env.identify(states).tolist()
    return states[torch.tensor([codes.index(code) for code in dict.fromkeys(codes)][:num])]


def test_history_counts_an_architecture_once(env):
    history, states = History(env), distinct(env, 3)
    history.add(states[:2], [OK, replace(OK, score=0.9)])
    history.add(states[torch.tensor([1, 2, 1])], [replace(OK, cached=True), replace(OK, score=0.7), OK])
    assert history.scores == [0.5, 0.9, 0.7]
    assert [proposal.position for proposal in history.proposals] == [0, 1, 1, 2, 1]
    assert [proposal.is_new for proposal in history.proposals] == [True, True, False, True, True]
    assert history.num_new == 4
    assert max(history.scores) == 0.9
    assert bool(history.states.equals(states).all())


def test_refused_and_failed_evaluations(env):
    history, states = History(env), distinct(env, 3)
    statuses = EvaluationStatus.FAILED, EvaluationStatus.REFUSED, EvaluationStatus.OK
    history.add(states, [replace(OK, status=status) for status in statuses])
    assert history.statuses == list(statuses)
    assert history.num_new == 2, "a refused candidate costs no evaluation"


def test_states_in_flight_are_not_unknown(env):
    history, states = History(env), distinct(env, 3)
    codes = env.identify(states)
    history.add(states[:1], [OK])
    history.start(states[1:2])
    assert history.is_unknown(codes).tolist() == [False, False, True]
    assert [history.position(code) for code in codes.tolist()] == [0, None, None]
    assert bool(history.states_in_flight.equals(states[1:2]).all())
    history.add(states[1:2], [OK])
    assert not history.in_flight
    assert not len(history.states_in_flight)


def test_empty_history_has_no_states(env):
    history = History(env)
    with pytest.raises(ValueError, match="expected at least one evaluation, got none"):
        _ = history.states
    restored = History(env)
    restored.load_state_dict(history.state_dict())
    assert len(restored) == 0


def test_history_is_restored_from_a_checkpoint(env):
    history, states = History(env), distinct(env, 4)
    history.start(states[:2], [ProposalOrigin.POLICY, ProposalOrigin.DESIGN])
    history.add(states[:3], [OK, replace(OK, status=EvaluationStatus.FAILED), replace(OK, score=0.25)])
    history.add(states[:1], [replace(OK, cached=True)])
    history.start(states[3:])
    file = io.BytesIO()
    torch.save(history.state_dict(), file)
    file.seek(0)
    restored = History(env)
    restored.load_state_dict(torch.load(file, weights_only=True))
    for name in ("proposals", "scores", "utilities", "metrics", "seconds", "statuses"):
        assert getattr(restored, name) == getattr(history, name), name
    assert bool(restored.states.equals(history.states).all())
    assert [restored.position(code) for code in env.identify(states).tolist()] == [0, 1, 2, None]
    assert not restored.in_flight, "states in flight are submitted again by the loop"
    origins = [ProposalOrigin.POLICY, ProposalOrigin.DESIGN, None, None]
    assert [proposal.origin for proposal in restored.proposals] == origins
