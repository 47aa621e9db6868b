"""Tensor graphs as plain JSON values: the complete form of a graph.

`{"indexing": "signed", "nodes": [...], "outputs": [id]}`, each node after its sources, with the fields `id`, `type`,
`kind`, `shape`, `src`, `srcL`, `srcR`, `indexDst`, `indexSrc`, `indexSrcL`, `indexSrcR`, `alpha`, `newDims`, `op`,
`function` that its type has. With "positive" indexing all indices are positive, and the signs follow from which tensors
have an index. Optional fields: `name`; for leaves `dtype` (default float64), `requiresGrad` and one of `value`, `fill`
and `identity`. The type `cast` has a `dtype`. A custom node has the name of its class as type, a list `src` and a field
for each setting.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any, Literal

import numpy as np
import torch

from gflownet.autodiff.custom_node import FIELDS as CUSTOM_FIELDS
from gflownet.autodiff.custom_node import TYPES, Classes, CustomNode, classes_by_name, described, settings_of
from gflownet.autodiff.functions import Function
from gflownet.autodiff.nodes import (
    CastNode,
    ElementwiseNode,
    Indices,
    LeafKind,
    LeafNode,
    LinearNode,
    Node,
    NonlinearNode,
    TransformNode,
    dtype_name,
)
from gflownet.autodiff.softmax import SOFTMAX_NODES
from gflownet.autodiff.tokens import MAX_LENGTH, shortened

Identifier = int | str
Indexing = Literal["signed", "positive"]

# The names with underscores are those of the format's document.
_SPELLINGS = {
    LeafKind.INPUT: ("0", "input", "_leafIn_"),
    LeafKind.PARAMETER: ("1", "parameter", "_leafPara_"),
    LeafKind.CONSTANT: ("2", "constant", "_leafConst_"),
}
KINDS = {spelling: kind for kind, spellings in _SPELLINGS.items() for spelling in spellings}
DEFAULT_DTYPE = torch.float64

_COUNTS = {"dummyIndex": "dummy_index", "newIndex": "new_index", "repeatedIndex": "repeated_index"}
_PAIR = {
    **{"srcL": "left", "srcR": "right", "indexDst": "index_dst"},
    **{"indexSrcL": "index_src_l", "indexSrcR": "index_src_r", "op": "operation"},
}
# Attributes of computed nodes, which are the arguments of their classes, by field.
_ATTRIBUTES: dict[str, dict[str, str]] = {
    "transform": {"src": "source", "indexDst": "index_dst", "indexSrc": "index_src", "alpha": "alpha"}
    | {"newDims": "new_dims"},
    "elementwise": _PAIR,
    "linear": _PAIR,
    "nonlinear": {"src": "source", "function": "function"},
    "cast": {"src": "source", "dtype": "dtype"},
}
_OPERANDS = ("source", "left", "right")
_FIELD_OF = {name: field for fields in _ATTRIBUTES.values() for field, name in fields.items() if name not in _OPERANDS}
_OPTIONAL = {"leaf": ("kind", "dtype", "requiresGrad", "value", "fill", "identity"), "transform": tuple(_COUNTS)}
_OPTIONAL |= dict.fromkeys(("elementwise", "linear"), ("dummyIndex", "repeatedIndex"))
FIELDS = {kind: ("id", "type", "name", "shape", *_ATTRIBUTES.get(kind, ()), *_OPTIONAL.get(kind, ())) for kind in TYPES}
_CLASSES = {kind.type_name(): kind for kind in (TransformNode, ElementwiseNode, LinearNode, NonlinearNode, CastNode)}


def read(data: Any, classes: Iterable[type[CustomNode]] = ()) -> tuple[dict[Identifier, Node], list[Node]]:
    """Return the nodes by id, in their order, and the outputs; `classes` are of custom nodes.

    Raises:
        ValueError: the data describe no graph; the message names node, field and rule.
    """
    if not isinstance(data, Mapping) or not isinstance(data.get("nodes"), list | tuple):
        raise ValueError(f"graph: expected an object with a list of nodes, got {shortened(data)}")
    indexing = data.get("indexing")
    indexing = "signed" if indexing is None else indexing
    if indexing not in ("signed", "positive"):
        raise ValueError(f"graph: indexing: expected 'signed' or 'positive', got {shortened(indexing)}")
    nodes: dict[str, Node] = {}
    named = classes_by_name((*SOFTMAX_NODES, *classes))
    ids: dict[Identifier, Node] = {}
    for position, entry in enumerate(data["nodes"]):
        identifier = _identifier(entry, f"nodes[{position}]")
        if str(identifier) in nodes:
            raise ValueError(f"{_owner(identifier)}: id: expected one that no other node has")
        ids[identifier] = nodes[str(identifier)] = _Reader(entry, nodes, indexing, named).node()
    outputs = data.get("outputs")
    if outputs is None:
        used = {source for node in ids.values() for source in node.inputs}
        return ids, [node for node in ids.values() if node not in used]
    listed = outputs if isinstance(outputs, list | tuple) else [outputs]
    missing = [output for output in listed if str(output) not in nodes]
    if missing or not listed:
        raise ValueError(f"graph: outputs: expected ids of nodes, got {shortened(missing or listed)}")
    return ids, [nodes[str(output)] for output in listed]


class _Reader:
    """Reader of one entry of the list of nodes."""

    def __init__(
        self, entry: Mapping[str, Any], nodes: Mapping[str, Node], indexing: Indexing, classes: Classes
    ) -> None:
        self.owner = _owner(entry["id"])
        self.entry, self.nodes, self.indexing, self.classes = entry, nodes, indexing, classes
        self.type = str(self._required("type")).lower().removesuffix("node")
        self.kind = classes.get(self.type)
        if self.type not in TYPES and self.kind is None:
            message = f"expected one of {', '.join((*TYPES, *classes))}, got {shortened(entry['type'])}"
            raise ValueError(f"{self.owner}: type: {message}")
        self.fields = FIELDS[self.type] if self.kind is None else (*CUSTOM_FIELDS, *self.kind.setting_types())
        self.name = str(entry.get("name", entry["id"]))
        self._check_fields()

    def node(self) -> Node:
        """Return the node, checked against the shape and the counts of the entry."""
        try:
            is_leaf = self.type == "leaf"
            node = self._custom(self.kind) if self.kind else self._leaf() if is_leaf else self._computed()
        except ValueError as error:
            raise ValueError(self._in_json(str(error))) from error
        shape = self.entry.get("shape")
        if shape is not None and self._integers("shape") != node.shape:
            raise ValueError(f"{self.owner}: shape: expected {list(node.shape)} by the other fields, got {list(shape)}")
        for field, attribute in _COUNTS.items():
            count = self.entry.get(field)
            if count is not None and field in self.fields and count != getattr(node, attribute):
                raise ValueError(f"{self.owner}: {field}: expected {getattr(node, attribute)}, got {shortened(count)}")
        return node

    def _in_json(self, message: str) -> str:
        """Return a constructor's error message with the id instead of the label and the field names of JSON."""
        if message.startswith(f"{self.owner}: "):
            return message
        kind = self.kind.__name__ if self.kind else f"{self.type.capitalize()}Node"
        reason = message.removeprefix(f"{kind} {self.name!r}: ").removeprefix(f"{kind}: ")
        return f"{self.owner}: " + re.sub(r"\b[a-z_]+\b", lambda word: _FIELD_OF.get(word[0], word[0]), reason)

    def _check_fields(self) -> None:
        all_fields = dict.fromkeys(field for fields in FIELDS.values() for field in fields)
        fields = self.fields
        for field, value in self.entry.items():
            if field in fields or (field in all_fields and (_is_nothing(value) or (field, value) == ("alpha", 1))):
                continue
            nearest = difflib.get_close_matches(str(field), fields, n=1, cutoff=0.0)[0]
            raise ValueError(f"{self.owner}: {_plain(field)}: expected a field of a {self.type}, perhaps {nearest}")

    def _leaf(self) -> Node:
        dtype = self._dtype()
        kind = self.entry.get("kind")
        kind = LeafKind.INPUT if kind is None else kind
        spelled = str(int(kind) if isinstance(kind, int) else kind)
        if spelled not in KINDS:
            raise ValueError(
                f"{self.owner}: kind: expected 0, 1, 2, input, parameter or constant, got {shortened(kind)}"
            )
        shape, value = self._integers("shape"), self.entry.get("value")
        try:
            tensor = None if value is None else tensor_of(value, shape, dtype)
        except ValueError as error:
            raise ValueError(f"{self.owner}: value: {error}") from error
        if tensor is not None and not tensor.numel() and 0 in shape:  # lists lose the axes after one of extent 0
            tensor = tensor.reshape(shape)
        return LeafNode(
            shape,
            kind=KINDS[spelled],
            value=tensor,
            fill=self._number("fill", None),
            is_identity=self._flag("identity") or False,
            requires_grad=self._flag("requiresGrad"),
            dtype=dtype,
            name=self.name,
        )

    def _computed(self) -> Node:
        fields = _ATTRIBUTES[self.type]
        arguments = {attribute: self._argument(field) for field, attribute in fields.items() if field[:5] != "index"}
        arrays = self._indices(*(field for field in fields if field[:5] == "index"))
        arguments |= {fields[field]: array for field, array in arrays.items()}
        if self.type == "linear":
            arguments.pop("operation")
        elif self.type == "transform" and not arguments["new_dims"] and self.entry.get("shape") is not None:
            extents = zip(arrays["indexDst"], self._integers("shape"), strict=False)
            arguments["new_dims"] = tuple(extent for index, extent in extents if index < 0)
        return _CLASSES[self.type](**arguments, name=self.name)

    def _argument(self, field: str) -> Any:
        """Return the value of a field that is no index array."""
        value = self.entry.get(field)
        if field == "alpha":
            return self._number("alpha", 1.0)
        if field == "newDims":
            return () if _is_nothing(value) else self._integers("newDims")
        if field == "op" and self.type == "linear":
            if not _is_nothing(value) and value != "*":
                raise ValueError(f"{self.owner}: op: expected none or * of a linear node, got {shortened(value)}")
            return "*"
        value = self._required(field)
        if field == "function":
            try:
                return Function.parse(str(value))
            except ValueError as error:
                raise ValueError(f"{self.owner}: function: {error}") from error
        if field in ("op", "dtype"):
            return value if field == "op" else self._dtype()
        return self._named(value, field)

    def _custom(self, kind: type[CustomNode]) -> Node:
        sources = self._required("src")
        if not isinstance(sources, list | tuple):
            raise ValueError(f"{self.owner}: src: expected a list of ids, got {shortened(sources)}")
        settings = {field: value for field, value in self.entry.items() if field not in CUSTOM_FIELDS}
        nodes = [self._named(each) for each in sources]
        operands = tuple((node.shape, node.dtype) for node in nodes)
        return kind(*nodes, name=self.name, **settings_of(kind, settings, operands, self.classes))

    def _required(self, field: str) -> Any:
        if self.entry.get(field) is None:
            raise ValueError(f"{self.owner}: expected a field {field}, got none")
        return self.entry[field]

    def _named(self, identifier: Any, field: str = "src") -> Node:
        node = self.nodes.get(str(identifier))
        if node is None:
            message = f"expected the id of a node listed before, got {shortened(identifier)}"
            raise ValueError(f"{self.owner}: {field}: {message}")
        return node

    def _integers(self, field: str) -> tuple[int, ...]:
        entry = self._required(field)
        values = entry.tolist() if isinstance(entry, np.ndarray | torch.Tensor) else entry
        if not isinstance(values, list | tuple) or not all(_is_integer(value) for value in values):
            raise ValueError(f"{self.owner}: {field}: expected a list of integers, got {shortened(entry)}")
        return tuple(int(value) for value in values)

    def _indices(self, *fields: str) -> dict[str, Indices]:
        arrays = {field: self._integers(field) for field in fields}
        if self.indexing == "signed" or not arrays:
            return arrays
        for field, array in arrays.items():
            if any(index < 1 for index in array):
                raise ValueError(f"{self.owner}: {field}: expected positive integers (indexing), got {list(array)}")
        first, *others = arrays.values()
        dst, sources = {*first}, {index for array in others for index in array}
        # An index that only the result of two operands has stays positive, so that the node reports it.
        is_shared = (dst & sources).__contains__ if self.type == "transform" else dst.__contains__
        return {
            field: tuple(index if is_shared(index) else -index for index in array) for field, array in arrays.items()
        }

    def _flag(self, field: str) -> bool | None:
        value = self.entry.get(field)
        if value is not None and not isinstance(value, bool):
            raise ValueError(f"{self.owner}: {field}: expected true or false, got {shortened(value)}")
        return value

    def _number(self, field: str, default: float | None) -> float | None:
        value = self.entry.get(field)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float | np.number):
            raise ValueError(f"{self.owner}: {field}: expected a number, got {shortened(value)}")
        try:
            return float(value)
        except OverflowError as error:
            message = f"expected a number that a float can hold, got {shortened(value)}"
            raise ValueError(f"{self.owner}: {field}: {message}") from error

    def _dtype(self) -> torch.dtype:
        name = self.entry.get("dtype")
        if name is None:
            return DEFAULT_DTYPE
        dtype = getattr(torch, str(name).removeprefix("torch."), None)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"{self.owner}: dtype: expected the name of a dtype of torch, got {shortened(name)}")
        return dtype


