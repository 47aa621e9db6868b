"""Operations by name, and with complete settings.

A name is a short one out of OPERATIONS, or `module:Class` for a user's own class. Classes are imported on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from gflownet.errors import UserError
from gflownet.graphs.operation_rows import BUILT_IN
from gflownet.operations.operation import Operation, complete_settings, is_port, setting_errors
from gflownet.operations.tensor_shape import Shape, ShapeError
from gflownet.operations.values import shown, thawed
from gflownet.plugins import ExtensionPoint

OPERATIONS = ExtensionPoint(
    "operation", contract="gflownet.operations.operation:Operation", built_in=BUILT_IN, group="gflownet.operations"
)


@cache
def operation(name: str) -> type[Operation]:
    """Return the class of an operation.

    Raises:
        ValueError: unknown name, a class that is not a subclass of Operation, or one that fails its check.
    """
    loaded = OPERATIONS.load(name)
    if name not in OPERATIONS:
        from gflownet.operations.standalone import check_row  # imports torch

        check_row(loaded, name)
    return loaded


def graph_name(name: str) -> str:
    """Return the name of an operation in graphs: module:Class for an entry point of a package. Imports nothing.

    Raises:
        ValueError: several packages have this entry point.
    """
    return name if name in OPERATIONS else OPERATIONS.home(name)


@dataclass(frozen=True)
class AppliedOperation:
    """An operation with complete settings: equal for equal operations."""

    name: str
    items: tuple[tuple[str, Any], ...]  # name and value of every setting, sorted

    @property
    def row(self) -> type[Operation]:
        """The class."""
        return operation(self.name)

    @property
    def row_home(self) -> str:
        """The class as module:Class."""
        return OPERATIONS.home(self.name)

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting by name."""
        return dict(self.items)

    def infer_shape(self, inputs: Mapping[str, Shape]) -> Shape:
        """Return the output shape. Raises ShapeError, also for a mistake in the class."""
        shape = self._called("infer_shape", inputs)
        if not isinstance(shape, Shape) or any(type(size) is not int for size in shape.sizes):
            raise ShapeError(f"expected infer_shape to return a Shape of integers, got {shown(shape)}")
        return shape

    def weight_shape(self, inputs: Mapping[str, Shape]) -> Shape:
        """Return the shape of the module's weight. Raises ShapeError without one, also for a mistake in the class."""
        return self._called("weight_shape", inputs)

    def state(self, inputs: Mapping[str, Shape]) -> dict[str, tuple[int, ...]]:
        """Return the sizes of the state by name. Raises ShapeError for a mistake in the class."""
        state = self._called("state", inputs)
        if not isinstance(state, Mapping) or not all(
            is_port(name) and isinstance(state[name], tuple) for name in state
        ):
            raise ShapeError(f"expected state to return tuples of sizes by name, got {shown(state)}")
        return dict(state)

    def cost(self, inputs: Mapping[str, Shape]) -> tuple[int, int]:
        """Return parameters and multiply-adds. Raises ShapeError for a mistake in the class."""
        from gflownet.operations.standalone import cost_of  # imports torch

        return self._checked("a cost", cost_of, inputs)

    def _called(self, method: str, inputs: Mapping[str, Shape]) -> Any:
        return self._checked(f"a result of {method}", lambda row, *arguments: getattr(row, method)(*arguments), inputs)

    def _checked(self, expected: str, function: Callable[..., Any], inputs: Mapping[str, Shape]) -> Any:
        try:
            return function(self.row, inputs, self.settings)
        except UserError as error:
            raise ShapeError(str(error)) from error
        except ShapeError:
            raise
        except Exception as error:  # raised by the user's own class
            reason = " ".join(str(error).split())
            raise ShapeError(f"expected {expected}, got {type(error).__name__}: {reason}") from error


def read_operation(value: Any) -> AppliedOperation:
    """Return the operation of a node's attribute {"name": ..., setting: value, ...}, completed by defaults.

    Raises:
        ValueError: not such a mapping, an unknown name or setting, a missing or invalid setting.
    """
    name, settings = _name_and_settings(value)
    return AppliedOperation(graph_name(name), complete_settings(operation(name), name, settings))


def operation_errors(value: Any) -> Iterator[tuple[str, str]]:
    """Yield the code and the line of every problem of a node's attribute `operation`."""
    try:
        name, settings = _name_and_settings(value)
    except ValueError as error:
        yield "invalid_operation", str(error)
        return
    try:
        row = operation(name)
    except ValueError as error:
        yield "unknown_operation", str(error)
        return
    yield from setting_errors(row, name, settings)


def _name_and_settings(value: Any) -> tuple[str, dict[str, Any]]:
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise ValueError(f"expected an operation with a name, got {shown(thawed(value))}")
    return value["name"], {key: item for key, item in value.items() if key != "name"}
