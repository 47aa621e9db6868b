"""The networks and sides of bench_rhn.py; run as a script, this file measures the peak memory of one training pass.

    python scripts/rhn_sides.py CASE STACK TOKENS

prints in MB how far one forward and backward pass raises the resident memory (VmHWM of /proc/self/status, reset before
the pass, minus VmRSS). It includes the gradients of the parameters but not the parameters. A pass of a tiny network of
the same kind runs first, so that the buffers of the libraries are not counted.

Letters: R rows, T tokens, H hidden size.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gflownet.rhn.config import RHNConfig
from gflownet.rhn.layers import Adapter, RHNBlock
from gflownet.rhn.network import RHN, Stack, layer_by_layer
from gflownet.rhn.wavefront import along_wavefront, in_groups


@dataclass(frozen=True)
class Case:
    """Sizes of a network and of its input."""

    hidden: int
    intermediate: int
    depth: int
    rank: int
    tokens: int
    rows: int

    def network(self) -> RHN:
        """Return a network with active adapters."""
        torch.manual_seed(0)
        sizes = RHNConfig(
            hidden_size=self.hidden, intermediate_size=self.intermediate, depth=self.depth, rank=self.rank
        )
        network = RHN(sizes)
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                if name.endswith((".b", ".delta", ".beta")):
                    parameter.normal_(std=0.05)
        return network

    def embedded(self, tokens: int | None = None) -> Tensor:
        """Return a random input of the first layer [R, T, H]; T is `self.tokens` by default."""
        return torch.randn(self.rows, tokens or self.tokens, self.hidden, generator=torch.Generator().manual_seed(1))

    @property
    def multiply_adds(self) -> int:
        """Return the multiply-adds of a forward pass by the wavefront's formulas."""
        hidden, intermediate, rank = self.hidden, self.intermediate, self.rank
        features = RHNConfig.bottleneck + 1
        size_in, size_out = 2 * hidden + intermediate, 2 * intermediate + hidden
        cell = (
            3 * hidden * intermediate  # W x
            + hidden * (features - 1)
            + features * (rank * size_in + 2 * rank * size_out + size_out)  # A, B, C and magnitudes
            + rank * (rank + 1) * size_in  # A A^T and A x
            + rank * (rank + 2) * size_out  # G B, B (2 C + G B) and B A x
        )
        return cell * self.depth * self.tokens * self.rows


CASES = {
    "S": Case(hidden=64, intermediate=128, depth=4, rank=4, tokens=64, rows=8),
    "M": Case(hidden=128, intermediate=256, depth=8, rank=8, tokens=128, rows=4),
    "L": Case(hidden=256, intermediate=512, depth=12, rank=8, tokens=128, rows=1),
    "D12": Case(hidden=64, intermediate=128, depth=12, rank=4, tokens=128, rows=1),
    "D24": Case(hidden=32, intermediate=64, depth=24, rank=4, tokens=64, rows=1),
}


def checkpointed(blocks: Sequence[RHNBlock], x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """Run layer by layer and recompute each layer in the backward pass (torch.utils.checkpoint)."""
    last_states = []
    for n, block in enumerate(blocks):
        x, last = cast(Any, checkpoint(block, x, None if state is None else state[n], use_reentrant=False))
        last_states.append(last)
    return x, torch.stack(last_states)


def materialised(blocks: Sequence[RHNBlock], x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """Build W + B A [R, out, in] for every token, under torch.autograd."""
    last_states = []
    for n, block in enumerate(blocks):
        previous = None if state is None else state[n]
        outputs = []
        for token in x.unbind(1):
            previous = _materialised_step(block, token, previous)
            outputs.append(previous)
        x = torch.stack(outputs, 1)
        last_states.append(outputs[-1])
    return x, torch.stack(last_states)


def _materialised_step(block: RHNBlock, x: Tensor, previous: Tensor | None) -> Tensor:
    normed, plain = block.norm(x), block.ffn.plain
    if previous is None:
        return x + plain(normed)
    adapters = block.bhn(previous)
    gate = F.silu(_materialised_projection(normed, plain.gate_proj.weight, adapters.gate) + adapters.beta)
    up = _materialised_projection(normed, plain.up_proj.weight, adapters.up)
    return x + _materialised_projection(gate * up, plain.down_proj.weight, adapters.down)


def _materialised_projection(x: Tensor, weight: Tensor, adapter: Adapter) -> Tensor:
    """Return x [R, in] through m (W + B A) / ||W + B A||."""
    matrix = weight + adapter.b @ adapter.a
    magnitude = torch.linalg.vector_norm(weight, dim=-1) * (1 + adapter.delta)
    scale = magnitude / torch.linalg.vector_norm(matrix, dim=-1)
    return ((scale.unsqueeze(-1) * matrix) @ x.unsqueeze(-1)).squeeze(-1)


STACKS: dict[str, Stack] = {
    "wavefront": along_wavefront,
    "one layer at a time": partial(in_groups, layers=1),
    "naive": layer_by_layer,
    "checkpointed": checkpointed,
    "materialised": materialised,
}


def training_pass_memory(case: Case, stack: str, tokens: int) -> float:
    """Return the peak memory of one forward and backward pass in MB."""
    tiny = Case(hidden=8, intermediate=8, depth=2, rank=2, tokens=3, rows=1)
    _differentiate(tiny.network(), tiny, stack, 3)
    network = case.network()
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # resets VmHWM to VmRSS
    before = _status("VmRSS")
    _differentiate(network, case, stack, tokens)
    return _status("VmHWM") - before


def _differentiate(network: RHN, case: Case, stack: str, tokens: int) -> None:
    STACKS[stack](network.layers, case.embedded(tokens), None)[0].square().sum().backward()


def _status(field: str) -> float:
    """Return a field of /proc/self/status in MB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":")) / 1024


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(training_pass_memory(CASES[sys.argv[1]], sys.argv[2], int(sys.argv[3])))
