"""Recipes of recurrent cells (NAS-Bench-NLP, Klyuchnikov et al. 2020) as graphs of operations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from gflownet.graphs.canonical import ColouredGraph

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
