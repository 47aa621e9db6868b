"""Lines after a training: its results, and the commands that come next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from gflownet.command_line import program
from gflownet.console import duration
from gflownet.language.config import LanguageConfig

# A run that is continued takes this many times its steps or seconds in all.
_LONGER = 2


def closing_lines(figures: Mapping[str, float], folder: Path, config: LanguageConfig) -> Iterator[str]:
    """Yield the results, and three commands: generate, serve, train longer.

    Args:
        figures: of the run.
        folder: of the run.
        config: of the run.
    """
    steps = f"{figures['steps']:,.0f} steps in {duration(figures['seconds'])}"
    speed = f", {figures['tokens_per_second']:,.0f} tokens/s" if figures["tokens_per_second"] else ""
    yield f"trained {figures['num_parameters']:,.0f} parameters, {steps}{speed}"
    yield (
        f"bits per byte: test {figures['test']:.3f}, validation {figures['validation']:.3f} "
        f"(weights of step {figures['kept_step']:,.0f})"
    )
    model = shlex.quote(str(folder / "model"))
    length = f"steps={config.steps * _LONGER}" if config.seconds is None else f"seconds={config.seconds * _LONGER:g}"
    yield "next:"
    yield f"  {program('generate').replace('.language', '.generate')} {model}"
    yield f"  python -m gflownet.rhn.server {model}"
    yield f"  {_resume(folder)} {length}"


def resume_line(folder: Path, step: int) -> str:
    """Return the line after an interrupted training."""
    return f"stopped after step {step:,}; to continue: {_resume(folder)}"


def _resume(folder: Path) -> str:
    return f"{program('language')} log_dir={shlex.quote(str(folder))} resume=true"
