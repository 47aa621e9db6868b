"""Prints the peak memory, in MB, of one forward and backward pass beyond what was there before.

    python scripts/rhn/memory.py CASE STACK TOKENS

What counts is what the kernel counts: resident memory at its highest (VmHWM of /proc/self/status), which is reset just
before the pass, less what was resident then. The gradients of the parameters are part of it, the parameters are not. A
pass of a tiny network of the same kind comes before, so that the libraries have made their own buffers.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from gflownet.rhn.network import RHN
from scripts.rhn.cases import CASES, Case
from scripts.rhn.sides import STACKS


def main() -> None:
    """Print the figure."""
    name, stack, tokens = sys.argv[1:]
    torch.set_num_threads(1)
    case = CASES[name]
    tiny = Case(hidden=8, intermediate=8, depth=2, rank=2, tokens=3, rows=1)
    _differentiate(tiny.network(), tiny, stack, 3)
    network = case.network()
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak is what is resident now
    before = _status("VmRSS")
    _differentiate(network, case, stack, int(tokens))
    print(_status("VmHWM") - before)


def _differentiate(network: RHN, case: Case, stack: str, tokens: int) -> None:
    STACKS[stack](network.layers, case.embedded(tokens), None)[0].square().sum().backward()


def _status(field: str) -> float:
    """Return a figure of /proc/self/status in MB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":")) / 1024


if __name__ == "__main__":
    main()
