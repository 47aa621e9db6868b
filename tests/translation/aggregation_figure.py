"""Draw docs/images/aggregations.svg: every aggregation of the same three inputs, computed by the translator.

Each result is the output of a translated graph of three INPUT nodes and one OUTPUT node (edge weights 1, biases 0).
The mixing weights are solved for from that result; three linearly independent inputs make the solution unique.
`GFLOWNET_UPDATE_FIGURES=1 pytest tests/translation/test_figures.py` writes the figure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.utils import vector_to_parameters

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.translation import to_pytorch_model

INPUTS = torch.tensor([[1.0, -0.3, 0.6, 1.5], [-0.8, 1.2, 0.3, 0.5], [0.2, 0.7, -1.3, 1.0]], dtype=torch.float64)
NUM_INPUTS, WIDTH = INPUTS.shape

POSITIVE, NEGATIVE, INK, FAINT = (29, 78, 216), (194, 65, 12), "#1f2937", "#4b5563"
INPUT_COLOURS = ("#0f766e", "#7e22ce", "#be123c")
PANEL, NUM_COLUMNS, MARGIN = (300, 210), 3, 10
CELL, ROW, TOP, LEFT = 30, 24, 76, 36


@dataclass(frozen=True)
class Example:
    """One panel: an aggregation and its annotations. In texts, ~ makes the next character a subscript."""

    aggregation: str
    formula: str
    note: str = ""
    values: Sequence[float] = ()  # query rows, routers or gates, concatenated
    mixing: Sequence[str] = ()  # one name per row of mixing weights
    scores: tuple[str, Sequence[float]] | None = None  # name and one value per input, from which the weights follow
    attributes: Mapping[str, int | float] = field(default_factory=dict)


ONE, TWO = (1.5, -0.5, 0.0, 1.0), (1.5, -0.5, 0.0, 1.0, -1.0, 2.0, 0.0, 0.0)
FRAMES, POST = "framed in the colour of the chosen input", "a post layer leads back to output_size"
MEANS, ROUTERS, GATES = INPUTS.mean(dim=1).tolist(), (1.0, 0.0, -1.0), (2.0, 0.0, -1.0)
QUERY, SECOND, HEADS = "(1.5, &#8722;0.5, 0, 1)", "(&#8722;1, 2, 0, 0)", ("p~1", "p~2")
TOP_K = "Σ~j p~j X~j, p = softmax(s), s~j = mean of X~j"
QUERIES, POOL = f"q~1 = {QUERY}, q~2 = {SECOND}", {"pool_heads": 2, "temperature": 0.5}
EXAMPLES = (
    Example("sum", "Σ~j X~j", mixing=["weight"]),
    Example("mean", "1/J Σ~j X~j", mixing=["weight"]),
    Example("max", "the largest X~j, feature by feature", FRAMES),
    Example("min", "the smallest X~j, feature by feature", FRAMES),
    Example("concat", "[X~1, ..., X~J]", POST),
    Example("matrix_product", "the J &#215; d stack of inputs, flattened", POST),
    Example("attention", "Σ~j p~j X~j, p = softmax~j(X q / √d)", f"q = {QUERY}", ONE, ["p"]),
    Example("multi_head_attention", "attention per head, side by side", QUERIES, TWO, HEADS, None, {"num_heads": 2}),
    Example("attn_pool", "likewise, here with temperature 0.5", QUERIES, TWO, HEADS, None, POOL),
    Example("topk_weighted_sum", TOP_K, "over the top_k = 2 largest", (), ["p"], ("s", MEANS), {"top_k": 2}),
    Example("moe", "Σ~j p~j X~j, p = softmax~j(r)", "routers r", ROUTERS, ["p"], ("r", ROUTERS)),
    Example("gated_sum", "Σ~j &#963;(g~j) X~j", "gates g", GATES, ["&#963;(g)"], ("g", GATES)),
)


def compute_aggregate(example: Example) -> Tensor:
    """Return the aggregate [agg_size] of the translated graph; a `post` layer is read block by block."""
    graph = ComputationGraph()
    attributes = {"aggregation": example.aggregation, **example.attributes}
    graph.add_node(NUM_INPUTS, "output", output_size=WIDTH, attributes=attributes)
    for source in range(NUM_INPUTS):
        graph.add_node(source, "input", output_size=WIDTH)
        graph.add_edge(source, NUM_INPUTS)
    model, x = to_pytorch_model(graph, {"dtype": torch.float64}), INPUTS.reshape(1, -1)
    parameters = dict(model.named_parameters())
    chosen = [value for name, value in parameters.items() if name.startswith(("q_", "router_", "gate_"))]
    vector_to_parameters(torch.tensor(example.values, dtype=torch.float64), chosen)
    post = parameters.get(f"post_{NUM_INPUTS}.weight")
    blocks = []
    with torch.no_grad():
        for block in [None] if post is None else torch.eye(post.shape[1], dtype=post.dtype).split(WIDTH):
            if post is not None and block is not None:
                post.copy_(block)
            blocks.append(model(x)[0])
    return torch.cat(blocks)


def _text(x: float, y: float, text: str, *, size: float = 11, fill: str = INK, more: str = "") -> str:
    lowered = r'<tspan dy="3" font-size="75%">\1</tspan><tspan dy="-3">\2</tspan>'
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{fill}"{more}>{re.sub("~(.)(.?)", lowered, text)}</text>'
    )


def _number(value: float, digits: int) -> str:
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "&#8722;")


def _cell(x: float, y: float, value: float, *, width: float = CELL, frame: str = "") -> str:
    """Draw a number on its colour (blue above zero, orange below), rounded so that rounding errors do not show."""
    shown = round(value, 1)
    strength = min(abs(shown) / 2, 1) * 0.85
    colour = "".join(f"{round(255 + (end - 255) * strength):02x}" for end in (POSITIVE if shown > 0 else NEGATIVE))
    stroke = f'stroke="{frame or "#9ca3af"}" stroke-width="{2.5 if frame else 0.8}"'
    box = f'<rect x="{x:g}" y="{y:g}" width="{width - 2:g}" height="20" rx="3" fill="#{colour}" {stroke}/>'
    fill, size = "#ffffff" if strength > 0.8 else INK, 10 if width == CELL else 9
    return box + _text(x + width / 2 - 1, y + 14, _number(value, 1), size=size, fill=fill, more=' text-anchor="middle"')


def _weights(example: Example, aggregate: Tensor) -> list[str]:
    """Draw scores as numbers and mixing weights as numbers with bars, right of the inputs."""
    parts, x = [], LEFT + CELL * WIDTH + 12
    if example.scores:
        parts.append(_text(x, TOP - 6, example.scores[0], fill=FAINT))
        parts += [_text(x, TOP + j * ROW + 12, _number(value, 2)) for j, value in enumerate(example.scores[1])]
        x += 46
    for name, mixed in zip(example.mixing, aggregate.split(WIDTH), strict=False):
        weights = torch.linalg.lstsq(INPUTS.T, mixed[:, None]).solution[:, 0]
        assert torch.allclose(weights @ INPUTS, mixed), f"{example.aggregation} is not a weighted sum of its inputs"
        parts.append(_text(x, TOP - 6, name, fill=FAINT))
        for j, weight in enumerate(weights.tolist()):
            y, length = TOP + j * ROW, 50 * round(abs(weight), 2)
            parts.append(_text(x, y + 12, _number(weight, 2) if abs(weight) > 1e-9 else "not chosen"))
            parts.append(f'<rect x="{x}" y="{y + 16}" width="{length:g}" height="4" fill="{INPUT_COLOURS[j]}"/>')
        x += 62
    return parts


def _result(example: Example, aggregate: Tensor, frames: Sequence[str]) -> list[str]:
    """Draw the aggregate below the inputs, with a label under each block of a wide one."""
    y, num_blocks = TOP + 3 * ROW + 19, len(aggregate) // WIDTH
    parts = [f'<path d="M{LEFT + 59} {y - 16}v9m-5 -5l5 5l5 -5" fill="none" stroke="{FAINT}" stroke-width="1.6"/>']
    width, left = (CELL, LEFT) if num_blocks < 3 else (23, 12)
    parts += [
        _cell(left + width * i, y, v, width=width, frame=frames[i % WIDTH]) for i, v in enumerate(aggregate.tolist())
    ]
    for block in range(num_blocks if num_blocks > 1 else 0):
        name, fill = (f"head {block + 1}", FAINT) if example.mixing else (f"X~{block + 1}", INPUT_COLOURS[block])
        start, length = left + block * WIDTH * width, WIDTH * width - 2
        parts.append(f'<path d="M{start + 2} {y + 24}h{length - 4}" stroke="{fill}" stroke-width="2"/>')
        parts.append(_text(start + length / 2, y + 36, name, size=10, fill=fill, more=' text-anchor="middle"'))
    return parts


def draw_panel(example: Example, x: int, y: int) -> str:
    """Return the SVG group of one aggregation with its upper left corner at (x, y)."""
    aggregate, frames, bold = compute_aggregate(example), [""] * WIDTH, ' font-weight="bold"'
    parts = [f'<rect width="{PANEL[0]}" height="{PANEL[1]}" rx="8" fill="#f8fafc" stroke="#cbd5e1"/>']
    parts.append(_text(12, 21, example.aggregation, size=14, more=bold))
    parts += [_text(12, 38, example.formula, fill=FAINT), _text(12, 54, example.note, size=10, fill=FAINT)]
    for j, (row, colour) in enumerate(zip(INPUTS.tolist(), INPUT_COLOURS, strict=True)):
        parts.append(_text(12, TOP + j * ROW + 14, f"X~{j + 1}", fill=colour, more=bold))
        for i, value in enumerate(row):
            is_chosen = example.note == FRAMES and value == aggregate[i].item()
            frames[i] = colour if is_chosen else frames[i]
            parts.append(_cell(LEFT + CELL * i, TOP + j * ROW, value, frame=colour if is_chosen else ""))
    parts += [*_weights(example, aggregate), *_result(example, aggregate, frames)]
    return f'<g transform="translate({x} {y})">\n' + "\n".join(parts) + "\n</g>"


def draw() -> str:
    across, down = (size + MARGIN for size in PANEL)
    width, height = NUM_COLUMNS * across + MARGIN, len(EXAMPLES) // NUM_COLUMNS * down + MARGIN
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="Helvetica, Arial, sans-serif">'
    back = '<rect width="100%" height="100%" rx="10" fill="#ffffff"/>'
    corners = [(MARGIN + k % NUM_COLUMNS * across, MARGIN + k // NUM_COLUMNS * down) for k in range(len(EXAMPLES))]
    panels = [draw_panel(example, *corner) for example, corner in zip(EXAMPLES, corners, strict=True)]
    return "\n".join([head, "<title>Every aggregation on the same three inputs</title>", back, *panels, "</svg>\n"])
