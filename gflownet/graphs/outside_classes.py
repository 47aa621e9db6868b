"""The classes `module:Class` that an operation graph names: drawing a graph must not import them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

from gflownet.graphs.elements import GraphElements, Node
from gflownet.graphs.operation import OPERATIONS
from gflownet.plugins import is_module_class

_BUILT_IN = frozenset(OPERATIONS.homes.values())


def has_missing_modules(graph: GraphElements) -> bool:
    """Return whether a graph or one of its subgraphs names a class whose module is not imported yet."""
    nodes = (node for each in nested_graphs(graph) for node in each.nodes.values())
    return not all(is_imported(name) for node in nodes for name in _names(node))


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
    if isinstance(name, str) and not is_module_class(name):
        name = OPERATIONS.home(name)
    if not is_module_class(name) or name in _BUILT_IN:
        return True
    return str(name).partition(":")[0] in sys.modules


def _names(node: Node) -> Iterator[object]:
    yield from (node.activation_function, node.aggregation)
    operation = node.attributes.get("operation")
    if isinstance(operation, Mapping):
        yield from (operation.get("name"), operation.get("module"))
