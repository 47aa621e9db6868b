"""Server and callers in one process, synchronised by events."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from gflownet.workers import ProxyServer
from gflownet.workers.proxy import CALL, Call
from tests.workers.served_model import SOON_S, Model


def waiting_together(server: ProxyServer, model: Model, calls: list[Call], pool: ThreadPoolExecutor) -> list[Any]:
    """Return the answers to calls that were all sent while the model was held up by another."""
    callers = [copy.copy(server.endpoint) for _ in range(1 + len(calls))]  # each with a connection of its own
    for caller in callers:
        caller.proxy("numbers").index(3)  # the server has taken it up
    model.gate.clear()
    model.entered.clear()
    first = pool.submit(callers[0].proxy("policy"), torch.zeros(1))
    assert model.entered.wait(SOON_S)
    for caller, call in zip(callers[1:], calls, strict=True):
        caller._own_caller().channel.send(call)
    model.gate.set()
    first.result(SOON_S)
    return [caller._own_caller().channel.receive() for caller in callers[1:]]


def policy_call(*rows: float) -> Call:
    return Call("policy", CALL, (torch.tensor(rows),), {})


def test_server_merges_simultaneous_calls(server, model, pool):
    answers = waiting_together(server, model, [policy_call(1, 2), policy_call(3), policy_call()], pool)
    assert model.sizes == [1, 3]
    assert [answer.tolist() for answer in answers] == [[2.0, 4.0], [6.0], []]


def test_server_merges_one_method_without_options(server, model, pool):
    other = Call("policy", "forward", (torch.ones(1),), {})
    named = Call("policy", CALL, (), {"rows": torch.ones(1)})
    unmerged = Call("plain", CALL, (torch.ones(1),), {})
    answers = waiting_together(server, model, [policy_call(1), other, named, unmerged, policy_call(5)], pool)
    assert sorted(model.sizes) == [1, 1, 1, 1, 2]
    assert [answer.tolist() for answer in answers] == [[2.0], [2.0], [2.0], [2.0], [10.0]]


@pytest.mark.parametrize(
    ("value", "kind", "message"), [(-3, "TwoArg", "node -3: negative"), (-300, "SystemExit", "far too small")]
)
def test_server_merged_failure_raises_in_one_caller(server, model, pool, value, kind, message):
    with pytest.warns(UserWarning, match=f"policy.__call__: 2 calls are retried one by one, merged they raise {kind}"):
        good, bad = waiting_together(server, model, [policy_call(1), policy_call(value)], pool)
    assert good.tolist() == [2.0]
    with pytest.raises(RuntimeError, match=message):
        raise bad.error()


def test_server_close_raises_in_caller(server, endpoint):
    server.close()
    server.close()
    with pytest.raises(ConnectionError, match="the main process closed the connection"):
        endpoint.proxy("policy")(torch.ones(1))
