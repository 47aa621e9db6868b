from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch
from torch_geometric.data import Batch

from gflownet.workers.packing import ALIGNMENT, MessageError, Packed, map_tensors, pack, unpack
from tests.workers.messages import Inner, Named, Outer, assert_same, built_batch, cases, graph


def delivered(packed: Packed):
    tensors = iter(packed.tensors)
    return unpack(packed.structure, lambda *_: next(tensors))


@pytest.mark.parametrize("name", cases())
def test_pack_unpack_round_trip(name):
    message = cases()[name]
    assert_same(delivered(pack(message)), message)


def test_pack_structure_excludes_tensor_bytes():
    packed = pack({"large": torch.zeros(10_000), "small": torch.zeros(3), "batch": built_batch()})
    assert len(packed.structure) < 1_000
    assert len(packed.tensors) == 5


def test_pack_aligns_tensors():
    packed = pack([torch.zeros(3), torch.zeros(0), torch.zeros(17), torch.zeros(1, dtype=torch.bool)])
    assert packed.offsets == [0, ALIGNMENT, ALIGNMENT, 3 * ALIGNMENT]
    assert packed.num_bytes == 4 * ALIGNMENT


def test_pack_shared_tensor_once():
    tensor = torch.ones(4)
    packed = pack((tensor, [tensor]))
    assert len(packed.tensors) == 1
    first, (second,) = delivered(packed)
    assert first is second


def test_pack_keeps_torch_geometric_batch():
    """Graphs can be extracted from a collated batch, and its storage refers to it."""
    batch = delivered(pack(Batch.from_data_list([graph(2), graph(3)])))
    assert [one.num_nodes for one in batch.to_data_list()] == [2, 3]
    assert batch.num_graphs == 2
    assert batch._store._parent() is batch
    built = delivered(pack(built_batch()))
    assert (built.num_graphs, built.num_nodes) == (3, 6)


def test_pack_keeps_extra_attributes_of_batch():
    batch = built_batch()
    batch.__dict__["note"] = "mine"
    assert delivered(pack(batch)).__dict__["note"] == "mine"


def test_map_tensors():
    message = Outer(Inner(torch.ones(2), "a"), (), {"x": torch.zeros(1)}, 2.0)
    mapped = map_tensors(message, lambda tensor: tensor + 1)
    assert_same(mapped, replace(message, inner=Inner(torch.full((2,), 2.0), "a"), by_name={"x": torch.ones(1)}))


WITH_GRAD = torch.ones(2, requires_grad=True)


@pytest.mark.parametrize(
    ("message", "place"),
    [
        (WITH_GRAD, "expected a tensor without a gradient, got one of shape [2]"),
        (WITH_GRAD * 2, "expected a tensor without"),
        (torch.nn.Parameter(torch.ones(2)), "expected a tensor without"),
        ((1, {"x": [torch.ones(1), WITH_GRAD]}), "[1]['x'][1]: expected a tensor without"),
        (Outer(Inner(WITH_GRAD, "a"), (), {}, 0.0), "inner.values: expected"),
        (Named(WITH_GRAD, 1), "values: expected"),
        (Batch(x=WITH_GRAD), "x: expected"),
        ([graph(2), threading.Lock()], "[1]: expected a picklable object"),
        ((1, threading.Lock()), "[1]: expected a picklable object: TypeError"),
        ({"f": lambda: None}, "['f']: expected a picklable object"),
    ],
)
def test_pack_unpicklable_field_raises_with_path(message, place):
    with pytest.raises(MessageError) as caught:
        pack(message)
    assert str(caught.value).startswith(place)


def test_pack_cyclic_message_raises():
    message: list = []
    message.append([message, threading.Lock()])
    with pytest.raises(MessageError, match=r"^\[0\]\[1\]: expected a picklable object"):
        pack(message)
