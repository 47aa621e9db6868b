"""Train a small RHN on the bytes of the Python standard library: bits per byte and unclipped gradient norms.

    python scripts/rhn_stability.py [--quick] [--json FILE]

With the norm of DoRA, without a norm, and with adapters held at zero. Files are split into training and held-out ones;
the library's own tests are left out.
"""

from __future__ import annotations

import math
import random
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor
from torch.nn import functional as F

from gflownet.rhn.config import CONFIGS, Norm
from gflownet.rhn.network import RHN
from scripts.bench import Row, figure, finish, parse_arguments

NUM_STEPS, NUM_STEPS_QUICK = 300, 20
ROWS, TOKENS, RATE, WARM_UP = 8, 64, 3e-3, 20
HELD_OUT_FILES, HELD_OUT_BYTES, BYTES = 40, 2**16, 2**21
VARIANTS: dict[str, tuple[Norm, bool]] = {
    "dora": ("dora", True),
    "none": ("none", True),
    "adapters held at zero": ("dora", False),
}


def main() -> int:
    """Train each variant and return the exit status."""
    arguments = parse_arguments(__doc__)
    num_steps = NUM_STEPS_QUICK if arguments.quick else NUM_STEPS
    torch.set_num_threads(1)
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [file for file in sorted(root.rglob("*.py")) if not {"site-packages", "test"} & set(file.parts)]
    random.Random(0).shuffle(files)
    held_out = _read(files[:HELD_OUT_FILES], HELD_OUT_BYTES)[: 64 * 257].view(64, 257)
    text = _read(files[HELD_OUT_FILES:], BYTES)
    rows: list[Row] = []
    for name, (norm, is_adapted) in VARIANTS.items():
        torch.manual_seed(0)
        network = RHN(replace(CONFIGS["small"], norm=norm))
        for block in network.layers:
            block.bhn.requires_grad_(is_adapted)
        norms = train(network, text, num_steps)
        with torch.no_grad():
            bits = _loss(network, held_out).item() / math.log(2)
        early = num_steps // 6
        rows += [
            figure(f"{name}: held-out text after {num_steps} steps", bits, "bits per byte"),
            figure(f"{name}: largest gradient norm", max(norms)),
            figure(f"{name}: largest gradient norm after {early} steps", max(norms[early:])),
        ]
    return finish(rows, json_path=arguments.json)


def train(network: RHN, text: Tensor, num_steps: int) -> list[float]:
    """Return the gradient norm of every step."""
    generator = torch.Generator().manual_seed(1)
    learned = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimiser = torch.optim.Adam(learned, lr=RATE)
    norms = []
    for step in range(num_steps):
        optimiser.param_groups[0]["lr"] = RATE * min(1.0, (step + 1) / WARM_UP)
        starts = torch.randint(len(text) - TOKENS - 1, (ROWS,), generator=generator)
        optimiser.zero_grad()
        _loss(network, torch.stack([text[start : start + TOKENS + 1] for start in starts.tolist()])).backward()
        norms.append(torch.nn.utils.get_total_norm([p.grad for p in learned if p.grad is not None]).item())
        optimiser.step()
    return norms


def _loss(network: RHN, rows: Tensor) -> Tensor:
    """Return nats per byte of rows [R, T + 1]."""
    return F.cross_entropy(network(rows[:, :-1])[0].flatten(0, 1), rows[:, 1:].flatten())


def _read(files: list[Path], limit: int) -> Tensor:
    """Return the first bytes of files, one after the other."""
    content = b""
    for file in files:
        content += file.read_bytes()
        if len(content) > limit:
            break
    return torch.tensor(list(content[:limit]))


if __name__ == "__main__":
    sys.exit(main())
