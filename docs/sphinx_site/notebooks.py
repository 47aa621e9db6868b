"""Notebooks as pages: their Markdown cells, their code and the stored outputs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser

_FENCE = "~~~~"


class NotebookParser(MystParser):
    """Parser of .ipynb files."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        super().parse(markdown_of(json.loads(inputstring)), document)


def markdown_of(notebook: dict[str, Any]) -> str:
    """Return the cells of a notebook with their outputs as MyST Markdown."""
    blocks: list[str] = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            blocks.append(source)
        elif cell["cell_type"] == "code":
            blocks.append(_block("ipython3", source))
            blocks += outputs_of(cell)
    return "\n\n".join(blocks) + "\n"


def outputs_of(cell: dict[str, Any]) -> Iterator[str]:
    """Yield the outputs of a code cell as MyST Markdown: text and SVG."""
    for output in cell["outputs"]:
        if output["output_type"] == "stream":
            yield _block("text", "".join(output["text"]).rstrip())
            continue
        data = output.get("data", {})
        if "image/svg+xml" in data:
            yield _block("{raw} html", f'<div class="notebook-figure">{"".join(data["image/svg+xml"])}</div>')
        elif "text/plain" in data:
            yield _block("text", "".join(data["text/plain"]))


def _block(language: str, text: str) -> str:
    return f"{_FENCE}{language}\n{text}\n{_FENCE}"
