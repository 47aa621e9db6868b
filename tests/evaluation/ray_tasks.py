"""Tasks for runs on Ray; they note their processes in a folder named by an environment variable."""

import os
import time
from pathlib import Path

from tests.toy_tasks import RewardsHiddenNodes

FOLDER_VARIABLE = "GFLOWNET_TEST_FOLDER"


class NotesItsProcess(RewardsHiddenNodes):
    def __init__(self, config) -> None:
        super().__init__(config)
        self.folder = os.environ[FOLDER_VARIABLE]

    def evaluate(self, graph, *, seed):
        Path(self.folder, f"{os.getpid()} {os.environ.get('RAY_RAYLET_PID', 'none')}").touch()
        time.sleep(0.5)
        return super().evaluate(graph, seed=seed)


class NotesItsDevices(NotesItsProcess):
    """Notes each finished graph with its GPUs; waits to be killed on the node in the file `hold`."""

    def evaluate(self, graph, *, seed):
        hold, node = Path(self.folder, "hold"), os.environ["RAY_RAYLET_PID"]
        key = f"{node} {os.environ['CUDA_VISIBLE_DEVICES']} {graph.canonical_hash()}"
        if hold.exists() and hold.read_text() == node:
            Path(self.folder, f"waiting {key}").touch()
            time.sleep(1_000)
        time.sleep(0.3)
        Path(self.folder, f"finished {key} {os.getpid()} {time.monotonic_ns()}").touch()
        return RewardsHiddenNodes.evaluate(self, graph, seed=seed)


class WaitsOnce(NotesItsProcess):
    """Waits to be killed in the first evaluation of all."""

    def evaluate(self, graph, *, seed):
        is_first = not os.listdir(self.folder)
        score = super().evaluate(graph, seed=seed)
        if is_first:
            time.sleep(1_000)
        return score
