"""The table of recorded trainings on handwritten digits, see tests/data/README.md."""

from pathlib import Path

RECORDED_DIGITS = Path(__file__).parent / "data" / "recorded_digits.csv.gz"