def write(ids: Mapping[Identifier, Node], outputs: Sequence[Node], *, indexing: Indexing = "signed") -> dict[str, Any]:
    """Return the graph of nodes by id, each after its sources, as plain JSON values, which `read` reads."""
    if indexing not in ("signed", "positive"):
        raise ValueError(f"graph: indexing: expected 'signed' or 'positive', got {shortened(indexing)}")
    id_of = {node: identifier for identifier, node in ids.items()}
    entries = []
    for identifier, node in ids.items():
        entry = {"id": identifier, **_fields(node, id_of, indexing)}
        if node.name not in (None, str(identifier)):
            entry["name"] = node.name
        entries.append(entry)
    return {"indexing": indexing, "nodes": entries, "outputs": [id_of[node] for node in outputs]}


def _fields(node: Node, ids: Mapping[Node, Identifier], indexing: Indexing) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": node.type_name(), "shape": list(node.shape)}
    if isinstance(node, CustomNode):
        return entry | {"src": [ids[source] for source in node.inputs]} | described(node.function)
    if isinstance(node, LeafNode):
        described_by = {"fill": node.fill, "identity": node.is_identity or None}
        described_by["dtype"] = None if node.dtype == DEFAULT_DTYPE else dtype_name(node.dtype)
        described_by["value"] = None if node.given is None else numbers_of(node.given)
        is_usual = node.requires_grad == (node.kind != LeafKind.CONSTANT)
        described_by["requiresGrad"] = None if is_usual else node.requires_grad
        return entry | {"kind": int(node.kind)} | {name: v for name, v in described_by.items() if v is not None}
    arrays: dict[str, Any] = {}
    if indexing == "positive":  # by first appearance
        numbers: dict[int, int] = {}
        positive = [[numbers.setdefault(index, len(numbers) + 1) for index in array] for array in node.arrays()]
        names = (name for name in _ATTRIBUTES[node.type_name()].values() if name.startswith("index"))
        arrays = dict(zip(names, positive, strict=False))
    for field, attribute in _ATTRIBUTES[node.type_name()].items():
        value = arrays[attribute] if attribute in arrays else getattr(node, attribute)
        if isinstance(value, Node):
            entry[field] = ids[value]
        elif attribute != "operation" or isinstance(node, ElementwiseNode):
            entry[field] = _plain_value(value)
    return entry


