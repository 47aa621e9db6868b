"""scripts/docs_outputs.py: outputs in pages, lines left out, comparison without numbers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts import docs_outputs

PAGE = """# Page

```python
# four.py
FOUR = 4
```

```bash
python -c 'import four; print(four.FOUR); print("five")'
```

```text
old
```

```text
no output
```
"""


def test_run_page_writes_outputs(tmp_path: Path) -> None:
    page = docs_outputs.run_page(PAGE, tmp_path)
    assert page == PAGE.replace("```text\nold\n", "```text\n4\nfive\n")


def test_run_page_refuses_failing_python(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        docs_outputs.run_page("```python\n1 / 0\n```\n", tmp_path)


@pytest.mark.parametrize(
    ("like", "expected"),
    [
        ("", "1\n2\n3\n4\n5\n"),
        ("a\n...\nb\nc\n", "1\n...\n4\n5\n"),
        ("a\nb\nc\n...\nd\ne\nf\n", "1\n2\n3\n4\n5\n"),
        ("a\n...\n", "1\n...\n"),
    ],
)
def test_abridged(like: str, expected: str) -> None:
    assert docs_outputs.abridged("1\n2\n3\n4\n5\n", like=like) == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["--notebooks", "--pages"])
def test_notebooks_and_tutorial_keep_their_outputs(checkout: Path, kind: str) -> None:
    command = [sys.executable, str(checkout / "scripts" / "docs_outputs.py"), kind, "--check"]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
