"""Networks of cells: a finished cell, repeated in a skeleton, as an operation graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gflownet.envs.choice_limits import Point, SummedCosts
from gflownet.envs.skeleton import KEY, NetworkWriter, Skeleton, Stage, Step, add_classifier, stage_starts
from gflownet.errors import UserError
from gflownet.graphs.assignment import Assignment
from gflownet.graphs.canonical import ColouredGraph
from gflownet.graphs.composites.convolution_blocks import dimensions
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.typed import graph_cost
from gflownet.operations.tensor_shape import Shape

IDENTITY = Step({"name": "identity"})


@dataclass(frozen=True)
class Cell:
    """The places of a cell, or of the layers of a network, and the operations that each may have."""

    places: tuple[str, ...]
    operations: tuple[str, ...]
    zeros: tuple[str, ...] = ()  # operations whose result is always zero

    def code(self, cell: Assignment) -> str:
        """Return one digit per place, the operation's position: the key of the tables."""
        return "".join(str(self.operations.index(str(operation))) for operation in cell.values)


@dataclass(eq=False)
class SlotNetworks(ABC):
    """Networks whose places each have an operation.

    Raises:
        UserError: an operation that cannot be applied, or that changes the shape at its place.
    """

    cell: Cell
    operations: Mapping[str, Sequence[Step]]
    skeleton: Skeleton
    input_shape: Shape
    num_outputs: int

    def graph(self, candidate: Assignment) -> ComputationGraph:
        """Return the network of a finished cell."""
        return self._network([str(operation) for operation in candidate.values]).graph()

    @cached_property
    def costs(self) -> SummedCosts:
        """Return the costs of every operation at every place; they add up."""
        places = [[(0, 0)] * len(self.cell.operations) for _ in self.cell.places]
        for place, value, (parameters, multiply_adds) in self._place_costs():
            before = places[place][value]
            places[place][value] = before[0] + parameters, before[1] + multiply_adds
        first = graph_cost(self.graph(Assignment(self.cell.places, (self.cell.operations[0],) * len(self.cell.places))))
        parameters, multiply_adds = (sum(costs[0][axis] for costs in places) for axis in range(2))
        base = first.num_parameters - parameters, first.multiply_adds - multiply_adds
        return SummedCosts(base, tuple(map(tuple, places)))

    @abstractmethod
    def _network(self, choice: Sequence[str]) -> NetworkWriter:
        """Return the network of one operation per place."""

    @abstractmethod
    def _place_costs(self) -> list[tuple[int, int, Point]]:
        """Return (place, position of the operation, cost) of every operation at every place of the network."""

    def _cost(self, steps: Sequence[Step], name: str, shape: Shape, expected: Shape) -> Point:
        """Return the cost of complete steps. Raises UserError unless they map one shape to the other."""
        got, costs = shape, [(0, 0)]
        try:
            for step in steps:
                before, got = got, step.shape_after(got)
                costs.append(step.applied().at({"input": before}).cost)
        except ValueError as error:
            raise UserError(f"env.cells.operations.{name}: {error}") from None
        if got != expected:
            raise UserError(f"env.cells.operations.{name}: expected an output {expected} for {shape}, got {got}")
        parameters, multiply_adds = map(sum, zip(*costs, strict=True))
        return parameters, multiply_adds


