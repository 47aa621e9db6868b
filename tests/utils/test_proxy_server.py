"""A server and its callers in one process, so that events can say when what happens; processes follow elsewhere."""

from __future__ import annotations

import copy
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from gflownet.utils.failures import RemoteTraceback
from gflownet.utils.multiprocessing_proxy import (
    Endpoint,
    Proxy,
    ProxyServer,
    Served,
    get_worker_device,
    set_main_device,
)
from gflownet.utils.packing import MessageError
from gflownet.utils.proxy import CALL, Call
from tests.utils.messages import TRANSPORTS, TwoArgumentError, assert_same, built_batch, named_memory

SOON_S = 10.0  # longer than anything here takes; reached only by a test that fails


class Rows:
    """Concatenates the rows of several calls."""

    def merge(self, calls: Sequence[tuple]) -> tuple:
        return (torch.cat([rows for (rows,) in calls]),)

    def split(self, result: Tensor, calls: Sequence[tuple]) -> Sequence[Tensor]:
        return result.split([len(rows) for (rows,) in calls])


class Model(torch.nn.Module):
    """Doubles; can be held up; remembers how it was called."""

    num_layers = 3

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(2.0))
        self.gate, self.entered = threading.Event(), threading.Event()
        self.gate.set()
        self.sizes: list[int] = []
        self.kept: list[Tensor] = []

    def forward(self, rows: Tensor) -> Tensor:
        self.entered.set()
        assert self.gate.wait(SOON_S)
        self.sizes.append(len(rows))
        if len(rows) and bool((rows < -100).any()):
            raise SystemExit("far too small")
        if len(rows) and bool((rows < 0).any()):
            raise TwoArgumentError(int(rows.min()), "negative")
        return rows * self.weight

    def keep(self, rows: Tensor) -> None:
        self.kept.append(rows)

    def how(self, *arguments: Any, **options: Any) -> tuple:
        return arguments, options, torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    def fail(self, kind: Callable[[], BaseException]) -> None:
        raise kind()

    def reply(self, what: str) -> Any:
        return {"lock": threading.Lock, "parameter": lambda: (1, self.weight), "self": lambda: self}[what]()


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def server(model, transport) -> Iterator[ProxyServer]:
    served = {
        "policy": Served(model, {CALL: Rows(), "forward": Rows()}),
        "plain": Served(model),
        "function": Served(sorted),
        "numbers": Served([3, 1, 2]),
        "slow": Served(model, is_slow=True),
    }
    with ProxyServer(served, transport=transport) as made:
        yield made


@pytest.fixture
def endpoint(server) -> Endpoint:
    return server.connect()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


def test_a_proxy_is_called_like_the_object(endpoint, model):
    policy = endpoint.proxy("policy")
    rows = torch.arange(3.0)
    expected = (rows * 2).tolist()
    assert policy(rows).tolist() == expected
    assert policy.forward(rows).tolist() == expected
    assert endpoint.proxy("function")([3, 1, 2], reverse=True) == [3, 2, 1]
    numbers = endpoint.proxy("numbers")
    numbers.append(5)
    assert numbers.index(5) == 3


def test_arguments_options_and_results_travel(endpoint):
    batch = built_batch()
    arguments, options, *_ = endpoint.proxy("plain").how(batch, 1, x=torch.ones(2))
    assert_same(arguments, (batch, 1))
    assert_same(options, {"x": torch.ones(2)})


def test_unknown_methods_and_attributes_fail_at_once_and_name_the_methods(endpoint, model):
    plain = endpoint.proxy("plain")
    model.gate.clear()  # a message would wait here
    with pytest.raises(
        AttributeError, match=r"plain.num_layers: .*'fail', 'forward', 'how', 'keep', 'reply'"
    ) as caught:
        _ = plain.num_layers
    assert "attribute access is not supported" in str(caught.value)
    with pytest.raises(AttributeError, match=r"did you mean forward\?"):
        plain.forwards(1)
    with pytest.raises(AttributeError, match=r"policy\.train: expected one of the methods"):
        endpoint.proxy("policy").train()  # it would switch the mode of the model in the main process
    with pytest.raises(AttributeError):
        plain.num_layers = 4
    with pytest.raises(TypeError, match=r"numbers: expected a call of one of its methods \['append'"):
        endpoint.proxy("numbers")()
    with pytest.raises(KeyError, match="polcy: expected the name of an object that is served, one of"):
        endpoint.proxy("polcy")
    model.gate.set()


def test_a_proxy_can_be_copied(endpoint):
    assert copy.copy(endpoint.proxy("policy"))(torch.ones(1)).tolist() == [2.0]


def test_only_methods_can_have_a_merger(model):
    with pytest.raises(ValueError, match=r"mergers: expected methods of Model, got \['num_layers'\]"):
        Served(model, {"num_layers": Rows()})


