"""Tasks with a candidate that takes ten minutes, and with candidates of a known size."""

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from gflownet.evaluation.task import Cost, GFNTask
from tests.toy_tasks import RewardsHiddenNodes, num_hidden

TEN_MINUTES = 600.0
SLOW_CALL = 14  # number of the slow evaluation


class SlowOnce(RewardsHiddenNodes):
    """One evaluation of a run takes ten minutes.

    The file `signal` in the folder of the run holds a signal to send meanwhile and the process that gets it; the file
    `calls` gets the canonical hash of every evaluated graph.
    """

    num_calls = 0
    test: Any = GFNTask.test  # no evaluations for the report

    def evaluate(self, graph, *, seed):
        self.num_calls += 1
        folder = Path(cast(Any, self.config).log_dir)
        with (folder / "calls").open("a") as file:
            file.write(f"{graph.canonical_hash()}\n")
        if self.num_calls == SLOW_CALL and not (folder / "was_slow").exists():
            (folder / "was_slow").touch()
            if (folder / "signal").exists():
                number, process = map(int, (folder / "signal").read_text().split())
                threading.Timer(0.1, os.kill, (process, number)).start()
            time.sleep(TEN_MINUTES)
        return super().evaluate(graph, seed=seed)


class Unstoppable(RewardsHiddenNodes):
    """Catches every exception, so that no first signal ends an evaluation."""

    def evaluate(self, graph, *, seed):
        Path(cast(Any, self.config).log_dir, "runs").touch()
        while True:
            with suppress(BaseException):
                signal.pause()


class HasCost(RewardsHiddenNodes):
    """One parameter per hidden node."""

    def cost(self, graph):
        return Cost(num_parameters=num_hidden(graph), flops=0)
