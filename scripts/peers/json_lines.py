"""Answer JSON lines; used by the files of this folder that run in a peer's environment."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from typing import Any


def serve(handle: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer each line of the input with one line, `{"error": ...}` after an exception."""
    answers, sys.stdout = sys.stdout, sys.stderr  # library output is not an answer
    logging.disable(logging.WARNING)
    for line in sys.stdin:
        try:
            result = handle(json.loads(line))
        except Exception as error:  # reported by the other process
            result = {"error": f"{type(error).__name__}: {(str(error) or repr(error)).splitlines()[0]}"}
        print(json.dumps(result), file=answers, flush=True)
