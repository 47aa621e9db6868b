"""Tables with gaps, texts and dates for tests."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

HOUSE_COLUMNS = ("rooms", "city", "sold", "garden", "area", "price")
CITIES = ("Berlin", "Paris", "Rome", "")


def houses(num: int = 200, *, seed: int = 0) -> list[list[str]]:
    """Return rows of HOUSE_COLUMNS: gaps in rooms, garden and city, dates in `sold`, numbers as prices."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(num):
        rooms, city, garden = rng.integers(1, 6), rng.integers(len(CITIES)), rng.integers(3)
        sold = f"20{rng.integers(10, 24)}-{rng.integers(1, 13):02}-{rng.integers(1, 29):02}"
        area = rng.normal(80, 20)
        price = area + 20 * rooms + 30 * city + 10 * garden
        cells = ["" if rooms == 5 else str(rooms), CITIES[city], sold, ("no", "yes", "")[garden]]
        rows.append([*cells, f"{area:.2f}", f"{price:.1f}"])
    return rows


def write_rows(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    """Write a CSV file; an empty header is left out."""
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows] if header else rows)
    return path


def write_houses(path: Path, num: int = 200) -> Path:
    """Write a CSV file of houses."""
    return write_rows(path, HOUSE_COLUMNS, houses(num))
