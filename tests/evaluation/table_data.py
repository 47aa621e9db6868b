"""Tables with gaps, texts and dates for tests."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Form:
    """A table in the form of a public file: its bytes, the options that it needs, and its columns."""

    name: str
    content: bytes
    kinds: Mapping[str, str]  # of the columns, without the target
    target: str
    options: Mapping[str, str] = field(default_factory=dict)
    labels: Sequence[str] = ()  # of classes; empty: a number


def forms(num: int = 60) -> list[Form]:
    """Return small tables in the form of seven public files."""
    rng = np.random.default_rng(0)

    def pick(*words: str) -> list[str]:
        return rng.choice(words, num).tolist()

    def numbers(mean: float, scale: float, digits: int) -> list[str]:
        return [f"{value:.{digits}f}" for value in rng.normal(mean, scale, num)]

    def gaps(cells: list[str], mark: str) -> list[str]:
        return [mark if rng.random() < 0.15 else cell for cell in cells]

    def text(*columns: list[str], header: str = "", separator: str = ",", encoding: str = "utf-8") -> bytes:
        rows = zip(*columns, strict=True)
        quoted = ([f'"{cell}"' if separator in cell else cell for cell in row] for row in rows)
        return "\n".join([*[header] * bool(header), *map(separator.join, quoted), ""]).encode(encoding)

    people = [f"Braund, Mr. Owen Harris number {k}" for k in range(num)]
    sex, island = gaps(pick("male", "female"), "NA"), pick("Biscoe", "Dream")
    days = [f"{1 + k % 28:02}/{1 + k % 12:02}/2017" for k in range(num)]
    parties, prices = pick("republican", "democrat"), [f"${value:,.2f}" for value in rng.lognormal(6.5, 1, num)]
    zips = [f"{20001 + k % 5}" for k in range(num)]
    zips[7] = "20002-3316"
    titanic = text(
        *([str(k + 1) for k in range(num)], pick("0", "1"), pick("1", "2", "3"), people, pick("male", "female")),
        *(gaps(numbers(30, 9, 1), ""), pick("A/5 21171", "113803", "373450"), gaps(pick("S", "C", "Q"), "")),
        header="PassengerId,Survived,Pclass,Name,Sex,Age,Ticket,Embarked",
    )
    number, words = "number", "text"
    return [
        Form(
            "titanic.csv",
            titanic,
            dict(
                zip(
                    ("PassengerId", "Pclass", "Name", "Sex", "Age", "Ticket", "Embarked"),
                    (number, number, "ignored", words, number, words, words),
                    strict=True,
                )
            ),
            "Survived",
            {"target": "Survived"},
            ("0", "1"),
        ),
        Form(
            "penguins.csv",
            text(
                island,
                gaps(numbers(44, 5, 1), "NA"),
                gaps(numbers(4200, 800, 0), "NA"),
                sex,
                header="island,bill_length_mm,body_mass_g,sex",
            ),
            {"island": words, "bill_length_mm": number, "body_mass_g": number},
            "sex",
            {},
            ("female", "male"),
        ),
        Form(
            "imports-85.data",
            text(
                pick("3", "1", "-1"),
                gaps(numbers(120, 30, 0), "?"),
                pick("gas", "diesel"),
                pick("two", "four"),
                gaps(numbers(13000, 4000, 0), "?"),
            ),
            {"0": number, "1": number, "2": words, "3": words},
            "4",
            {"kind": "numbers"},
        ),
        Form(
            "AmesHousing.tsv",
            text(
                numbers(526300000, 9, 0),
                pick("RL", "RM"),
                gaps(numbers(70, 9, 0), "NA"),
                pick("Pave", "NA"),
                numbers(180000, 40000, 0),
                header="PID\tMS Zoning\tLot Frontage\tAlley\tSalePrice",
                separator="\t",
            ),
            {"PID": number, "MS Zoning": words, "Lot Frontage": number, "Alley": words},
            "SalePrice",
        ),
        Form(
            "dc_airbnb.csv",
            text(
                gaps(numbers(90, 5, 0), ""),
                zips,
                [f"{value}%" for value in numbers(90, 5, 0)],
                prices,
                header="accommodates,zipcode,host_response_rate,price",
            ),
            {"accommodates": number, "zipcode": words, "host_response_rate": number},
            "price",
            {"columns": "{zipcode: text}"},
        ),
        Form(
            "SeoulBikeData.csv",
            text(
                days,
                numbers(700, 200, 0),
                numbers(12, 9, 1),
                pick("Winter", "Summer"),
                header="Date,Rented Bike Count,Temperature(°C),Seasons",
                encoding="latin1",
            ),
            {"Date": "date", "Temperature(°C)": number, "Seasons": words},
            "Rented Bike Count",
            {"target": "Rented Bike Count"},
        ),
        Form(
            "house-votes-84.data",
            text(parties, *(gaps(pick("y", "n"), "?") for _ in range(4))),
            {"1": number, "2": number, "3": number, "4": number},
            "0",
            {"target": "0"},
            ("democrat", "republican"),
        ),
    ]
