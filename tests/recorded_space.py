"""The tables of recorded trainings, see tests/data/README.md."""

from pathlib import Path

RECORDED_DIGITS = Path(__file__).parent / "data" / "recorded_digits.csv.gz"
RECORDED_MNIST1D = RECORDED_DIGITS.with_name("recorded_mnist1d.csv.gz")
