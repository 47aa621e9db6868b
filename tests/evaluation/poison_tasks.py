"""Candidates that damage their process: it exits, crashes, hangs, runs out of memory, forks, prints, leaks."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import torch

from gflownet.evaluation.job import EvaluationStatus, Outcome
from gflownet.evaluation.task import GFNTask, Score
from tests.evaluation.candidates import StubCandidate, config_with

GIGABYTE = 2**30


class BrokenTextError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class UnknownBaseError(BaseException):
    """An exception that `except Exception` does not catch."""


def exit_process() -> None:
    print("last words")
    os._exit(3)


def segfault() -> None:
    ctypes.string_at(0)


def spin() -> None:
    """Never return to the interpreter: signal handlers written in Python do not run."""
    ctypes.CDLL(None).pause()


def compute_forever() -> None:
    """Multiply without end: a busy loop outside the interpreter for a minute, without its lock."""
    torch.linalg.matrix_power(torch.eye(700), 2**30 + 2**29)
    while True:
        torch.linalg.matrix_power(torch.eye(700), 2**30)


def allocate() -> None:
    torch.ones(30 * GIGABYTE, dtype=torch.uint8)


def fork(*, detached: int = 10, num: int = 20) -> None:
    """Leave processes behind, some of them in sessions of their own and without a parent."""
    for number in range(num):
        if os.fork() == 0:
            if number < detached:
                os.setsid()
                if os.fork():
                    os._exit(0)
            while True:
                signal.pause()


def fork_and_segfault() -> None:
    fork()
    segfault()


def start_program() -> None:
    subprocess.Popen(["sleep", "1000"], start_new_session=True)


def start_program_and_spin() -> None:
    start_program()
    spin()


def kill_owner() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    spin()


PRODUCTS: Any = torch.backends.cuda.matmul


def print_much() -> None:
    for _ in range(50):
        print("x" * 10**6)


def set_default_dtype() -> None:
    torch.set_default_dtype(torch.float64)
    PRODUCTS.fp32_precision = "tf32"  # unreadable by torch.get_float32_matmul_precision from here on


def change_everything() -> None:
    """Change all global state that is known to change results."""
    torch.set_default_dtype(torch.float64)
    PRODUCTS.fp32_precision = "tf32"
    cast(Any, torch.backends.cudnn).enabled = False
    torch.set_autocast_enabled("cuda", True)
    torch.set_num_threads(2)
    torch.set_grad_enabled(False)
    torch.set_default_device("cpu:0")
    torch._C._set_deterministic_algorithms(True)
    torch.set_flush_denormal(True)
    os.chdir("/")
    os.environ["POISON"] = "1"
    del os.environ["PATH"]
    os.umask(0o777)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 5)
    sys.path.clear()
    sys.setrecursionlimit(100)
    sys.stdout = sys.stderr = cast(Any, None)


def patch_class() -> None:
    """Give every score of this process another value."""
    setattr(Score, "__post_init__", lambda self: object.__setattr__(self, "value", 1.0))  # noqa: B010


def patch_function() -> None:
    """Give every outcome of this process an error."""
    import gflownet.evaluation.execution as execution

    setattr(execution, "outcome_of", lambda *_: Outcome(EvaluationStatus.FAILED, 0.0, error="patched"))  # noqa: B010


def use_threads() -> None:
    """Use the threads that a fork of a process with OpenMP would lack."""
    torch.set_num_threads(2)
    torch.matmul(torch.ones(700, 700), torch.ones(700, 700))


def leak_files() -> None:
    for _ in range(100):
        os.open(os.devnull, os.O_RDONLY)


def leak_thread() -> None:
    threading.Thread(target=threading.Event().wait, daemon=True).start()


def close_all_files() -> None:
    os.closerange(0, 1000)


def write_into_all_files() -> None:
    """Announce a message of 2 GB in every open connection."""
    for number in range(3, 64):
        with suppress(OSError):
            os.write(number, b"\x7f\xff\xff\xff")
    spin()


def raise_broken_text() -> None:
    raise BrokenTextError


def raise_huge_text() -> None:
    raise ValueError("x" * 50 * 10**6)


def raise_surrogate() -> None:
    raise ValueError("\ud800 no text")


def raise_base() -> None:
    raise UnknownBaseError("not an Exception")


POISONS = {
    function.__name__: function
    for function in (
        exit_process,
        segfault,
        spin,
        compute_forever,
        allocate,
        fork,
        fork_and_segfault,
        start_program,
        start_program_and_spin,
        kill_owner,
        sys.exit,
        print_much,
        set_default_dtype,
        change_everything,
        patch_class,
        patch_function,
        use_threads,
        leak_files,
        leak_thread,
        close_all_files,
        write_into_all_files,
        raise_broken_text,
        raise_huge_text,
        raise_surrogate,
        raise_base,
    )
}


class PoisonTask(GFNTask):
    """Calls the poison that a candidate is named after; the score of others depends on global state."""

    input_sizes = (1,)
    output_sizes = (1,)

    def __init__(self, log: Path) -> None:
        """`log`: file that receives the key of every evaluation that begins."""
        super().__init__(cast(Any, config_with()))
        self.log = log

    def evaluate(self, graph: StubCandidate, *, seed: int) -> Score:
        with self.log.open("a") as log:
            log.write(f"{graph.key}\n")
        if graph.key in POISONS:
            POISONS[graph.key]()
        if graph.key.startswith("sleep "):
            time.sleep(float(graph.key.split()[1]))
        return Score(0.5, metrics={"noise": float(torch.rand(())), **global_state()})


def global_state() -> dict[str, float]:
    return {
        "item_size": float(torch.zeros(()).element_size()),
        "has_low_precision": float(PRODUCTS.fp32_precision == "tf32"),
        "has_cudnn": float(torch.backends.cudnn.enabled),
        "has_autocast": float(torch.is_autocast_enabled("cuda")),
        "num_threads": float(torch.get_num_threads()),
        "requires_grad": float((torch.zeros(1, requires_grad=True) * 2).requires_grad),
        "has_default_device": float(torch.get_default_device() != torch.device("cpu")),
        "is_deterministic": float(torch.are_deterministic_algorithms_enabled()),
        "denormal": float(torch.tensor(1e-42).mul(1.0).item() > 0),
        "is_at_root": float(os.getcwd() == "/"),
        "poison": float(os.environ.get("POISON", 0)),
        "path": float("PATH" in os.environ),
        "mask": float(os.umask(0o022)),
        "handler": float(signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL),
        "has_path": float(bool(sys.path)),
        "recursion_limit": float(sys.getrecursionlimit()),
        "has_output": float(sys.stdout is not None),
    }
