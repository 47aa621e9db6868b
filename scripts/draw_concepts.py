"""Draw the figures of docs/concepts as SVG.

python scripts/draw_concepts.py GFLOWNET_RUN MAXIMISER_RUN

The runs are of hypergrid, with the options of the page: `python -m gflownet.train task=hypergrid algo.method=tb` and
`algo.method=a2c`. Their policies are sampled; all other figures need no run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
NUM_SAMPLES = 4_000
INK, SOFT, LINE, BLUE, ORANGE, PAPER = "#1f2933", "#5b6673", "#c3cad3", "#2f6fb5", "#c8641b", "#ffffff"


class Canvas:
    """An SVG on a white card, so that it can be read on light and dark pages."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.size = (width, height)
        self.title = title
        self.marks: list[str] = []

    def text(
        self, x: float, y: float, words: str, *, size: int = 14, colour: str = INK, anchor: str = "middle"
    ) -> None:
        self.marks.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" text-anchor="{anchor}">{words}</text>'
        )

    def circle(self, x: float, y: float, *, radius: float = 11, fill: str = BLUE) -> None:
        self.marks.append(f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" fill="{fill}"/>')

    def line(
        self, start: tuple[float, float], end: tuple[float, float], *, colour: str = INK, arrow: bool = False
    ) -> None:
        (x1, y1), (x2, y2) = start, end
        marker = ' marker-end="url(#arrow)"' if arrow else ""
        self.marks.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{colour}" stroke-width="2"{marker}/>'
        )

    def box(
        self, x: float, y: float, width: float, height: float, *, fill: str = PAPER, stroke: str = LINE, radius: int = 8
    ) -> None:
        self.marks.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}" fill="{fill}" '
            f'stroke="{stroke}"/>'
        )

    def write(self, name: str) -> None:
        width, height = self.size
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'role="img" font-family="system-ui, sans-serif">',
            f"<title>{self.title}</title>",
            '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{INK}"/></marker></defs>',
            f'<rect width="{width}" height="{height}" rx="10" fill="{PAPER}"/>',
            *self.marks,
            "</svg>",
        ]
        (IMAGES / f"concept-{name}.svg").write_text("\n".join(lines) + "\n", encoding="utf-8")


def draw_chain(canvas: Canvas, x: float, y: float, colours: Sequence[str]) -> None:
    """Draw a state: a box with a chain of layers."""
    canvas.box(x - 55, y - 28, 110, 56)
    start = x - 24 * (len(colours) - 1) / 2
    for place in range(len(colours) - 1):
        canvas.line((start + 24 * place, y), (start + 24 * (place + 1), y))
    for place, colour in enumerate(colours):
        canvas.circle(start + 24 * place, y, radius=8, fill=colour)
    if not colours:
        canvas.text(x, y + 5, "empty", size=13, colour=SOFT)


def draw_states() -> None:
    canvas = Canvas(740, 240, "Two orders of actions lead to the same network")
    places = {"empty": (75, 120), "first": (285, 60), "second": (285, 180), "both": (495, 120), "end": (665, 120)}
    draw_chain(canvas, *places["empty"], [])
    draw_chain(canvas, *places["first"], [BLUE])
    draw_chain(canvas, *places["second"], [ORANGE])
    draw_chain(canvas, *places["both"], [BLUE, ORANGE])
    canvas.box(620, 92, 90, 56, fill="#eef3f8", stroke=BLUE)
    canvas.text(665, 116, "x", size=16)
    canvas.text(665, 137, "reward R(x)", size=13, colour=SOFT)
    for start, end, words, place in (
        ((130, 108), (228, 66), "add conv", (166, 72)),
        ((130, 132), (228, 174), "add norm", (166, 178)),
        ((340, 66), (438, 108), "add norm", (404, 72)),
        ((340, 174), (438, 132), "add conv", (404, 178)),
        ((550, 120), (618, 120), "Stop", (584, 110)),
    ):
        canvas.line(start, end, arrow=True)
        canvas.text(*place, words, size=13)
    canvas.text(285, 22, "states: unfinished networks", size=13, colour=SOFT)
    canvas.text(
        370, 228, "forward policy: which action next?    backward policy: which one was last?", size=13, colour=SOFT
    )
    canvas.write("states")


def draw_symmetry() -> None:
    canvas = Canvas(740, 290, "Isomorphic drawings, and graphs with 1, 2 and 6 automorphisms")
    canvas.text(20, 30, "one graph, three drawings", anchor="start")
    for column, names in enumerate(("1 2 3", "2 3 1", "3 1 2")):
        x = 110 + 250 * column
        numbers = names.split()
        points = [(x - 60, 75), (x, 75), (x + 60, 75)]
        canvas.line((x - 60, 75), (x + 60, 75))
        for point, number, colour in zip(points, numbers, (BLUE, ORANGE, BLUE), strict=True):
            canvas.circle(*point, radius=14, fill=colour)
            canvas.text(point[0], point[1] + 5, number, colour=PAPER)
    canvas.line((20, 118), (720, 118), colour=LINE)
    canvas.text(20, 148, "three graphs, and the number of ways to exchange nodes without a change", anchor="start")
    for column, (branches, words) in enumerate(((1, "|Aut| = 1"), (2, "|Aut| = 2"), (3, "|Aut| = 6"))):
        x = 110 + 250 * column
        height = 30
        for branch in range(branches):
            y = 205 + (branch - (branches - 1) / 2) * height
            canvas.line((x - 60, 205), (x, y))
            canvas.line((x, y), (x + 60, 205))
            canvas.circle(x, y, fill=ORANGE)
        canvas.circle(x - 60, 205, fill=INK)
        canvas.circle(x + 60, 205, fill=INK)
        canvas.text(x, 275, words)
    canvas.write("symmetry")


