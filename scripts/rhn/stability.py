"""Trains a small RHN on the bytes of the Python standard library and prints bits per byte and gradient norms.

    python scripts/rhn/stability.py [STEPS]

With the norm of DoRA, without a norm, and with adapters held at nothing; no gradient is clipped. Files are split into
those that are trained on and those that are not; tests of the library are left out.
"""

from __future__ import annotations

import math
import random
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import Tensor
from torch.nn import functional as F

from gflownet.rhn.config import CONFIGS, Norm
from gflownet.rhn.network import RHN

ROWS, TOKENS, RATE, WARM_UP = 8, 64, 3e-3, 20
HELD_OUT_FILES, HELD_OUT_BYTES, BYTES = 40, 2**16, 2**21
VARIANTS: dict[str, tuple[Norm, bool]] = {
    "dora": ("dora", True),
    "none": ("none", True),
    "adapters held at nothing": ("dora", False),
}


def main() -> None:
    """Train each variant."""
    num_steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    torch.set_num_threads(1)
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [file for file in sorted(root.rglob("*.py")) if not {"site-packages", "test"} & set(file.parts)]
    random.Random(0).shuffle(files)
    held_out = _read(files[:HELD_OUT_FILES], HELD_OUT_BYTES)[: 64 * 257].view(64, 257)
    text = _read(files[HELD_OUT_FILES:], BYTES)
    for name, (norm, is_adapted) in VARIANTS.items():
        torch.manual_seed(0)
        network = RHN(replace(CONFIGS["small"], norm=norm))
        for block in network.layers:
            block.bhn.requires_grad_(is_adapted)
        norms = train(network, text, num_steps)
        with torch.no_grad():
            bits = _loss(network, held_out).item() / math.log(2)
        late = max(norms[50:], default=math.nan)
        print(f"{name}: {bits:.3f} bits per byte, gradient norm at most {max(norms):.2f}, after 50 steps {late:.2f}")


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
    main()
