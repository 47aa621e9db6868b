"""Measure how much code a short default run enters: depth of the call stack, and number of files.

Usage: python -m tests.run_profile [KEY=VALUE ...]
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

# Frames of their own before Python 3.12.
COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>")
DEFAULTS = ("task=digits", "num_training_steps=3", "wandb.mode=disabled")


@dataclass
class Profile:
    """Functions of gflownet and tasks on the main thread's stack, and their files; code run by imports is left out."""

    deepest: list[str] = field(default_factory=list)  # functions of the deepest stack, outermost first
    files: set[str] = field(default_factory=set)
    stack: list[str] = field(default_factory=list)
    num_imports: int = 0  # nested imports in progress

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Record a call or a return (a profile function, see `sys.setprofile`)."""
        code = frame.f_code
        if event not in ("call", "return"):
            return
        if code.co_name == "<module>":
            self.num_imports += 1 if event == "call" else -1
        elif self.num_imports or not is_own(frame) or code.co_name in COMPREHENSIONS:
            return
        elif event == "return":
            self.stack.pop()
        else:
            self.stack.append(f"{frame.f_globals['__name__']}.{code.co_qualname}")
            self.files.add(code.co_filename)
            if len(self.stack) > len(self.deepest):
                self.deepest = list(self.stack)


def is_own(frame: FrameType) -> bool:
    """Return whether a frame runs code of gflownet or its tasks, generated code excluded."""
    name = frame.f_globals.get("__name__", "")
    return name.partition(".")[0] == "gflownet" and frame.f_code.co_filename.endswith(".py")


def profile_run(options: Sequence[str]) -> Profile:
    """Run gflownet.train in this process with a profile function."""
    from gflownet.train import main

    profile = Profile()
    with tempfile.TemporaryDirectory() as folder:
        sys.setprofile(profile)  # of this thread
        try:
            status = main([*DEFAULTS, f"log_dir={folder}/run", *options])
        finally:
            sys.setprofile(None)
    assert status == 0, status
    return profile


def main() -> None:
    """Print depth, number of files and the deepest stack."""
    profile = profile_run(sys.argv[1:])
    print(f"deepest stack: {len(profile.deepest)} frames of gflownet; files entered: {len(profile.files)}")
    for depth, name in enumerate(profile.deepest, start=1):
        print(f"{depth:3} {name}")


if __name__ == "__main__":
    main()
