"""The examples of docs/translation.md run."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "translation.md"


def test_doc_examples_run(capsys):
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(examples) == 4
    namespace = {}
    for example in examples:
        exec(compile(example, str(PAGE), "exec"), namespace)
    printed = capsys.readouterr().out
    assert "mean -> relu" in printed
    assert "class Model(nn.Module)" in printed
    assert "block x 3" in printed
