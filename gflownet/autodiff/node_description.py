"""Custom nodes as written, in JSON and in text: the name of the class and the settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from gflownet.autodiff.custom_node import DERIVATIVES, Applied, CustomNode, Specification
from gflownet.autodiff.nodes import Node
from gflownet.autodiff.quoting import shortened

Classes = Mapping[str, type[CustomNode]]


@dataclass(frozen=True)
class Description:
    """A class of nodes and its settings, as JSON values."""

    kind: type[CustomNode]
    settings: Mapping[str, Any]
    classes: Classes = field(default_factory=dict, compare=False)

    def node(self, sources: Sequence[Node], *, name: str | None) -> Node:
        """Return the node of operands; raise ValueError for a setting or operands that do not fit."""
        operands = tuple((source.shape, source.dtype) for source in sources)
        return self.kind(*sources, name=name, **_settings(self.kind, self.settings, operands, self.classes))


def classes_by_name(classes: Iterable[type[CustomNode]]) -> Classes:
    """Return classes and derivatives by their names in JSON and text; raise ValueError for two of one name."""
    named: dict[str, type[CustomNode]] = {}
    for kind in (*DERIVATIVES, *classes):
        if named.setdefault(kind.type_name(), kind) is not kind:
            raise ValueError(f"classes: expected one class named {kind.type_name()}, got two")
    return named


def described(function: Applied) -> dict[str, Any]:
    """Return the settings of a function as JSON values."""
    return {name: _json(value) for name, value in function.settings}


def _json(value: Any) -> Any:
    if isinstance(value, Applied):
        return {"type": value.kind.type_name(), **described(value)}
    return list(value) if isinstance(value, tuple) else value


def _settings(
    kind: type[CustomNode], given: Mapping[str, Any], operands: Sequence[Specification], classes: Classes
) -> dict[str, Any]:
    """Return settings as Python values; the function of a derivative has all operands but the first."""
    types = kind.setting_types()
    return {
        name: _function(value, operands[1:], classes) if types.get(name) is Applied else value
        for name, value in given.items()
    }


def _function(value: Any, operands: Sequence[Specification], classes: Classes) -> Applied:
    name = str(value.get("type")) if isinstance(value, Mapping) else ""
    if name not in classes:
        nearest = get_close_matches(name, classes, n=1)
        hint = f", perhaps {nearest[0]}" if nearest else ""
        raise ValueError(f"of: expected the type of a custom node{hint}, got {shortened(value)}")
    kind = classes[name]
    settings = _settings(kind, {key: item for key, item in value.items() if key != "type"}, operands, classes)
    return Applied(kind, tuple(kind.checked_settings(settings, name).items()), tuple(operands))
