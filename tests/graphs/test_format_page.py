"""The examples of docs/graph-format.md run, and its tables name every field and code."""

import ast
import re
from pathlib import Path

from gflownet.graphs.node_link import OPERATION_NODE_FIELDS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "graph-format.md").read_text(encoding="utf-8")


def test_format_page_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (network,) = re.findall(r"```json\n(.*?)```", PAGE, flags=re.DOTALL)
    Path("network.json").write_text(network, encoding="utf-8")
    namespace: dict[str, object] = {}
    for example in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
        exec(compile(example, "graph-format.md", "exec"), namespace)
    assert Path("network.svg").read_text(encoding="utf-8").startswith("<svg")


def test_format_page_lists_fields_and_codes():
    assert all(f"| `{field}` |" in PAGE for field in OPERATION_NODE_FIELDS)
    codes = set()
    for name in ("validation", "element_problems"):
        tree = ast.parse((ROOT / "gflownet" / "graphs" / f"{name}.py").read_text(encoding="utf-8"))
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            place = {"GraphProblem": 0, "_at_node": 1, "at_edge": 1}.get(getattr(call.func, "id", ""))
            if place is not None and isinstance(code := call.args[place], ast.Constant):
                codes.add(code.value)
    assert len(codes) > 15
    assert {code for code in codes if f"`{code}`" not in PAGE} == set()