class EdgeNetworks(SlotNetworks):
    """Cells of edges `target<-source`: a node is the sum of the operations on its in-edges; node 0 is the input.

    The same cell is repeated in every stage; the last node is its output.
    """

    def _network(self, choice: Sequence[str]) -> NetworkWriter:
        writer = NetworkWriter(self.input_shape)
        for index, stage in self._stages(writer):
            cell = self._cell(choice, stage, writer.shape)
            writer.apply(f"cell{index + 1}", cell, repeat=stage.repeat)
        add_classifier(writer, self.num_outputs)
        return writer

    def _stages(self, writer: NetworkWriter) -> Iterator[tuple[int, Stage]]:
        for index, stage in stage_starts(self.skeleton, writer):
            if writer.shape.channels != stage.features:
                step = "reduction" if index else "stem"
                raise UserError(
                    f"{KEY}.stages[{index}]: expected a {step} to {stage.features} features, got {writer.shape}"
                )
            yield index, stage

    def _cell(self, choice: Sequence[str], stage: Stage, shape: Shape) -> NetworkWriter:
        writer, nodes = NetworkWriter(shape, is_subgraph=True), {0: 0}
        sources: dict[int, list[int]] = {}
        for place, name in sorted(zip(self.cell.places, choice, strict=True), key=lambda item: ends_of(item[0])):
            target, source = ends_of(place)
            if target not in sources:
                self._close(writer, nodes, sources)
            steps = self._steps(name, stage)
            last = writer.add(steps[0], nodes[source])
            for step in steps[1:]:
                last = writer.add(step, last)
            sources.setdefault(target, []).append(last)
        self._close(writer, nodes, sources)
        return writer

    def _close(self, writer: NetworkWriter, nodes: dict[int, int], sources: Mapping[int, Sequence[int]]) -> None:
        """Add the node whose in-edges were written last, if any."""
        for target, inputs in sources.items():
            if target not in nodes:
                nodes[target] = writer.add(IDENTITY, *inputs)

    def _steps(self, name: str, stage: Stage) -> list[Step]:
        return [step.at(stage.features) for step in self.operations[name]]

    def _place_costs(self) -> list[tuple[int, int, Point]]:
        costs = []
        writer = NetworkWriter(self.input_shape)
        for _, stage in self._stages(writer):
            for value, name in enumerate(self.cell.operations):
                parameters, multiply_adds = self._cost(self._steps(name, stage), name, writer.shape, writer.shape)
                total = stage.repeat * parameters, stage.repeat * multiply_adds
                costs += [(place, value, total) for place in range(len(self.cell.places))]
        return costs


class LayerNetworks(SlotNetworks):
    """Networks of layers, each with its own operation; the first layer of a stage changes width and resolution.

    Where it does, an operation without the settings `features` and `stride` follows a 1x1 convolution with batch norm,
    which changes the shape.
    """

    def _network(self, choice: Sequence[str]) -> NetworkWriter:
        writer, place = NetworkWriter(self.input_shape), 0
        for _, stage in stage_starts(self.skeleton, writer):
            for layer in range(stage.repeat):
                writer.chain(self._steps(choice[place], stage, writer.shape, is_first=layer == 0))
                place += 1
        add_classifier(writer, self.num_outputs)
        return writer

    def _steps(self, name: str, stage: Stage, shape: Shape, *, is_first: bool) -> list[Step]:
        stride = stage.stride if is_first else 1
        steps = self.operations[name]
        changes = is_first and (stride > 1 or shape.channels != stage.features)
        if not changes:
            return [step.at(stage.features) for step in steps]
        own = steps[0].at(stage.features, stride).settings
        if own.get("features") == stage.features and own.get("stride", 1) == stride:
            return [steps[0].at(stage.features, stride), *(step.at(stage.features) for step in steps[1:])]
        project = {"name": f"conv{dimensions({'input': shape})}", "kernel_size": 1, "bias": False}
        changed = [Step(project).at(stage.features, stride), Step({"name": "batch_norm"})]
        return [*changed, *(step.at(stage.features) for step in steps if step.name != "identity")]

    def _place_costs(self) -> list[tuple[int, int, Point]]:
        costs, place = [], 0
        writer = NetworkWriter(self.input_shape)
        for _, stage in stage_starts(self.skeleton, writer):
            for layer in range(stage.repeat):
                before = writer.shape
                choices = [self._steps(name, stage, before, is_first=layer == 0) for name in self.cell.operations]
                writer.chain(choices[0])
                for value, (name, steps) in enumerate(zip(self.cell.operations, choices, strict=True)):
                    costs.append((place, value, self._cost(steps, name, before, writer.shape)))
                place += 1
        return costs


