"""Graphs listed in a file of JSON lines, gzipped or not, with recorded results next to them.

A line is an object with a `graph` in networkx's node-link form (a coloured graph, a computation graph or an
assignment), or a `recipe` of a recurrent cell, and any other fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from gflownet.errors import UserError
from gflownet.files import parse_json, read_text
from gflownet.graphs.assignment import Assignment
from gflownet.graphs.canonical import ColouredGraph
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.records.trust import checked_names

Graph = ColouredGraph | ComputationGraph | Assignment


@dataclass(frozen=True)
class ListedGraph:
    """A line of the file."""

    graph: Graph
    fields: Mapping[str, Any]
    line: int  # from 1 on


def read_listed_graphs(path: str, *, key: str) -> list[ListedGraph]:
    """Return the lines of a file; isomorphic graphs may come repeatedly.

    Args:
        path: of the file.
        key: option that names it, for errors.

    Raises:
        UserError: an unreadable or empty file, or a line without a valid graph.
    """
    listed = []
    for line, text in enumerate(read_text(path, key=key).split("\n"), start=1):
        if not text.strip():
            continue
        try:
            fields = parse_json(text)
            with checked_names(Path(path), fields, folder=Path(path).parent):
                listed.append(ListedGraph(_graph_of(fields), fields, line))
        except json.JSONDecodeError as error:
            raise UserError(f"{key}: {path}, line {line}: expected a JSON object, got {error}") from None
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"{key}: {path}, line {line}: {' '.join(str(error).split())[:300]}") from None
    if not listed:
        raise UserError(f"{key}: expected graphs in {path}, got an empty file")
    kinds = {type(each.graph).__name__: each.line for each in reversed(listed)}
    if len(kinds) > 1:
        described = ", ".join(f"{kind} (line {line})" for kind, line in sorted(kinds.items()))
        raise UserError(f"{key}: expected graphs of one kind in {path}, got {described}")
    return listed


def graph_of_dict(data: Mapping[str, Any]) -> Graph:
    """Return the coloured graph, assignment or computation graph of a node-link object. Raises ValueError."""
    nodes = data.get("nodes")
    first = nodes[0] if isinstance(nodes, list) and nodes else {}
    if isinstance(first, Mapping) and "colour" in first:
        return ColouredGraph.from_dict(data)
    if isinstance(first, Mapping) and {"name", "value"} <= first.keys():
        return Assignment.from_dict(data)
    return ComputationGraph.from_dict(data)


def _graph_of(fields: Any) -> Graph:
    if not isinstance(fields, Mapping):
        raise ValueError(f"expected a JSON object, got {type(fields).__name__}")
    if "recipe" in fields:
        return recipe_graph(fields["recipe"])
    if not isinstance(fields.get("graph"), Mapping):
        raise ValueError(f"expected a field graph or recipe, got {', '.join(map(str, fields)) or 'none'}")
    return graph_of_dict(fields["graph"])


_INPUT = re.compile(r"x|h_prev_\d+")
_OUTPUT = re.compile(r"h_new_\d+")
# blend(z, a, b) = z * a + (1 - z) * b; the inputs of the other operations are interchangeable.
_ORDERED = {"blend"}


def recipe_graph(recipe: Any) -> ColouredGraph:
    """Return the graph of a recipe {node: {op, input}}.

    Its nodes are the operations, the inputs x and h_prev_i, and an output h_new_i behind each operation of that name.
    Edges into a blend are coloured by position.

    Raises:
        ValueError: a node without an operation and inputs, an unknown input, a cycle, or no output.
    """
    if not isinstance(recipe, Mapping) or not recipe:
        raise ValueError(f"recipe: expected nodes by name, got {type(recipe).__name__}")
    colours: dict[str, str] = {}
    edges: dict[tuple[str, str], str] = {}
    for name, node in recipe.items():
        if not isinstance(node, Mapping) or not isinstance(node.get("op"), str) or not node.get("input"):
            raise ValueError(f"recipe: expected an op and inputs of node {name}, got {node!r}")
        if not isinstance(node["input"], list) or not all(isinstance(source, str) for source in node["input"]):
            raise ValueError(f"recipe: expected a list of names as input of {name}, got {node['input']!r}")
        colours[name] = node["op"]
        for position, source in enumerate(node["input"]):
            if source not in recipe and not _INPUT.fullmatch(source):
                raise ValueError(f"recipe: expected x, h_prev_i or a node as input of {name}, got {source!r}")
            colour = str(position) if node["op"] in _ORDERED else "input"
            edges[source, name] = f"{edges[source, name]},{colour}" if (source, name) in edges else colour
    _check_acyclic(recipe)
    outputs = [name for name in recipe if _OUTPUT.fullmatch(name)]
    if not outputs:
        raise ValueError(f"recipe: expected an output h_new_0, got the nodes {', '.join(recipe)}")
    inputs = {source: source for source, _ in edges if source not in recipe}
    order = [*inputs, *colours, *(f"{name} out" for name in outputs)]
    place = {name: position for position, name in enumerate(order)}
    edges |= {(name, f"{name} out"): "output" for name in outputs}
    return ColouredGraph(
        (*inputs.values(), *colours.values(), *outputs),
        {(place[source], place[target]): colour for (source, target), colour in edges.items()},
    )


def _check_acyclic(recipe: Mapping[str, Any]) -> None:
    """Raise ValueError for a node that depends on itself."""
    try:
        TopologicalSorter({name: node["input"] for name, node in recipe.items()}).prepare()
    except CycleError as error:
        raise ValueError(f"recipe: expected no cycle, got {' -> '.join(error.args[1])}") from None
