"""Devices of this machine, and slots: the shares of them that processes own. `machine` has no torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cache

import torch

from gflownet.errors import UserError
from gflownet.evaluation.config import EvaluationConfig, device_names
from gflownet.evaluation.executors.machine import cause_of_no_cuda_device, num_cores, num_cuda_devices
from gflownet.evaluation.task import GFNTask

# Assumed memory of a GPU per process: libraries and kernels, outside the share that torch limits, and a candidate.
_CONTEXT_BYTES, _CANDIDATE_BYTES = 500_000_000, 1_500_000_000
# Prints the memory of each GPU. A process of its own: the main process has no context of a GPU.
_SURVEY = """
import json, torch
devices = range(torch.cuda.device_count())
print(json.dumps([torch.cuda.get_device_properties(each).total_memory for each in devices]))
"""
_SURVEY_LIMIT_S = 120
# Texts of errors of a GPU that does not come back.
_LOST_TEXTS = ("ECC error", "device lost", "GPU is lost", "no CUDA-capable device", "busy or unavailable")
# Torch 2.13 hangs or crashes there (pytorch issue 178037).
_FORKED = "Metal does not work in forked processes, as those of candidates"


@dataclass(frozen=True)
class Slot:
    """A place for one worker process: a share of the memory of a device."""

    device: str = "cpu"  # as torch counts: cuda:0 is the first visible one
    share: float = 1.0

    @property
    def is_accelerator(self) -> bool:
        """Whether candidates need to be moved there."""
        return self.device != "cpu"


CORE = Slot()


class Devices:
    """The GPUs that torch sees through CUDA. Pickled for the workers; tests replace it."""

    def memories(self) -> tuple[int, ...]:
        """Return the memory of each GPU in bytes, without a context in this process.

        CUDA_VISIBLE_DEVICES is torch's to read: numbers, UUIDs or names of MIG instances.
        """
        return () if self.cause() else _cuda_memories(os.environ.get("CUDA_VISIBLE_DEVICES"))

    def cause(self) -> str:
        """Return the reason for no GPU; empty where only a context shows it."""
        return "" if num_cuda_devices() != 0 else cause_of_no_cuda_device()

    def take(self, slot: Slot) -> torch.device:
        """Create the context of a slot's device in this process, limited to the slot's share, and return the device.

        Raises:
            RuntimeError: the device does not answer.
        """
        device = torch.device(slot.device)
        torch.cuda.set_device(device)
        torch.cuda.set_per_process_memory_fraction(slot.share, device)
        torch.ones(1, device=device).add_(1).cpu()
        return device

    def give_back(self) -> None:
        """Give the memory that torch keeps for later tensors to other processes: Ray's idle workers stay."""
        torch.cuda.empty_cache()

    def is_lost(self, error: str | None) -> bool:
        """Return whether the text of an error means that its device does not come back."""
        return error is not None and "CUDA error" in error and any(text in error for text in _LOST_TEXTS)


DEVICES = Devices()


@cache
def _cuda_memories(visible: str | None) -> tuple[int, ...]:
    """Return the memory of each GPU in bytes."""
    try:
        process = subprocess.run(
            [sys.executable, "-c", _SURVEY], capture_output=True, text=True, timeout=_SURVEY_LIMIT_S, check=True
        )
        return tuple(json.loads(process.stdout.splitlines()[-1]))
    except (subprocess.SubprocessError, ValueError, IndexError):
        return ()


def slots_of(config: EvaluationConfig, devices: Devices, *, task: object = None) -> tuple[Slot, ...]:
    """Return the slots of a pool: those of GPUs by turns, then those of the cores.

    With device=auto, a task that overrides `to_device` has the GPUs, if there are any; others the cores.

    Raises:
        UserError: a device is not there.
    """
    names = device_names(config.device)
    trains_anywhere = isinstance(task, GFNTask) and type(task).to_device is not GFNTask.to_device
    if names == ("auto",) and trains_anywhere and devices.memories():
        names = ("cuda",)
    gpus = [each for name in names if name not in ("auto", "cpu") for each in _numbered(name, devices, config.device)]
    num, most = config.slots_per_device, num_cores() // max(1, len(gpus))
    of_each = {name: num or max(1, min(size // (_CONTEXT_BYTES + _CANDIDATE_BYTES), most)) for name, size in gpus}
    turns = range(max(of_each.values(), default=0))
    places = [(name, size) for turn in turns for name, size in gpus if turn < of_each[name]][: config.capacity or None]
    counts = Counter(name for name, _ in places)
    slots = [Slot(name, max(0.01, 1 / (num or counts[name]) - _CONTEXT_BYTES / size)) for name, size in places]
    if len(slots) == 0 or "cpu" in names:
        slots += [CORE] * max(1, (config.capacity or num_cores()) - len(slots))
    return tuple(slots)


def _numbered(name: str, devices: Devices, option: str) -> list[tuple[str, int]]:
    """Return a name of evaluation.device as devices with a number, each with its memory."""
    kind, _, index = name.partition(":")
    memories = () if kind == "mps" else devices.memories()
    if not memories:
        reason = _FORKED if kind == "mps" else devices.cause() or "no device answers"
        raise UserError(f"evaluation.device={option}: expected a device {name}, got none: {reason}")
    if index and int(index) >= len(memories):
        raise UserError(f"evaluation.device={option}: expected cuda:0 to cuda:{len(memories) - 1}, got {name}")
    return [(f"{kind}:{each}", memories[each]) for each in ([int(index)] if index else range(len(memories)))]
