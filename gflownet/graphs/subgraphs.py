"""Lookup of the subgraphs that an operation graph names: unknown, recursive and deeply nested ones are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gflownet.operations.values import shown

# Levels of subgraphs within subgraphs; far below Python's recursion limit.
MAX_LEVELS = 32


class UnknownSubgraphError(ValueError):
    """A node applies a subgraph that is not defined."""


class RecursiveSubgraphError(ValueError):
    """A subgraph applies itself, or subgraphs are nested too deeply."""


def subgraph_data(subgraphs: Any, name: Any) -> Mapping[str, Any]:
    """Return the node-link data of a subgraph.

    Raises:
        UnknownSubgraphError: no such subgraph.
        RecursiveSubgraphError: it applies itself, directly or through others, or more than MAX_LEVELS levels.
        ValueError: the data are not an object.
    """
    if not isinstance(subgraphs, Mapping):
        raise ValueError(f"graph: expected an object under subgraphs, got {shown(subgraphs)}")
    if not isinstance(name, str) or name not in subgraphs:
        raise UnknownSubgraphError(f"expected a subgraph out of {', '.join(subgraphs) or 'none'}, got {shown(name)}")
    _check_levels(subgraphs, name)
    data = subgraphs[name]
    if not isinstance(data, Mapping):
        raise ValueError(f"subgraph {name}: expected an object, got {shown(data)}")
    return data


def applied_names(data: Any) -> list[str]:
    """Return the names of the subgraphs that node-link data apply from outside of their own, in order, once each."""
    if not isinstance(data, Mapping):
        return []
    definitions = data.get("subgraphs")
    definitions = definitions if isinstance(definitions, Mapping) else {}
    names = [name for entry in _entries(data) if isinstance(name := _applied(entry), str)]
    for inner in definitions.values():
        names += applied_names(inner)
    return [name for name in dict.fromkeys(names) if name not in definitions]


def _entries(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    nodes = data.get("nodes")
    return [entry for entry in nodes if isinstance(entry, Mapping)] if isinstance(nodes, list | tuple) else []


def _applied(entry: Mapping[str, Any]) -> Any:
    attributes = entry.get("attributes")
    inside = attributes.get("subgraph") if isinstance(attributes, Mapping) else None
    return entry.get("subgraph", inside)


def _check_levels(subgraphs: Mapping[str, Any], name: str) -> None:
    """Raise RecursiveSubgraphError where a depth-first search from `name` meets its own path or goes too deep."""
    finished: set[str] = set()
    path, pending = [name], [iter(applied_names(subgraphs[name]))]
    while path:
        following = next(pending[-1], None)
        if following is None:
            finished.add(path.pop())
            pending.pop()
        elif following in path:
            circle = " -> ".join([*path[path.index(following) :], following])
            raise RecursiveSubgraphError(f"expected no subgraph that applies itself, got {circle}")
        elif following in subgraphs and following not in finished:
            path.append(following)
            pending.append(iter(applied_names(subgraphs[following])))
            if len(path) > MAX_LEVELS:
                raise RecursiveSubgraphError(f"expected at most {MAX_LEVELS} levels of subgraphs, got more")
