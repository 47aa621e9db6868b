"""Tables with gaps, texts and dates for tests."""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gflownet.config import load_config, with_task_options
from gflownet.evaluation.data.examples import Splits
from gflownet.translation.table_columns import TableColumns
from tasks.table import TableConfig, TableTask

HOUSE_COLUMNS = ("rooms", "city", "sold", "garden", "area", "price")
CITIES = ("Berlin", "Paris", "Rome", "")


def columns_of(splits: Splits) -> TableColumns:
    assert splits.columns is not None
    return splits.columns


def make_task(path: Any, *overrides: str) -> TableTask:
    config = load_config("table", [f"task_options.data={path}", "evaluation.num_epochs=2", *overrides])
    return TableTask(with_task_options(config, TableConfig))


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


@dataclass(frozen=True)
class Form:
    """A table in the form of a public file.

    A column is the cells of all rows: A|B one of some texts, MEAN~DEVIATION a number with the digits of the mean, K the
    number of the row; a last ? makes gaps.
    """

    name: str
    names: str  # of the columns
    columns: Sequence[str]
    kinds: str  # of the columns, `target` of the target
    mark: str = ""  # of a gap
    options: Mapping[str, str] = field(default_factory=dict)
    labels: Sequence[str] = ()  # of classes; empty: a number
    encoding: str = "utf-8"

    @property
    def has_header(self) -> bool:
        """Whether the first row has the names."""
        return not self.name.endswith(".data")

    def content(self, num: int = 60) -> bytes:
        """Return the file."""
        rng, separator = np.random.default_rng(0), "\t" if self.name.endswith(".tsv") else ","
        rows = zip(*(self._cells(column, rng, num) for column in self.columns), strict=True)
        quoted = ([f'"{cell}"' if separator in cell else cell for cell in row] for row in rows)
        header = [separator.join(self.names.split(","))] * self.has_header
        return "\n".join([*header, *map(separator.join, quoted), ""]).encode(self.encoding)

    def _cells(self, column: str, rng: np.random.Generator, num: int) -> list[str]:
        column, has_gaps = column.removesuffix("?"), column.endswith("?")
        if match := re.fullmatch(r"(\D*)([\d.,]+)~(\d+)(.*)", column):
            start, mean, deviation, end = match.groups()
            numbers = rng.normal(float(mean.replace(",", "")), float(deviation), num)
            digits = f"{',' * (',' in mean)}.{len(mean.partition('.')[2])}f"
            cells = [f"{start}{value:{digits}}{end}" for value in numbers]
        else:
            cells = [str(cell).replace("K", str(k)) for k, cell in enumerate(rng.choice(column.split("|"), num))]
        return [self.mark if has_gaps and rng.random() < 0.15 else cell for cell in cells]


FORMS = (
    Form(
        "titanic.csv",
        "PassengerId,Survived,Pclass,Name,Sex,Age,Ticket,Embarked",
        (
            "K",
            "0|1",
            "1|2|3",
            "Braund, Mr. Owen Harris number K",
            "male|female",
            "30.0~9?",
            "A/5 21171|113803|3734",
            "S|C?",
        ),
        "number target number ignored text number text text",
        options={"target": "Survived"},
        labels=("0", "1"),
    ),
    Form(
        "penguins.csv",
        "island,bill_length_mm,body_mass_g,sex",
        ("Biscoe|Dream", "44.0~5?", "4200~800?", "male|female?"),
        "text number number target",
        mark="NA",
        labels=("female", "male"),
    ),
    Form(
        "imports-85.data",
        "0,1,2,3,4",
        ("3|1|-1", "120~30?", "gas|diesel", "two|four", "13000~4000?"),
        "number number text text target",
        mark="?",
        options={"kind": "numbers"},
    ),
    Form(
        "AmesHousing.tsv",
        "PID,MS Zoning,Lot Frontage,Alley,SalePrice",
        ("526300000~9", "RL|RM", "70~9?", "Pave|NA", "180000~40000"),
        "number text number text target",
        mark="NA",
    ),
    Form(
        "dc_airbnb.csv",
        "accommodates,zipcode,host_response_rate,price",
        ("90~5?", "20001|20002|20002-3316", "90~5%?", "$1,200.00~300"),
        "number text number target",
        options={"columns": "{zipcode: text}"},
    ),
    Form(
        "SeoulBikeData.csv",
        "Date,Rented Bike Count,Temperature(°C),Seasons",
        ("01/12/2017|15/12/2017|31/01/2018", "700~200", "12.0~9", "Winter|Summer"),
        "date target number text",
        options={"target": "Rented Bike Count"},
        encoding="latin1",
    ),
    Form(
        "house-votes-84.data",
        "0,1,2,3,4",
        ("republican|democrat", "y|n?", "y|n?", "y|n?", "y|n?"),
        "target number number number number",
        mark="?",
        options={"target": "0"},
        labels=("democrat", "republican"),
    ),
)
