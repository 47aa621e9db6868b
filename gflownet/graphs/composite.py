"""Composite operations: named operation graphs with settings."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, cast

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.node_link import MAX_LEVELS
from gflownet.graphs.typed import TypedGraph
from gflownet.graphs.validation import static_problems
from gflownet.graphs.visit import visited
from gflownet.operations.operation import Operation, check_class, complete_settings, example_inputs
from gflownet.operations.tensor_shape import Shape, ShapeError

Data = dict[str, Any]


class Composite(Operation):
    """Contract of a composite: a subclass defines `graph`; shapes, costs and code derive from it.

    It has no module of its own: the translator translates the graph.
    """

    @classmethod
    def graph(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Data:
        """Return an operation graph in node-link form: one INPUT node per port in the order of `ports`, one OUTPUT.

        Raises:
            ShapeError: the composite cannot be applied to these shapes.
        """
        raise NotImplementedError(f"{cls.__name__}: expected graph to be defined")

    @classmethod
    def computation_graph(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> ComputationGraph:
        """Return a copy of the inner graph; its INPUT nodes carry the input shapes."""
        return cast(ComputationGraph, cls.typed_body(cls.__name__, inputs, settings, "auto").graph).copy()

    @classmethod
    def typed_body(
        cls, name: str, inputs: Mapping[str, Shape], settings: Mapping[str, Any], projection: str
    ) -> TypedGraph:
        return _named_body(cls, name, tuple(inputs.items()), tuple(sorted(settings.items())), projection)

    @classmethod
    def infer_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        return cls.typed_body(cls.__name__, inputs, settings, "auto").output

    @classmethod
    def num_parameters(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> int:
        return cls.typed_body(cls.__name__, inputs, settings, "auto").live_cost.num_parameters

    @classmethod
    def multiply_adds(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> int:
        return cls.typed_body(cls.__name__, inputs, settings, "auto").live_cost.multiply_adds

    @classmethod
    def check(cls, name: str) -> None:
        if cls.graph.__func__ is Composite.graph.__func__:
            raise ValueError(f"operation: expected {name} to define graph")
        check_class(cls, name)
        for position, example in enumerate(cls.examples):
            where = f"{name}.examples[{position}]"
            inputs = example_inputs(cls, example, where)
            settings = dict(complete_settings(cls, where, example.settings))
            try:
                cls.infer_shape(inputs, settings)
            except Exception as error:  # raised by the user's own class
                reason = " ".join(str(error).split())
                raise ValueError(f"{where}: expected an output, got {type(error).__name__}: {reason}") from error


_Items = tuple[tuple[str, Any], ...]
_PATH: ContextVar[tuple[Any, ...]] = ContextVar("composites being expanded", default=())


@lru_cache(maxsize=4096)
def _named_body(row: type[Composite], name: str, inputs: _Items, settings: _Items, projection: str) -> TypedGraph:
    return _body(row, inputs, settings, projection).changed(name=name)


@lru_cache(maxsize=4096)
def _body(row: type[Composite], inputs: _Items, settings: _Items, projection: str) -> TypedGraph:
    key = row, inputs, settings
    if key in (path := _PATH.get()):
        raise ShapeError("expected a graph of other operations, got one that applies itself")
    if len(path) >= MAX_LEVELS:
        raise ShapeError(f"expected at most {MAX_LEVELS} levels of composites, got more")
    token = _PATH.set((*path, key))
    try:
        graph = ComputationGraph.from_dict(row.graph(dict(inputs), dict(settings)))
        for problem in static_problems(graph, {}):
            raise ShapeError(f"expected a valid graph, got {problem.message}")
        body = visited(graph, projection, name=row.__name__)
        for failure in body.failures.values():
            raise ShapeError(failure.reason)
        _ = body.output
        return body
    finally:
        _PATH.reset(token)


class GraphData:
    """Node-link data of a composite's graph, built node by node."""

    def __init__(self, inputs: Mapping[str, Shape]) -> None:
        self._nodes: list[Data] = []
        self._edges: list[Data] = []
        for port, shape in inputs.items():
            attributes = {"shape": list(shape.sizes), "layout": shape.layout.value, "port": port}
            if shape.layout == "tokens":
                attributes["dtype"] = "token"
            self._nodes.append({"id": len(self._nodes), "node_type": "input", "attributes": attributes})

    def add(self, name: str, *sources: int, activation: str = "linear", **settings: Any) -> int:
        """Add a node that applies an operation to the sum of its sources; return its id."""
        node_id = len(self._nodes)
        node = {"id": node_id, "node_type": "hidden", "activation_function": activation}
        self._nodes.append({**node, "operation": {"name": name, **settings}})
        for source in sources:
            self.connect(source, node_id)
        return node_id

    def connect(self, source: int, target: int, port: str = "input") -> None:
        """Add an edge into a port."""
        attributes = {} if port == "input" else {"port": port}
        self._edges.append({"source": source, "target": target, "attributes": attributes})

    def finish(self) -> Data:
        """Return the data; the node added last is the OUTPUT."""
        *inner, last = self._nodes
        return {"nodes": [*inner, {**last, "node_type": "output"}], "edges": self._edges}
