"""Graphs listed in a file of JSON lines, gzipped or not, with recorded results next to them.

A line is an object with a `graph` in networkx's node-link form (a coloured graph, a computation graph or an
assignment), or a `recipe` of a recurrent cell, and any other fields.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gflownet.errors import UserError
from gflownet.files import parse_json, read_text
from gflownet.graphs.assignment import Assignment
from gflownet.graphs.canonical import ColouredGraph
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.recurrent_recipe import recipe_graph
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
