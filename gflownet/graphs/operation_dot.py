"""Operation graphs in Graphviz's DOT language, from their figures: subgraphs are clusters."""

from __future__ import annotations

from collections.abc import Iterator

from gflownet.graphs.figure import Figure, Form
from gflownet.layered_drawing import dot_text

_SHAPES = {Form.BOX: "box", Form.PILL: "box", Form.CIRCLE: "circle", Form.SMALL: "box", Form.PORT: "point"}


def figure_dot(figure: Figure) -> str:
    """Return a figure as DOT text, top to bottom, with the colours of the SVG."""
    head = [
        "digraph {",
        "  rankdir=TB;",
        '  node [style="rounded,filled" fontname="Helvetica"];',
        "  edge [fontsize=9];",
    ]
    return "\n".join([*head, *_lines(figure, "n"), "}\n"])


def _lines(figure: Figure, prefix: str) -> Iterator[str]:
    for key, item in figure.items.items():
        if item.inner is not None:
            label = dot_text(item.cells[0].text)
            yield f'  subgraph cluster_{prefix}{key} {{ label="{label}";'
            yield from _lines(item.inner, f"{prefix}{key}_")
            yield "  }"
            continue
        label = "\\n".join(dot_text(cell.text) for cell in item.cells)
        colours = f' fillcolor="{item.cells[0].fill}" color="{item.cells[0].stroke}"' if item.cells else ""
        yield f'  {prefix}{key} [label="{label}" shape={_SHAPES.get(item.form, "box")}{colours}];'
    for link in figure.links:
        source = f"{prefix}{link.source}" + ("" if link.exit is None else f"_{link.exit}")
        target = f"{prefix}{link.target}" + ("" if link.entry is None else f"_{link.entry}")
        note = dot_text(" ".join(text for text in (link.label, figure.items[link.source].note) if text))
        look = f'label="{note}" color="{link.style.colour}" style="{link.style.dot_style}"'
        yield f"  {source} -> {target} [{look}];"
