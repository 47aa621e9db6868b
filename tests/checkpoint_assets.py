"""Checkpoints of every format; `python -m tests.checkpoint_assets` writes the current one."""

import lzma
import sys
import tempfile
from pathlib import Path

from gflownet.run.checkpoint import FORMAT_VERSION
from gflownet.train import main

ASSET_FOLDER = Path(__file__).parent / "checkpoints"
# The run whose first step is in the files of formats 3 and later; the others are of runs as small.
ASSET_RUN = (
    "task=hypergrid",
    "env.name=hypergrid",
    "env.hypergrid.num_dims=2",
    "env.hypergrid.side=3",
    "model.name=mlp",
    "model.num_emb=4",
    "model.num_heads=1",
    "model.num_layers=1",
    "algo.num_from_policy=2",
    "wandb.mode=disabled",
    "num_training_steps=1",
)


def asset(version: int) -> bytes:
    """Return the checkpoint of a format, as a run wrote it."""
    return lzma.decompress((ASSET_FOLDER / f"format_{version}.pt.xz").read_bytes())


def write_asset() -> int:
    """Run one step, and store its checkpoint as the file of the current format."""
    with tempfile.TemporaryDirectory() as folder:
        status = main([*ASSET_RUN, f"log_dir={folder}"])
        data = (Path(folder) / "checkpoints" / "step_00000001.pt").read_bytes()
    (ASSET_FOLDER / f"format_{FORMAT_VERSION}.pt.xz").write_bytes(lzma.compress(data, preset=9))
    return status


if __name__ == "__main__":
    sys.exit(write_asset())
