"""Messages that every transport delivers bit for bit."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gflownet.workers.packing import DTYPES
from gflownet.workers.transport import Transport

TRANSPORTS = {"buffer": lambda: Transport(1 << 16), "pickle": lambda: Transport(None)}


@dataclass(frozen=True)
class Inner:
    values: Tensor
    name: str


@dataclass(frozen=True)
class Outer:
    inner: Inner
    others: tuple[Inner, ...]
    by_name: dict[str, Tensor]
    number: float


@dataclass(frozen=True, slots=True)
class Slotted:
    values: Tensor


class Named(NamedTuple):
    values: Tensor
    count: int


class TwoArgumentError(Exception):
    """Can be pickled, but not unpickled: its arguments differ from its base class's."""

    def __init__(self, node: int, reason: str) -> None:
        super().__init__(f"node {node}: {reason}")


class Unreadable:
    """Fails where it is rebuilt."""

    def __reduce__(self):
        return int, ("no number",)


class Plain:
    def __init__(self, logits: Tensor) -> None:
        self.logits, self.parts = logits, [logits[:1], logits[1:]]


def of_dtype(dtype: torch.dtype) -> Tensor:
    values = torch.randn(5, 3, generator=torch.Generator().manual_seed(1)) * 40
    return values.abs().to(dtype) if dtype == torch.uint8 else values.to(dtype)


def graph(num_nodes: int) -> Any:
    from torch_geometric.data import Data

    nodes = torch.arange(num_nodes)
    return Data(
        x=torch.randn(num_nodes, 4, generator=torch.Generator().manual_seed(num_nodes)),
        edge_index=torch.stack([nodes, nodes.flip(0)]),
        add_node_mask=torch.ones(num_nodes, 3, dtype=torch.bool),
        size=num_nodes,
    )


def built_batch() -> Any:
    from torch_geometric.data import Batch

    batch, ptr = torch.tensor([0, 0, 1, 1, 1, 2]), torch.tensor([0, 2, 5, 6])
    return Batch(x=torch.arange(12.0).view(6, 2) / 7, batch=batch, ptr=ptr, kind="toy")


def hetero_batch() -> Any:
    from torch_geometric.data import Batch, HeteroData

    data = HeteroData()
    data["a"].x, data["b"].x = torch.ones(2, 3), torch.zeros(1, 3)
    data["a", "to", "b"].edge_index = torch.tensor([[0, 1], [0, 0]])
    return Batch.from_data_list([data, data])


def cases() -> dict[str, Any]:
    from torch_geometric.data import Batch

    grid = torch.arange(24.0).reshape(4, 6)
    complex_grid = torch.complex(grid, -grid)
    return {
        **{str(dtype): of_dtype(dtype) for dtype in DTYPES},
        "empty": (torch.zeros(0), torch.zeros(0, 5), torch.zeros(3, 0, 2, dtype=torch.int64), torch.ones(2)),
        "zero-dimensional": (torch.tensor(3.5), torch.tensor(True), torch.tensor(-7)),
        "not numbers": torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0]),
        "not contiguous": (grid.T, grid[:, ::2], grid[1:3, 2:4], grid.flip(1), torch.ones(1).expand(3, 2)),
        "lazy conjugate and negative": (complex_grid.conj(), complex_grid.conj().imag),
        "one storage": (grid[0], grid[1:], grid.view(-1)[3:9]),
        "one tensor twice": [grid, {"again": grid}],
        "nested data classes": Outer(Inner(grid, "a"), (Inner(grid[0], "b"), Inner(grid[1], "c")), {"x": grid.T}, 0.1),
        "slots": Slotted(grid),
        "named tuple": Named(grid, 3),
        "plain object": Plain(grid),
        "plain Python": [None, True, 3, "text", b"bytes", (1.5, {2, 3}), {"a": [torch.float16, torch.Size([2])]}],
        "nothing": None,
        "batch, built": (built_batch(), torch.ones(3, 4)),
        "batch, collated": Batch.from_data_list([graph(2), graph(3)]),
        "batch of two kinds of nodes": hetero_batch(),
        "data": graph(3),
        "numpy": np.arange(6.0).reshape(2, 3),
        "sparse": torch.eye(3).to_sparse(),
        "parameter": torch.nn.Parameter(torch.ones(2), requires_grad=False),
    }


def assert_same(ours: Any, theirs: Any, at: str = "message") -> None:
    assert type(ours) is type(theirs), at
    if isinstance(theirs, Tensor):
        assert (ours.dtype, ours.shape, ours.layout) == (theirs.dtype, theirs.shape, theirs.layout), at
        assert not ours.requires_grad, at
        assert bits(ours) == bits(theirs), at
    elif isinstance(theirs, np.ndarray):
        assert ours.tobytes() == theirs.tobytes(), at
    elif hasattr(theirs, "to_dict"):  # a batch
        assert_same(ours.to_dict(), theirs.to_dict(), at)
    elif isinstance(theirs, dict):
        assert list(ours) == list(theirs), at
        for key, value in theirs.items():
            assert_same(ours[key], value, f"{at}[{key!r}]")
    elif isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs), at
        for index, value in enumerate(theirs):
            assert_same(ours[index], value, f"{at}[{index}]")
    elif is_dataclass(theirs):
        for field in fields(theirs):
            assert_same(getattr(ours, field.name), getattr(theirs, field.name), f"{at}.{field.name}")
    elif isinstance(theirs, Plain):
        assert_same(vars(ours), vars(theirs), at)
    else:
        assert ours == theirs, at


def bits(tensor: Tensor) -> list[int]:
    dense = tensor.to_dense() if tensor.layout is not torch.strided else tensor
    return dense.resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8).tolist()
