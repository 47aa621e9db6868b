"""docs/tensor-graphs.md: its examples run, one after another, and its table of functions is that of the code."""

import re

import pytest

from gflownet.autodiff.functions import Function
from gflownet.autodiff.primitives import PRIMITIVES


@pytest.fixture(scope="module")
def page(checkout) -> str:
    return (checkout / "docs" / "tensor-graphs.md").read_text(encoding="utf-8")


def test_the_examples_run_in_order_and_print_what_they_say(page, capsys):
    session: dict = {"__name__": "__main__"}
    found = list(re.finditer(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    assert len(found) >= 10
    for block in found:
        line = page.count("\n", 0, block.start(1))
        exec(compile("\n" * line + block[1], "docs/tensor-graphs.md", "exec"), session)
    printed = capsys.readouterr().out
    quoted = re.findall(r"print\(error\)  # (.*)", page)
    assert quoted
    assert [message for message in quoted if message not in printed] == []


def test_the_table_of_functions_is_that_of_the_code(page):
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|", page.partition("## Functions of one variable")[2], re.MULTILINE)
    assert {name for name, _ in rows} >= {*PRIMITIVES, "sqrt", "neg", "reciprocal", "square", "cube"}
    for name, derivative in rows:
        assert str(Function.parse(name).derivative()) == derivative, name
