"""Proxies, with caller and server in one process."""

from __future__ import annotations

import copy
import pickle
import threading
from functools import partial

import pytest
import torch

from gflownet.workers import ProxyServer, Served
from gflownet.workers.packing import MessageError
from gflownet.workers.proxy import Failure, RemoteTraceback
from tests.workers.messages import TwoArgumentError, Unreadable, assert_same, built_batch
from tests.workers.served_model import Rows


def test_proxy_call_like_object(endpoint, model):
    policy = endpoint.proxy("policy")
    rows = torch.arange(3.0)
    expected = (rows * 2).tolist()
    assert policy(rows).tolist() == expected
    assert policy.forward(rows).tolist() == expected
    assert endpoint.proxy("function")([3, 1, 2], reverse=True) == [3, 2, 1]
    numbers = endpoint.proxy("numbers")
    numbers.append(5)
    assert numbers.index(5) == 3


def test_proxy_arguments_and_results(endpoint):
    batch = built_batch()
    arguments, options, *_ = endpoint.proxy("plain").how(batch, 1, x=torch.ones(2))
    assert_same(arguments, (batch, 1))
    assert_same(options, {"x": torch.ones(2)})


def test_proxy_unknown_attribute_raises(endpoint, model):
    plain = endpoint.proxy("plain")
    model.gate.clear()  # a message would wait here
    expected = r"plain.num_layers: .*'fail', 'forward', 'how', 'keep', 'reply'.*attribute access is not supported"
    with pytest.raises(AttributeError, match=expected):
        _ = plain.num_layers
    with pytest.raises(AttributeError, match=r"did you mean forward\?"):
        plain.forwards(1)
    with pytest.raises(AttributeError, match=r"policy\.train: expected one of the methods"):
        endpoint.proxy("policy").train()  # it would switch the mode of the model in the main process
    with pytest.raises(AttributeError):
        plain.num_layers = 4
    with pytest.raises(TypeError, match=r"numbers: expected a call of one of its methods \['__len__', 'append'"):
        endpoint.proxy("numbers")()
    with pytest.raises(KeyError, match="polcy: expected the name of a served object, one of"):
        endpoint.proxy("polcy")
    model.gate.set()


def test_proxy_copy(endpoint):
    assert copy.copy(endpoint.proxy("policy"))(torch.ones(1)).tolist() == [2.0]


def test_served_merger_of_unknown_method_raises(model):
    with pytest.raises(ValueError, match=r"mergers: expected methods of Model, got \['num_layers'\]"):
        Served(model, {"num_layers": Rows()})


def test_server_gradient_modes(model, transport):
    with ProxyServer({"model": Served(model, {"how": Rows()})}, transport=transport) as server:
        mergeable = server.endpoint.proxy("model")
        assert mergeable.how(torch.ones(1))[2:] == (False, True)
        assert mergeable.how(torch.ones(1), option=1)[2:] == (False, False)


def test_proxy_exception_reaches_caller(endpoint):
    policy = endpoint.proxy("policy")
    with pytest.raises(ZeroDivisionError) as caught:
        policy.fail(ZeroDivisionError)
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert "raise kind()" in str(caught.value.__cause__)
    with pytest.raises(RuntimeError, match="TwoArgumentError: node 3: bad"):
        policy.fail(partial(TwoArgumentError, 3, "bad"))
    with pytest.raises(RuntimeError, match="SystemExit"):
        policy.fail(SystemExit)
    with pytest.raises(RuntimeError, match="KeyboardInterrupt"):
        policy.fail(KeyboardInterrupt)
    with pytest.raises(TypeError, match="positional argument"):
        policy()
    assert policy(torch.ones(1)).tolist() == [2.0]


def test_proxy_unsendable_message_raises_with_path(endpoint):
    policy = endpoint.proxy("policy")
    batch = built_batch()
    batch.x.requires_grad_()
    with pytest.raises(MessageError, match=r"^policy.keep: arguments\[0\].x: expected a tensor without a gradient"):
        policy.keep(batch)
    with pytest.raises(MessageError, match=r"^policy.how: options\['key'\]: expected a picklable object"):
        policy.how(key=threading.Lock())
    with pytest.raises(MessageError, match=r"^result: expected a picklable object"):
        policy.reply("lock")
    with pytest.raises(MessageError, match=r"^result: \[1\]: expected a tensor without a gradient"):
        policy.reply("parameter")
    with pytest.raises(MessageError, match=r"^result: "):
        policy.reply("self")
    with pytest.raises(MessageError, match="expected a readable message, got ValueError"):
        policy.keep(Unreadable())
    assert policy(torch.ones(1)).tolist() == [2.0]


class UnpicklableError(Exception):
    def __init__(self) -> None:
        super().__init__(lambda: None)


class ChangingError(Exception):
    def __reduce__(self):
        return list, ("ab",)


def travelled(error: BaseException) -> Exception:
    try:
        raise error
    except BaseException as caught:
        failure = Failure.of(caught)
    return pickle.loads(pickle.dumps(failure)).error()


@pytest.mark.parametrize("error", [TwoArgumentError(3, "bad"), UnpicklableError(), ChangingError("odd"), SystemExit(2)])
def test_failure_of_unpicklable_exception_is_runtime_error(error):
    arrived = travelled(error)
    assert type(arrived) is RuntimeError
    assert str(arrived).partition(":")[0].endswith(type(error).__name__)
    assert "in travelled" in str(arrived.__cause__)
    if isinstance(error, TwoArgumentError):
        assert "node 3: bad" in str(arrived)
