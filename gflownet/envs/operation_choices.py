"""The operations that a search offers: their varying settings as node attributes, and the order in which they are set.

A node's values are set one after another, in the order of the attributes; other operations' settings stay unset.
A prefix is an operation with the values set so far; a complete prefix is an operation with all of its settings.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from gflownet.graphs.composite import Composite
from gflownet.graphs.merges import MERGES
from gflownet.graphs.operation import OPERATIONS, AppliedOperation, graph_name, operation, read_operation
from gflownet.mdp.states import Attribute
from gflownet.operations.operation import REQUIRED, WEIGHT_PORT, Category
from gflownet.operations.values import hashable, thawed
from gflownet.operations.vocabulary import Parameter, activation

MAX_PORTS = 3  # of an operation: tables and masks grow with shapes and nodes to the power of it
ACTIVATION, MERGE = "activation", "merge"  # attributes of a node next to the settings of its operation
_MERGES = tuple(name for name in MERGES if name != "concat")  # concat changes the shape with every edge
_MERGE = Parameter(f"merges out of {', '.join(_MERGES)}", lambda value: value in _MERGES)
# Operations of these kinds, but for composites, are followed by an activation unless `choices` offers others.
_ACTIVATED = (Category.CONVOLUTION, Category.LINEAR, Category.NORMALISATION)

Choices = Mapping[str, tuple[Hashable, ...]]


@dataclass(frozen=True)
class OfferedOperation:
    """An operation and its values, in the order in which they are set."""

    name: str
    choices: Choices  # at least one value of every setting offered, of the activation and of the merge

    @property
    def varying(self) -> tuple[str, ...]:
        """Names with more than one value: attributes that are set."""
        return tuple(name for name, values in self.choices.items() if len(values) > 1)

    def settings(self, values: Mapping[str, Hashable]) -> dict[str, Hashable]:
        """Return the offered settings of the operation, completed by fixed values.

        Equal values of several operations are one value of an attribute: 1, 1.0 and True. Each gets its own.
        """
        chosen = {name: offered[offered.index(values.get(name, offered[0]))] for name, offered in self.choices.items()}
        return {name: value for name, value in chosen.items() if name not in (ACTIVATION, MERGE)}

    def value(self, name: str, values: Mapping[str, Hashable]) -> Any:
        """Return the value of one name, completed by fixed values."""
        return values.get(name, self.choices[name][0])


class Prefix(NamedTuple):
    """An operation and the values set so far."""

    operation: int
    values: tuple[tuple[str, Hashable], ...]


class OperationChoices:
    """All operations offered, the attributes of nodes, and every prefix.

    Args:
        operations: names of operations.
        choices: values of settings by operation and name; by default the operation's row offers some.
        activations: values of the activation.
    """

    def __init__(
        self, operations: Sequence[str], *, choices: Mapping[str, Mapping[str, Any]], activations: Sequence[str]
    ) -> None:
        operations = [graph_name(name) for name in operations]
        choices = {graph_name(name): values for name, values in choices.items()}
        _check_names(operations, choices)
        self.operations = tuple(_offered(name, choices.get(name, {}), activations=activations) for name in operations)
        self._applied: dict[Prefix, AppliedOperation] = {}
        names: dict[str, dict[Hashable, None]] = {}
        for offered in self.operations:
            for name in offered.varying:
                names.setdefault(name, {}).update(dict.fromkeys(offered.choices[name]))
        last = {ACTIVATION: 1, MERGE: 2}
        ordered = sorted(names, key=lambda name: last.get(name, 0))
        self.attributes = tuple(Attribute(name, tuple(names[name])) for name in ordered)
        self.ports = self._ports()  # names of the inputs of each operation
        self.num_ports = max(map(len, self.ports))

    def own_attributes(self, index: int) -> list[int]:
        """Return the positions of the attributes of an operation, in the order in which they are set."""
        varying = self.operations[index].varying
        return [position for position, attribute in enumerate(self.attributes) if attribute.name in varying]

    @cached_property
    def prefixes(self) -> tuple[Prefix, ...]:
        """Every prefix: first those without values, one per operation."""
        prefixes = [Prefix(index, ()) for index in range(len(self.operations))]
        for prefix in prefixes:  # grows
            name = self.next_attribute(prefix)
            if name is not None:
                values = self.operations[prefix.operation].choices[name]
                prefixes += [Prefix(prefix.operation, (*prefix.values, (name, value))) for value in values]
        return tuple(prefixes)

    def next_attribute(self, prefix: Prefix) -> str | None:
        """Return the attribute that is set next, None of a complete prefix."""
        own = self.own_attributes(prefix.operation)
        return self.attributes[own[len(prefix.values)]].name if len(prefix.values) < len(own) else None

    def applied(self, prefix: Prefix) -> AppliedOperation:
        """Return the operation of a complete prefix, one object for all activations and merges.

        Raises:
            ValueError: an invalid setting.
        """
        key = Prefix(prefix.operation, tuple(item for item in prefix.values if item[0] not in (ACTIVATION, MERGE)))
        if key not in self._applied:
            offered = self.operations[prefix.operation]
            self._applied[key] = read_operation({"name": offered.name, **offered.settings(dict(key.values))})
        return self._applied[key]

    def _ports(self) -> tuple[tuple[str, ...], ...]:
        """Return the inputs of each operation. Raises ValueError for too many, or where they depend on a choice."""
        ports: dict[int, dict[tuple[str, ...], None]] = {}
        for prefix in self.prefixes:
            if self.next_attribute(prefix) is None:
                ports.setdefault(prefix.operation, {})[self.applied(prefix).required_ports] = None
        for index, (each, *others) in ports.items():
            if others or len(each) > MAX_PORTS or WEIGHT_PORT in each:
                expected = f"expected operations with the same 1 to {MAX_PORTS} inputs, none of them {WEIGHT_PORT}"
                got = " or ".join(", ".join(names) for names in (each, *others))
                name = self.operations[index].name
                raise ValueError(f"env.operation_graph.operations: {expected}, got {name} with {got}")
        return tuple(next(iter(ports[index])) for index in range(len(self.operations)))


def _listed(values: Any) -> tuple[Hashable, ...]:
    is_list = isinstance(values, Sequence) and not isinstance(values, str)
    return tuple(map(hashable, values if is_list else [values]))


def _check_names(operations: Sequence[str], choices: Mapping[str, Any]) -> None:
    if not operations or len(set(operations)) < len(operations):
        raise ValueError(f"env.operation_graph.operations: expected distinct operations, got {list(operations)}")
    for name in choices:  # those of other known operations are not used: a config may have more than a command chooses
        if name not in operations and name not in OPERATIONS:
            expected = f"expected operations out of {', '.join(operations)}"
            raise ValueError(f"env.operation_graph.choices: {expected}, got {name}")


def _offered(name: str, choices: Mapping[str, Any], *, activations: Sequence[str]) -> OfferedOperation:
    row = operation(name)
    is_activated = row.category in _ACTIVATED and not issubclass(row, Composite)
    values: dict[str, tuple[Hashable, ...]] = {
        **{key: tuple(setting.choices) for key, setting in row.settings.items() if setting.choices},
        ACTIVATION: tuple(activations) if is_activated else ("linear",),
        MERGE: ("sum",),
    }
    own = {key: setting.parameter for key, setting in row.settings.items()}
    parameters: dict[str, Parameter | None] = {**own, ACTIVATION: None, MERGE: _MERGE}
    place = f"env.operation_graph.choices.{name}"
    for key, override in choices.items():
        if key not in parameters:
            raise ValueError(f"{place}: expected settings out of {', '.join(parameters)}, got {key}")
        values[key] = _listed(override)
        _check_values(f"{place}.{key}", values[key], parameters[key])
    for key, setting in row.settings.items():
        if setting.default is REQUIRED and key not in values:
            raise ValueError(f"{place}.{key}: expected {setting.parameter.expected}, got none")
    for value in values[ACTIVATION]:
        activation(str(value))  # an error before the search starts
    # Settings first, in the order of the row; then activation and merge.
    return OfferedOperation(name, {key: values[key] for key in parameters if key in values})


def _check_values(place: str, values: Sequence[Any], parameter: Parameter | None) -> None:
    if not values or len(set(values)) < len(values):
        raise ValueError(f"{place}: expected distinct values, got {thawed(tuple(values))}")
    for value in values:
        if parameter is not None and not parameter.accepts(value):
            raise ValueError(f"{place}: expected {parameter.expected}, got {value!r}")