def test_no_call_has_gradients_and_only_a_pure_one_is_in_inference_mode(model, transport):
    with ProxyServer({"model": Served(model, {"how": Rows()})}, transport=transport) as server:
        mergeable, *_ = [server.connect().proxy("model")]
        assert mergeable.how(torch.ones(1))[2:] == (False, True)
        assert mergeable.how(torch.ones(1), option=1)[2:] == (False, False)


def test_what_the_object_keeps_and_what_the_caller_gets_is_theirs(endpoint, model):
    policy = endpoint.proxy("policy")
    policy.keep(torch.zeros(2))
    first = policy(torch.zeros(2))
    policy.keep(torch.ones(2))
    policy(torch.ones(2))
    assert model.kept[0].tolist() == [0.0, 0.0]
    assert first.tolist() == [0.0, 0.0]
    (model.kept[0] * model.weight).sum().backward()  # an inference tensor would be refused


def test_a_failure_reaches_the_caller_and_the_thread_lives_on(endpoint):
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


def test_what_cannot_travel_is_refused_on_either_side_with_its_place(endpoint):
    policy = endpoint.proxy("policy")
    batch = built_batch()
    batch.x.requires_grad_()
    with pytest.raises(MessageError, match=r"^policy.keep: arguments\[0\].x: expected a tensor without a gradient"):
        policy.keep(batch)
    with pytest.raises(MessageError, match=r"^policy.how: options\['key'\]: expected something that can be pickled"):
        policy.how(key=threading.Lock())
    with pytest.raises(MessageError, match=r"^result: expected something that can be pickled"):
        policy.reply("lock")
    with pytest.raises(MessageError, match=r"^result: \[1\]: expected a tensor without a gradient"):
        policy.reply("parameter")
    with pytest.raises(MessageError, match=r"^result: "):
        policy.reply("self")
    assert policy(torch.ones(1)).tolist() == [2.0]


class Broken:
    def __reduce__(self):
        return int, ("no number",)


def test_a_call_that_cannot_be_read_is_the_callers_error(endpoint):
    with pytest.raises(MessageError, match="expected a message that can be read, got ValueError"):
        endpoint.proxy("policy").keep(Broken())
    assert endpoint.proxy("policy")(torch.ones(1)).tolist() == [2.0]


def waiting_together(server: ProxyServer, model: Model, calls: list[Call], pool: ThreadPoolExecutor) -> list[Any]:
    """Return the answers to calls that were all sent while the model was held up by another."""
    callers = [server.connect() for _ in range(1 + len(calls))]
    for caller in callers:
        caller.proxy("numbers").index(3)  # the server has taken it up
    model.gate.clear()
    model.entered.clear()
    first = pool.submit(callers[0].proxy("policy"), torch.zeros(1))
    assert model.entered.wait(SOON_S)
    for caller, call in zip(callers[1:], calls, strict=True):
        caller.channel.send(call)
    model.gate.set()
    first.result(SOON_S)
    return [caller.channel.receive() for caller in callers[1:]]


def policy_call(*rows: float) -> Call:
    return Call("policy", CALL, (torch.tensor(rows),), {})


def test_calls_that_wait_together_become_one(server, model, pool):
    answers = waiting_together(server, model, [policy_call(1, 2), policy_call(3), policy_call()], pool)
    assert model.sizes == [1, 3]
    assert [answer.tolist() for answer in answers] == [[2.0, 4.0], [6.0], []]


def test_only_calls_of_one_method_without_options_become_one(server, model, pool):
    other = Call("policy", "forward", (torch.ones(1),), {})
    named = Call("policy", CALL, (), {"rows": torch.ones(1)})
    unmerged = Call("plain", CALL, (torch.ones(1),), {})
    answers = waiting_together(server, model, [policy_call(1), other, named, unmerged, policy_call(5)], pool)
    assert sorted(model.sizes) == [1, 1, 1, 1, 2]
    assert [answer.tolist() for answer in answers] == [[2.0], [2.0], [2.0], [2.0], [10.0]]


def test_of_calls_that_become_one_only_the_culprit_hears_of_a_failure(server, model, pool):
    with pytest.warns(UserWarning, match=r"policy.__call__: 2 calls are made one by one, as one they raise TwoArg"):
        good, bad = waiting_together(server, model, [policy_call(1), policy_call(-3)], pool)
    assert good.tolist() == [2.0]
    with pytest.raises(RuntimeError, match="node -3: negative"):
        raise bad.error()


