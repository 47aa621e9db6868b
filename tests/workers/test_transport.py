"""Contract of the two transports: the same messages, bit for bit, and the same errors."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import torch

from gflownet.workers.packing import MessageError
from gflownet.workers.transport import Channel, Listener, Transport, make_transport
from tests.workers.messages import Inner, Unreadable, assert_same, cases

Pair = tuple[Channel, Channel]


def ends(transport: Transport) -> Pair:
    listener = Listener(transport)
    right = listener.address.connect()
    left = listener.accept()
    listener.close()
    return left, right


@pytest.fixture
def pair(transport) -> Iterator[Pair]:
    left, right = ends(transport)
    yield left, right
    left.close()
    right.close()


def test_channel_round_trip(transport):
    for name, message in cases().items():
        left, right = ends(transport)
        with closing(left), closing(right):
            for sender, receiver in ((left, right), (right, left)):
                sender.send(message)
                assert_same(receiver.receive(), message, name)
                sender.send(message)
                assert_same(receiver.view(), message, name)


def test_channel_receive_copies(pair):
    left, right = pair
    tensor = torch.zeros(3)
    right.send(tensor)
    received = left.receive()
    tensor.fill_(1)
    right.send(tensor)
    left.receive()
    assert received.tolist() == [0.0] * 3
    received.fill_(2)
    assert tensor.tolist() == [1.0] * 3


def test_channel_tensor_bytes_in_pipe(transport, pair):
    left, right = pair
    left.send(torch.zeros(10_000))
    frame = right.connection.recv_bytes()
    assert len(frame) > 40_000 if transport.num_bytes is None else len(frame) < 1_000


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (torch.ones(2, requires_grad=True), "without a gradient"),
        (torch.ones(2, requires_grad=True) * 2, "without a gradient"),
        (threading.Lock(), "expected a picklable object: "),
        (lambda: None, "expected a picklable object: "),
    ],
)
def test_channel_unsendable_message_raises(pair, part, reason):
    left, right = pair
    with pytest.raises(MessageError, match=rf"^\[0\].values: .*{reason}"):
        left.send([Inner(part, "a")])
    assert not right.connection.poll()
    left.send("next")
    assert right.receive() == "next"


def test_channel_unreadable_message_raises(pair):
    left, right = pair
    left.send((Unreadable(), torch.ones(2)))
    left.send("next")
    with pytest.raises(MessageError, match="expected a readable message, got ValueError"):
        right.receive()
    assert right.receive() == "next"


def test_make_transport():
    buffered = make_transport(buffer_size=2048, pickle_messages=False)
    assert buffered.num_bytes == 2048
    assert make_transport(buffer_size=2048, pickle_messages=True).num_bytes is None
    assert make_transport(buffer_size=None, pickle_messages=False).num_bytes is None


def told(transport: Transport, messages: list[Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        left, right = ends(transport)
        for message in messages:
            right.send(message)
            assert_same(left.receive(), message)
            left.send(message)
            assert_same(right.receive(), message)
    left.close()
    right.close()
    return [str(warning.message) for warning in caught]


def test_buffer_transport_large_message_warns_once():
    large, small = torch.arange(1000.0), torch.ones(3)
    (text,) = told(Transport(1024), [small, large, large, (large, large), small])
    assert text == (
        "mp_buffer_size=1024: expected a message of at most 1,024 bytes, got one of 4,032; larger ones are pickled; "
        "set mp_buffer_size=8064"
    )
    assert told(Transport(8064), [small, large, (large, large)]) == []


def test_buffer_transport_without_memory_warns(monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "memfd_create", refuse)
    (text,) = told(Transport(1024), [torch.ones(3)])
    assert text.startswith("mp_buffer_size=1024: no shared memory, messages are pickled: OSError(28")
