"""Two GPUs that run on the CPU: with a cap of memory per slot, a log of the processes that take them, and losses."""

import os
import threading
import time
from pathlib import Path
from typing import Any, cast

import torch

from gflownet.evaluation.executors.devices import Devices, Slot
from gflownet.evaluation.task import GFNTask, Score
from tests.evaluation.candidates import StubCandidate, config_with

MEMORY = 8_000_000_000
# Of this process: the slot that it owns.
slot = Slot()


class FakeDevices(Devices):
    """Devices cuda:0 and cuda:1 of 8 GB each."""

    def __init__(self, folder: Path | None = None, *, place: str = "cpu") -> None:
        """Take the folder of the log and the losses, if any, and the device of torch that stands for all."""
        self.folder, self.place = folder, place

    def memories(self) -> tuple[int, ...]:
        return (MEMORY, MEMORY)

    def cause(self) -> str:
        return ""

    def give_back(self) -> None:
        if self.folder is not None:
            (self.folder / f"given back by {os.getpid()}").touch()

    def take(self, slot: Slot) -> torch.device:
        globals()["slot"] = slot
        if self.folder is not None:
            if (self.folder / f"{slot.device}.lost").exists():
                raise RuntimeError("CUDA error: device lost")
            with (self.folder / "taken").open("a") as file:
                file.write(f"{slot.device} {os.getpid()}\n")
        return torch.device(self.place)

    def taken(self) -> list[tuple[str, int]]:
        """Return device and process of each start of a worker."""
        assert self.folder is not None
        path = self.folder / "taken"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(device, int(pid)) for device, pid in map(str.split, lines)]


class DeviceTask(GFNTask):
    """Candidates that use the memory of a fake device, or lose it."""

    input_sizes = output_sizes = (1,)

    def __init__(self, folder: Path) -> None:
        super().__init__(cast(Any, config_with()))
        self.folder = folder

    def to_device(self, device: torch.device) -> None:
        super().to_device(device)
        occupied = self.folder / "occupied"  # by a process that has ended
        if occupied.exists():
            occupied.unlink()
            raise torch.OutOfMemoryError("CUDA out of memory")

    def evaluate(self, graph: StubCandidate, *, seed: int) -> Score:
        with (self.folder / "evaluated").open("a") as file:
            file.write(f"{graph.key}\n")
        if graph.key == "too large" and slot.is_accelerator:
            raise torch.OutOfMemoryError(f"CUDA out of memory: expected at most {slot.share * MEMORY:.0f} bytes")
        if graph.key == "breaks the context":
            raise RuntimeError("CUDA error: device-side assert triggered")
        if graph.key == "fills the host":
            memory = torch.ones(1_500_000_000, dtype=torch.uint8)
            threading.Event().wait(60 * len(memory[:1]))  # until the owner ends this process
        mark = self.folder / f"{slot.device}.lost"
        if slot.is_accelerator and (graph.key == "lose all" or (graph.key == "lose one" and not self.has_lost)):
            mark.touch()
        if mark.exists():
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
        if graph.key.startswith("wait"):
            while not (self.folder / graph.key).exists():
                time.sleep(0.01)
        moved = float(self.device.type != "cpu")
        return Score(0.5, metrics={"on_device": float(slot.is_accelerator), "moved": moved})

    @property
    def has_lost(self) -> bool:
        """Whether a device is lost."""
        return any(self.folder.glob("*.lost"))