def draw_certificate() -> None:
    target = np.array([20, 17, 14, 12, 10, 8, 7, 5, 4, 3]) / 100
    sampled = np.array([18, 19, 13, 13, 9, 9, 6, 6, 4, 3]) / 100
    distance = np.abs(target - sampled).sum() / 2
    canvas = Canvas(740, 260, "Target and sampled probabilities of ten objects")
    canvas.line((40, 200), (710, 200), colour=LINE)
    for place, (wanted, found) in enumerate(zip(target, sampled, strict=True)):
        x = 60 + 66 * place
        canvas.box(x, 200 - 700 * wanted, 22, 700 * wanted, fill=LINE, stroke=LINE, radius=2)
        canvas.box(x + 24, 200 - 700 * found, 22, 700 * found, fill=BLUE, stroke=BLUE, radius=2)
        canvas.text(x + 23, 220, f"x{place + 1}", size=13, colour=SOFT)
    canvas.box(430, 30, 14, 14, fill=LINE, stroke=LINE, radius=2)
    canvas.text(452, 42, "target R(x) / Z", anchor="start")
    canvas.box(570, 30, 14, 14, fill=BLUE, stroke=BLUE, radius=2)
    canvas.text(592, 42, "sampled p(x)", anchor="start")
    words = f"half of the sum of all differences: total variation {distance:.2f}"
    canvas.text(430, 72, words, size=13, colour=SOFT, anchor="start")
    canvas.text(370, 246, "objects, the best first (an invented example)", size=13, colour=SOFT)
    canvas.write("certificate")


def draw_sampling(runs: Sequence[str]) -> None:
    reward = hypergrid_reward()
    maps = [reward / reward.sum(), *(sampled_points(run) for run in runs)]
    canvas = Canvas(740, 290, "Reward of a grid, and samples of a GFlowNet and of a maximiser")
    highest = max(float(values.max()) for values in maps[:2])
    captions = (
        ("target R(x) / Z", "four peaks"),
        ("GFlowNet (tb)", _share(maps[1], reward)),
        ("maximiser (a2c)", _share(maps[2], reward)),
    )
    for column, (values, (name, words)) in enumerate(zip(maps, captions, strict=True)):
        left = 25 + 245 * column
        canvas.text(left + 100, 28, name)
        for (row, place), value in np.ndenumerate(values):
            shade = min(1.0, float(value) / highest) ** 0.5
            colour = f"rgb({round(238 - shade * 191)},{round(243 - shade * 132)},{round(248 - shade * 67)})"
            canvas.box(left + 25 * place, 42 + 25 * row, 24, 24, fill=colour, stroke=colour, radius=3)
        canvas.text(left + 100, 268, words, size=13, colour=SOFT)
    canvas.write("sampling")


def _share(values: np.ndarray, reward: np.ndarray) -> str:
    peaks = reward == reward.max()
    found = int((values[peaks] > 0.01).sum())
    return f"{found} of {int(peaks.sum())} peaks, {values[peaks].sum():.0%} of the samples"


def hypergrid_reward(side: int = 8) -> np.ndarray:
    """Return the reward of task=hypergrid with its default heights, [side, side]."""
    from tasks.hypergrid import HypergridRewardConfig

    heights = HypergridRewardConfig()
    distance = np.abs(np.arange(side) / (side - 1) - 0.5)
    far = np.minimum.outer(distance, distance) > 0.25
    ring = (distance > 0.3) & (distance < 0.4)
    return heights.r0 + heights.r1 * far + heights.r2 * np.logical_and.outer(ring, ring)


def sampled_points(run: str, side: int = 8) -> np.ndarray:
    """Return the shares of the points among samples of the policy of a run, [side, side]."""
    import gflownet

    counts = np.zeros((side, side))
    for point in gflownet.sample(run, NUM_SAMPLES, seed=0):
        values = dict(coordinates(point))
        counts[values["x0"], values["x1"]] += 1
    return counts / counts.sum()


def coordinates(point: Any) -> Iterable[tuple[str, int]]:
    """Yield the coordinates of an assignment such as x0=1/7 x1=6/7."""
    for name, value in point.as_dict().items():
        yield name, int(value.partition("/")[0])


if __name__ == "__main__":
    draw_states()
    draw_symmetry()
    draw_certificate()
    if len(sys.argv) == 3:
        draw_sampling(sys.argv[1:])