def test_an_exit_in_a_call_for_many_ends_nothing(server, model, pool):
    with pytest.warns(UserWarning, match="one by one, as one they raise SystemExit"):
        good, bad = waiting_together(server, model, [policy_call(1), policy_call(-300)], pool)
    assert good.tolist() == [2.0]
    with pytest.raises(RuntimeError, match="SystemExit: far too small"):
        raise bad.error()


class Forgetful(Rows):
    """Loses a result."""

    def split(self, result: Tensor, calls: Sequence[tuple]) -> Sequence[Tensor]:
        return super().split(result, calls)[1:]


def test_a_merger_that_loses_a_result_is_found_out(model, transport, pool):
    served = {"policy": Served(model, {CALL: Forgetful()}), "numbers": Served([3])}
    with ProxyServer(served, transport=transport) as server:
        with pytest.warns(UserWarning, match="split: expected 2 results, got 1"):
            answers = waiting_together(server, model, [policy_call(1), policy_call(2)], pool)
        assert [answer.tolist() for answer in answers] == [[2.0], [4.0]]


def test_where_warnings_are_errors_the_callers_hear_them(server, model, pool):
    answers = waiting_together(server, model, [policy_call(1), policy_call(-3)], pool)
    for answer in answers:
        with pytest.raises(UserWarning, match="one by one"):
            raise answer.error()
    assert server.connect().proxy("policy")(torch.ones(1)).tolist() == [2.0]


def test_a_slow_object_keeps_nobody_waiting(server, model, pool):
    slow, quick = server.connect().proxy("slow"), server.connect().proxy("numbers")
    model.gate.clear()
    first: Future = pool.submit(slow, torch.ones(2))
    assert model.entered.wait(SOON_S)
    assert quick.index(1) == 1
    assert not first.done()
    model.gate.set()
    assert first.result(SOON_S).tolist() == [2.0, 2.0]


def test_a_caller_that_goes_is_forgotten_and_the_others_go_on(server):
    """In the middle of writing a message, too: what it wrote is half of one."""
    callers = [server.connect() for _ in range(4)]
    callers[0].detach()
    os.write(callers[1].channel.connection.fileno(), b"\x00\x00\x10\x00half")
    callers[1].detach()
    callers[2].channel.send(policy_call(1))
    callers[2].detach()
    assert callers[3].proxy("policy")(torch.ones(1)).tolist() == [2.0]


def test_a_caller_hears_that_the_server_is_closed(server, endpoint):
    server.close()
    server.close()
    with pytest.raises(ConnectionError, match="the main process hung up"):
        endpoint.proxy("policy")(torch.ones(1))


def test_closing_does_not_wait_for_ever(server, model, endpoint, pool):
    model.gate.clear()
    call = pool.submit(endpoint.proxy("policy"), torch.ones(1))
    assert model.entered.wait(SOON_S)
    start = time.monotonic()
    server.close()
    assert time.monotonic() - start < 2
    model.gate.set()
    call.exception(SOON_S)


def test_between_calls_nothing_is_answered(server, endpoint, model, pool):
    with server.between_calls():
        call = pool.submit(endpoint.proxy("policy"), torch.ones(1))
        assert not model.entered.wait(0.1)
    assert call.result(SOON_S).tolist() == [2.0]


def test_a_server_without_calls_uses_no_processor(server, endpoint):
    endpoint.proxy("policy")(torch.ones(1))
    clock = time.pthread_getcpuclockid(server.thread.ident)
    start = time.clock_gettime(clock)
    threading.Event().wait(0.3)
    assert time.clock_gettime(clock) - start < 0.001


def test_nothing_is_left_of_a_closed_server(model, transport):
    def use() -> None:
        with ProxyServer({"policy": Served(model)}, transport=transport) as server:
            endpoint = server.connect()
            endpoint.proxy("policy")(torch.ones(1))
            endpoint.channel.close()

    use()
    before, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(3):
        use()
    assert len(os.listdir("/proc/self/fd")) == before
    assert named_memory(os.getpid()) == []
    assert threading.active_count() == threads


def test_results_are_the_same_by_every_transport(model):
    """Bit for bit, and not only close."""
    results = []
    for make in TRANSPORTS.values():
        with ProxyServer({"policy": Served(model, {CALL: Rows()})}, transport=make()) as server:
            policy: Proxy = server.connect().proxy("policy")
            generator = torch.Generator().manual_seed(3)
            state = torch.randn(50, generator=generator).abs()
            for _ in range(20):
                state = torch.sin(policy(state)).abs() + torch.rand(50, generator=generator)
        results.append(state)
    assert_same(results[0], results[1])
    assert_same(results[0], results[2])


def test_the_device_to_build_tensors_on():
    assert get_worker_device() == torch.device("cpu")
    set_main_device(torch.device("meta"))
    assert get_worker_device() == torch.device("meta")
    set_main_device(torch.device("cpu"))
