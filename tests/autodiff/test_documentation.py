"""docs/tensor-graphs.md: the examples run in order, and the table of functions matches the code."""

import re

import pytest

from gflownet.autodiff.functions import Function
from gflownet.autodiff.primitives import PRIMITIVES


@pytest.fixture(scope="module")
def page(checkout) -> str:
    return (checkout / "docs" / "tensor-graphs.md").read_text(encoding="utf-8")


def test_documentation_examples_run(page, capsys):
    session: dict = {"__name__": "__main__"}
    result = list(re.finditer(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    assert len(result) >= 10
    for block in result:
        line = page.count("\n", 0, block.start(1))
        exec(compile("\n" * line + block[1], "docs/tensor-graphs.md", "exec"), session)
    printed = capsys.readouterr().out
    quoted = re.findall(r"print\(error\)  # (.*)", page)
    assert quoted
    assert [message for message in quoted if message not in printed] == []


def test_documentation_function_table_matches_code(page):
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|", page.partition("## Functions of one variable")[2], re.MULTILINE)
    assert {name for name, _ in rows} >= {*PRIMITIVES, "sqrt", "neg", "reciprocal", "square", "cube"}
    for name, derivative in rows:
        assert str(Function.parse(name).derivative()) == derivative, name
