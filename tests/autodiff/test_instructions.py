"""Instructions: when memory is taken over, and when it must not be."""

from __future__ import annotations

import torch

from gflownet.autodiff import entrywise
from gflownet.autodiff.instructions import Instructions, Value

DOUBLE = torch.float64


def body(code: Instructions, *outputs: Value, reuses_memory: bool = True) -> list[str]:
    return code.body(outputs, reuses_memory=reuses_memory)[0]


def call(code: Instructions, name: str, x: Value) -> Value:
    return code.emit(f"torch.{name}({{0}})", x, shape=x.shape, in_place=((0, f"{{0}}.{name}_()"),))


def test_equal_instructions_are_merged() -> None:
    code = Instructions([((3,), DOUBLE)])
    [x] = code.arguments
    assert call(code, "tanh", x) is call(code, "tanh", x)
    assert call(code, "exp", x) is not call(code, "tanh", x)


def test_dead_results_but_no_arguments_are_overwritten() -> None:
    code = Instructions([((3,), DOUBLE)])
    result = call(code, "exp", call(code, "tanh", code.arguments[0]))
    assert body(code, result) == ["v1 = torch.tanh(x0)", "v1.exp_()", "return v1"]
    remaining = ["v1 = torch.tanh(x0)", "v2 = torch.exp(v1)", "del v1", "return v2"]
    assert body(code, result, reuses_memory=False) == remaining


def test_live_values_are_not_overwritten() -> None:
    code = Instructions([((3,), DOUBLE)])
    tanh = call(code, "tanh", code.arguments[0])
    total = entrywise.add(code, call(code, "exp", tanh), tanh)
    assert body(code, total)[1] == "v2 = torch.exp(v1)"


def test_base_of_live_view_is_not_overwritten() -> None:
    code = Instructions([((3, 3), DOUBLE)])
    tanh = call(code, "tanh", code.arguments[0])
    turned = code.view("{0}.t()", tanh, shape=(3, 3))
    total = code.emit("torch.mm({0}, {1})", call(code, "exp", tanh), turned, shape=(3, 3))
    assert "v3 = torch.exp(v1)" in body(code, total)


def test_dead_view_is_overwritten() -> None:
    code = Instructions([((3, 3), DOUBLE)])
    turned = code.view("{0}.t()", call(code, "tanh", code.arguments[0]), shape=(3, 3))
    assert "v2.exp_()" in body(code, call(code, "exp", turned))


def test_expanded_values_are_not_overwritten() -> None:
    code = Instructions([((3,), DOUBLE)])
    tanh = call(code, "tanh", code.arguments[0])
    rows = code.view("{0}.expand((2, 3))", tanh, shape=(2, 3), is_expanded=True)
    assert "v3 = torch.exp(v2)" in body(code, call(code, "exp", rows))


def test_broadcast_does_not_overwrite_smaller_operand() -> None:
    code = Instructions([((3,), DOUBLE), ((2, 3), DOUBLE)])
    x, y = code.arguments
    total = entrywise.add(code, call(code, "tanh", x), y, 2.0)
    assert "v3 = torch.add(v2, x1, alpha=2.0)" in body(code, total)


def test_operand_read_twice_is_not_overwritten() -> None:
    code = Instructions([((3, 3), DOUBLE)])
    tanh = call(code, "tanh", code.arguments[0])
    in_place = ((0, "{0}.addmm_({1}, {2})"),)
    total = code.emit("torch.addmm({0}, {1}, {2})", tanh, tanh, tanh, shape=(3, 3), in_place=in_place)
    assert "v2 = torch.addmm(v1, v1, v1)" in body(code, total)


def test_unneeded_instructions_are_dropped() -> None:
    code = Instructions([((3,), DOUBLE)])
    call(code, "exp", code.arguments[0])
    lines, num_calls = code.body([call(code, "tanh", code.arguments[0])], reuses_memory=True)
    assert lines == ["v2 = torch.tanh(x0)", "return v2"]
    assert num_calls == 1
