"""Make the pictures of README and docs: report, console, comparison and the first page of the site.

    python scripts/screenshots.py [--run FOLDER] [--compare FOLDER ...] [--console FILE] [--only NAME ...]

Without folders it makes three runs of the config digits_small; FILE is what a run has printed. Pictures are written to
docs/images: report-wide.png, report-wide-dark.png, report-phone.png, report-phone-dark.png, comparison.png, console.svg
and, where `make docs` has built the site, docs-site.png. Needs chromium and chromedriver.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from PIL import Image
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from gflownet.report.__main__ import main as write_report
from tests.browser.chromium import Browser, running_browser

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
SITE = ROOT / "docs" / "_build" / "html" / "index.html"
MAX_BYTES = 250_000
WIDE, PHONE = 1280, 390
# Heights in pixels: what a reader sees before scrolling far.
_HEIGHTS = {WIDE: 1_500, PHONE: 1_500}
_COLUMNS = 118
_NAMES = ("report", "comparison", "console", "site")
_CONSOLE_RUN = ("--config", "digits_small", "num_training_steps=20", "wandb.mode=disabled")


def main() -> int:
    """Write the pictures, and print their paths and sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="run of the report")
    parser.add_argument("--compare", type=Path, nargs="+", metavar="FOLDER", help="runs of the comparison")
    parser.add_argument("--console", type=Path, metavar="FILE", help="output of the run of the report")
    parser.add_argument("--site", type=Path, default=SITE, metavar="FILE", help="first page of the built site")
    parser.add_argument("--only", nargs="+", choices=_NAMES, default=_NAMES, metavar="NAME", help=", ".join(_NAMES))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, running_browser() as browser:
        folder = Path(name)
        if "console" in options.only:
            output = (
                options.console.read_text(encoding="utf-8") if options.console else console_output(folder / "console")
            )
            console_picture(IMAGES / "console.svg", output, run=options.run if options.console else folder / "console")
        if "report" in options.only:
            report_pictures(browser, options.run or small_runs(folder)[0], folder)
        if "comparison" in options.only:
            comparison_picture(browser, options.compare or small_runs(folder), folder)
        if "site" in options.only and options.site.exists():
            picture(browser, options.site, IMAGES / "docs-site.png", height=900)
    return 0


def small_runs(folder: Path) -> list[Path]:
    """Return three runs: two seeds, and another objective; made once."""
    runs = {"seed_0": (), "seed_1": ("seed=1",), "subtb": ("algo.method=subtb",)}
    for name, options in runs.items():
        if not (folder / name).exists():
            train([*_CONSOLE_RUN, f"log_dir={folder / name}", *options])
    return [folder / name for name in runs]


def train(options: Sequence[str]) -> str:
    """Run gflownet.train; return what it prints."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": str(_COLUMNS)}
    command = [sys.executable, "-m", "gflownet.train", *options]
    return subprocess.run(
        command, check=True, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    ).stdout


def report_pictures(browser: Browser, run: Path, folder: Path) -> None:
    """Write the pictures of the report: two widths, light and dark."""
    page = folder / "report.html"
    shutil.copytree(run, folder / "logs" / run.name, dirs_exist_ok=True)
    with contextlib.chdir(folder):  # the page shows the folder as it is named on the command line
        assert write_report([f"logs/{run.name}", "--output", str(page)]) == 0
    for width, size in ((WIDE, "wide"), (PHONE, "phone")):
        for is_dark, theme in ((False, ""), (True, "-dark")):
            path = IMAGES / f"report-{size}{theme}.png"
            picture(browser, page, path, width=width, height=_HEIGHTS[width], is_dark=is_dark)


def comparison_picture(browser: Browser, runs: Sequence[Path], folder: Path) -> None:
    """Write the picture of a comparison."""
    page = folder / "comparison.html"
    assert write_report([*map(str, runs), "--output", str(page)]) == 0
    picture(browser, page, IMAGES / "comparison.png", height=_HEIGHTS[WIDE])


def picture(browser: Browser, page: Path, path: Path, *, width: int = WIDE, height: int, is_dark: bool = False) -> None:
    """Write a PNG of the top of a page with at most 256 colours."""
    browser.open(page, width=width, height=height, is_dark=is_dark)
    raw = path.with_suffix(".raw.png")
    browser.screenshot(raw, is_whole_page=False)
    with Image.open(io.BytesIO(raw.read_bytes())) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    raw.unlink()
    check(path)


def console_output(folder: Path) -> str:
    """Return what a run prints."""
    return train([*_CONSOLE_RUN, f"log_dir={folder}"])


def console_picture(path: Path, output: str, *, run: Path) -> None:
    """Write the output of a run as SVG, without fonts from the web; its folder is shown as logs/run."""
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(output.replace(str(run), "logs/run").rstrip()), soft_wrap=False)
    form = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    path.write_text(console.export_svg(title="gflownet train", code_format=form), encoding="utf-8")
    check(path)


def check(path: Path) -> None:
    """Print path and size of a picture, and assert that it is small."""
    size = path.stat().st_size
    print(f"{path.relative_to(ROOT)}: {size / 1_000:.0f} kB", flush=True)
    assert size < MAX_BYTES, size


if __name__ == "__main__":
    sys.exit(main())