@dataclass(eq=False)
class GraphNetworks:
    """Cells of NAS-Bench-101: graphs of operations from `input` to `output`, repeated in every stage.

    The vertices before the output share its channels, which are concatenated; the input is projected to the channels
    of each vertex that reads it (Ying et al. 2019, section 2).
    """

    operations: Mapping[str, Sequence[Step]]
    skeleton: Skeleton
    input_shape: Shape
    num_outputs: int

    def graph(self, candidate: ColouredGraph) -> ComputationGraph:
        """Return the network of a cell, the same for isomorphic cells."""
        return self.graph_in_order(in_topological_order(candidate))

    def graph_in_order(self, cell: ColouredGraph) -> ComputationGraph:
        """Return the network of a cell whose vertices are numbered from the input to the output.

        Where the channels cannot be shared equally, the vertices numbered first have one more.
        """
        writer = NetworkWriter(self.input_shape)
        for index, stage in stage_starts(self.skeleton, writer):
            first = self._cell(cell, stage.features, writer.shape)
            if writer.shape.channels == stage.features:
                writer.apply(f"cell{index + 1}", first, repeat=stage.repeat)
                continue
            writer.apply(f"cell{index + 1}_first", first)
            if stage.repeat > 1:
                others = self._cell(cell, stage.features, writer.shape)
                writer.apply(f"cell{index + 1}", others, repeat=stage.repeat - 1)
        add_classifier(writer, self.num_outputs)
        return writer.graph()

    def _cell(self, cell: ColouredGraph, features: int, shape: Shape) -> NetworkWriter:
        writer = NetworkWriter(shape, is_subgraph=True)
        num, edges = len(cell.node_colours), set(cell.edge_colours)
        channels = vertex_channels(edges, num, features)
        project = f"conv{dimensions({'input': shape})}"
        vertices: dict[int, int] = {}

        def projected(width: int) -> int:
            convolved = writer.add(Step({"name": project, "features": width, "kernel_size": 1, "bias": False}), 0)
            return writer.add(Step({"name": "batch_norm"}, "relu"), convolved)

        for vertex in range(1, num - 1):
            inputs = [projected(channels[vertex])] if (0, vertex) in edges else []
            for source in range(1, vertex):
                if (source, vertex) in edges:
                    is_wider = channels[source] > channels[vertex]
                    cut = Step({"name": "slice", "stop": channels[vertex]})
                    inputs.append(writer.add(cut, vertices[source]) if is_wider else vertices[source])
            merged = writer.add(IDENTITY, *inputs) if len(inputs) > 1 else inputs[0]
            for step in self.operations[cell.node_colours[vertex]]:
                merged = writer.add(step.at(channels[vertex]), merged)
            vertices[vertex] = merged
        last = [vertices[vertex] for vertex in range(1, num - 1) if (vertex, num - 1) in edges]
        outputs = [writer.add(IDENTITY, *last, merge="concat")] if len(last) > 1 else last
        outputs += [projected(features)] if (0, num - 1) in edges else []
        writer.add(IDENTITY, *outputs)
        writer.shape = shape.with_channels(features)
        return writer


def vertex_channels(edges: set[tuple[int, int]], num_vertices: int, features: int) -> list[int]:
    """Return the output channels of each vertex (Ying et al. 2019, the benchmark's rule); the input's are not used.

    Vertices before the output share its channels; others have the largest number of those they feed.
    """
    channels, output = [features] * num_vertices, num_vertices - 1
    before = [vertex for vertex in range(1, output) if (vertex, output) in edges]
    for place, vertex in enumerate(before):
        channels[vertex] = features // len(before) + (place < features % len(before))
    for vertex in range(output - 1, 0, -1):
        if vertex not in before:
            channels[vertex] = max(
                channels[target] for target in range(vertex + 1, output) if (vertex, target) in edges
            )
    return channels


def in_topological_order(cell: ColouredGraph) -> ColouredGraph:
    """Return a cell with its vertices in one order for isomorphic cells, sources before targets."""
    remaining, order = list(cell.canonical_form().order), []
    while remaining:
        free = [v for v in remaining if all(source in order for source, target in cell.edge_colours if target == v)]
        order.append(free[0])
        remaining.remove(free[0])
    place = {vertex: position for position, vertex in enumerate(order)}
    edges: dict[tuple[int, int], Any] = {
        (place[source], place[target]): colour for (source, target), colour in cell.edge_colours.items()
    }
    return ColouredGraph(tuple(cell.node_colours[vertex] for vertex in order), edges)


def ends_of(place: str) -> tuple[int, int]:
    """Return target and source of an edge `target<-source`."""
    target, _, source = place.partition("<-")
    return int(target), int(source)