def _plain_value(value: Any) -> Any:
    if isinstance(value, Function):
        return str(value)
    return dtype_name(value) if isinstance(value, torch.dtype) else list(value) if isinstance(value, tuple) else value


def numbers_of(tensor: torch.Tensor) -> Any:
    """Return the entries as nested lists, a complex entry as [real, imaginary]."""
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).tolist()


def tensor_of(numbers: Any, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor of a dtype from nested lists as in `numbers_of`; the shape is not checked.

    Raises:
        ValueError: the entries are not numeric or too large for the dtype.
    """
    try:
        if dtype.is_complex and np.shape(numbers) == (*shape, 2):
            return torch.view_as_complex(torch.as_tensor(numbers, dtype=torch.float64)).to(dtype)
        return torch.as_tensor(numbers, dtype=dtype)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"expected numbers in nested lists, got {shortened(numbers)}") from error


def _owner(identifier: object) -> str:
    return f"node {_plain(identifier)}"


def _plain(value: object) -> str:
    """Return a short printable text without quotes, other values abbreviated."""
    return value if isinstance(value, str) and value.isprintable() and len(value) <= MAX_LENGTH else shortened(value)


def _identifier(entry: Any, where: str) -> Identifier:
    identifier = entry.get("id") if isinstance(entry, Mapping) else None
    if not (isinstance(identifier, str) or _is_integer(identifier)):
        raise ValueError(f"{where}: expected an object with an integer or a string as id, got {shortened(entry)}")
    return identifier if isinstance(identifier, str) else int(identifier)  # pyright: ignore[reportArgumentType]


def _is_nothing(value: object) -> bool:
    """Return whether a value stands for a missing field: null, an empty list or an empty text."""
    return value is None or (isinstance(value, Sized) and not len(value))


def _is_integer(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
