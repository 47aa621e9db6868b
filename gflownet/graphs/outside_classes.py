"""The classes `module:Class` that an operation graph names: drawing a graph must not import them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

from gflownet.graphs.elements import GraphElements, Node
from gflownet.graphs.operation import OPERATIONS
from gflownet.operations.values import texts_in
from gflownet.plugins import is_module_class

_BUILT_IN = frozenset(OPERATIONS.homes.values())


def has_missing_modules(graph: GraphElements) -> bool:
    """Return whether a graph or one of its subgraphs names a class whose module is not imported yet."""
    nodes = (node for each in nested_graphs(graph) for node in each.nodes.values())
    return not all(is_imported(name) for node in nodes for name in _names(node))


def has_outside_classes(graph: GraphElements) -> bool:
    """Return whether a graph or one of its subgraphs names a class that is neither built in nor of torch."""
    nodes = (node for each in nested_graphs(graph) for node in each.nodes.values())
    return not all(is_built_in(name) for node in nodes for name in _names(node))


def nested_graphs(graph: GraphElements) -> Iterator[GraphElements]:
    """Yield a graph and every subgraph that its nodes apply, each once; unknown names are left out."""
    pending, visited = [graph], set()
    while pending:
        each = pending.pop()
        if id(each) in visited:
            continue
        visited.add(id(each))
        yield each
        for node in each.nodes.values():
            if "subgraph" in node.attributes:
                try:
                    pending.append(each.subgraph(node.attributes["subgraph"]))
                except ValueError:
                    continue


def is_imported(name: object) -> bool:
    """Return whether a name is built in, or the module of a module:Class or entry point is imported."""
    return is_built_in(name) or _home(name).partition(":")[0] in sys.modules


def is_built_in(name: object) -> bool:
    """Return whether a name is built in or of torch: its class may be imported."""
    home = _home(name)
    return not is_module_class(home) or home in _BUILT_IN or home.startswith(("torch.", "torch:"))


def _home(name: object) -> str:
    """Return module:Class of an operation; any other name as it is."""
    return OPERATIONS.home(name) if isinstance(name, str) else str(name)


def _names(node: Node) -> Iterator[object]:
    yield from (node.activation_function, node.aggregation)
    operation = node.attributes.get("operation")
    if isinstance(operation, Mapping):
        yield operation.get("name")
        yield from filter(is_module_class, texts_in(operation))  # classes and functions among the settings
