"""Skeletons of networks of cells: stem, stages of repeated cells, reductions between stages, head, classifier.

A step is an operation of the vocabulary. Its `features`, where it has this setting and does not set it, are the ones
of its stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gflownet.errors import UserError
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.operation import AppliedOperation, operation, read_operation
from gflownet.operations.operation import REQUIRED
from gflownet.operations.tensor_shape import Layout, Shape, ShapeError

KEY = "env.cells.skeleton"
Data = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """An operation with an activation; `features` and `stride` are completed by the stage."""

    settings: Mapping[str, Any]  # of the operation, with its name
    activation: str = "linear"

    @property
    def name(self) -> str:
        """The name of the operation."""
        return self.settings["name"]

    def at(self, features: int, stride: int = 1) -> Step:
        """Return the step with complete settings for a stage."""
        row = operation(self.name)
        added = {"features": features} if row.settings.get("features") else {}
        added |= {"stride": stride} if stride > 1 and "stride" in row.settings else {}
        return Step({**added, **self.settings}, self.activation)

    def applied(self) -> AppliedOperation:
        """Return the operation with its settings. Raises ValueError for invalid ones."""
        return read_operation(self.settings)

    def shape_after(self, shape: Shape) -> Shape:
        """Return the output shape. Raises ShapeError where the operation cannot be applied."""
        applied = self.applied()
        if applied.row.ports[1:]:
            raise ShapeError(f"{self.name}: expected an operation with one input, got {', '.join(applied.row.ports)}")
        try:
            return applied.row.infer_shape({"input": shape}, applied.settings)
        except ShapeError as error:
            raise ShapeError(f"{self.name}: {error}") from None


@dataclass(frozen=True)
class Stage:
    """Cells of one width."""

    features: int
    repeat: int = 1  # cells, or layers
    stride: int = 1  # of the first layer, in networks of layers


@dataclass(frozen=True)
class Skeleton:
    """Everything of a network but its cells; the classifier follows the head."""

    stem: tuple[Step, ...]
    stages: tuple[Stage, ...]
    reduction: tuple[Step, ...]  # before every stage but the first
    head: tuple[Step, ...]

    @property
    def num_layers(self) -> int:
        """The number of cells or layers."""
        return sum(stage.repeat for stage in self.stages)


def read_skeleton(declared: Mapping[str, Any]) -> Skeleton:
    """Return the skeleton of nested options: stem, stages, reduction and head.

    Raises:
        UserError: an unknown name, an invalid operation, or no stage.
    """
    unknown = [str(key) for key in declared if key not in ("stem", "stages", "reduction", "head")]
    if unknown:
        raise UserError(f"{KEY}: expected stem, stages, reduction and head, got {', '.join(unknown)}")
    stages = declared.get("stages")
    if not isinstance(stages, Sequence) or isinstance(stages, str) or not stages:
        raise UserError(f"{KEY}.stages: expected a list such as [{{features: 16, repeat: 5}}], got {stages!r}")
    return Skeleton(
        stem=read_steps(declared.get("stem", ()), f"{KEY}.stem"),
        stages=tuple(_stage(stage, f"{KEY}.stages[{place}]") for place, stage in enumerate(stages)),
        reduction=read_steps(declared.get("reduction", ()), f"{KEY}.reduction"),
        head=read_steps(declared.get("head", ()), f"{KEY}.head"),
    )


def read_steps(declared: Any, key: str) -> tuple[Step, ...]:
    """Return the operations of an option: a name, {name: ..., settings}, or a list of these.

    Raises:
        UserError: an unknown operation or setting.
    """
    entries = declared if isinstance(declared, Sequence) and not isinstance(declared, str) else [declared]
    return tuple(_step(entry, key) for entry in entries)


def _step(declared: Any, key: str) -> Step:
    entry = {"name": declared} if isinstance(declared, str) else declared
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        raise UserError(f"{key}: expected the name of an operation, or {{name: ..., settings}}, got {declared!r}")
    settings = {str(name): value for name, value in entry.items() if name != "activation"}
    step = Step(settings, str(entry.get("activation", "linear")))
    try:
        row = operation(step.name)
        required = [name for name, setting in row.settings.items() if setting.default is REQUIRED]
        read_operation({**{name: 1 for name in required if name == "features"}, **settings})
    except ValueError as error:
        raise UserError(f"{key}: {error}") from None
    return step


def _stage(declared: Any, key: str) -> Stage:
    names = ("features", "repeat", "stride")
    if not isinstance(declared, Mapping) or "features" not in declared or any(name not in names for name in declared):
        raise UserError(f"{key}: expected features, repeat and stride, got {declared!r}")
    for name, value in declared.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UserError(f"{key}.{name}: expected an integer >= 1, got {value!r}")
    return Stage(**{str(name): value for name, value in declared.items()})


class NetworkWriter:
    """Node-link data of a chain of steps and subgraphs; it follows the shape of its last node."""

    def __init__(self, shape: Shape, *, is_subgraph: bool = False) -> None:
        self.shape = shape
        node: Data = {"id": 0, "node_type": "input"}
        self._nodes = [node if is_subgraph else {**node, "shape": list(shape.sizes), "layout": shape.layout.value}]
        self._edges: list[Data] = []
        self._subgraphs: dict[str, Data] = {}

    @property
    def last(self) -> int:
        """The id of the last node."""
        return len(self._nodes) - 1

    def add(self, step: Step, *sources: int, merge: str = "sum") -> int:
        """Add an operation on merged sources, by default on the last node; return its id. The shape is not followed."""
        node = {"operation": dict(step.settings), "activation_function": step.activation}
        return self._append(node | ({"aggregation": merge} if merge != "sum" else {}), sources or (self.last,))

    def chain(self, steps: Sequence[Step]) -> int:
        """Add complete steps, each on the node before; return the id of the last node."""
        for step in steps:
            self.shape = step.shape_after(self.shape)
            self.add(step)
        return self.last

    def apply(self, name: str, subgraph: NetworkWriter, *, repeat: int = 1) -> None:
        """Add a subgraph on the last node."""
        self._subgraphs[name] = subgraph.finish()
        self._append({"subgraph": name} | ({"repeat": repeat} if repeat > 1 else {}), (self.last,))
        self.shape = subgraph.shape

    def finish(self) -> Data:
        """Return the data; the last node is the output."""
        *others, last = self._nodes
        data = {"nodes": [*others, {**last, "node_type": "output"}], "edges": self._edges}
        return data | ({"subgraphs": self._subgraphs} if self._subgraphs else {})

    def graph(self) -> ComputationGraph:
        """Return the network."""
        return ComputationGraph.from_dict(self.finish())

    def _append(self, node: Data, sources: Sequence[int]) -> int:
        target = len(self._nodes)
        self._nodes.append({"id": target, "node_type": "hidden", **node})
        self._edges += [{"source": source, "target": target} for source in sources]
        return target


def add_classifier(writer: NetworkWriter, num_outputs: int) -> None:
    """Add the output: a linear layer, after an average over all positions where there are some."""
    name = "linear" if writer.shape.layout is Layout.VECTOR else "head"
    writer.chain([Step({"name": name, "features": num_outputs})])


def stage_starts(skeleton: Skeleton, writer: NetworkWriter) -> Iterator[tuple[int, Stage]]:
    """Yield each stage after its stem or reduction has been written; the caller writes the cells.

    Raises:
        UserError: an operation of the skeleton that cannot be applied.
    """
    first = skeleton.stages[0]
    _written(writer, "stem", [step.at(first.features) for step in skeleton.stem])
    for index, stage in enumerate(skeleton.stages):
        if index:
            _written(writer, "reduction", [step.at(stage.features) for step in skeleton.reduction])
        yield index, stage
    _written(writer, "head", [step.at(skeleton.stages[-1].features) for step in skeleton.head])


def _written(writer: NetworkWriter, part: str, steps: Sequence[Step]) -> None:
    try:
        writer.chain(steps)
    except ValueError as error:
        raise UserError(f"{KEY}.{part}: {error}") from None
