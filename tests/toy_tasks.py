"""Tasks with scores computed from the graph: a run takes a second."""

import os
import random
import signal
import threading
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from gflownet.evaluation.presentation import Reference
from gflownet.evaluation.task import GFNTask, Score
from gflownet.graphs.computation_graph import ComputationGraph, NodeType
from gflownet.workers.process import get_worker_info


def num_hidden(graph: ComputationGraph) -> int:
    return sum(node.node_type is NodeType.HIDDEN for node in graph.nodes.values())


class RewardsHiddenNodes(GFNTask):
    """Score (1 + hidden nodes) / 10."""

    is_cheap = True

    input_sizes = (4,)
    output_sizes = (2,)

    def evaluate(self, graph, *, seed):
        return Score((1 + num_hidden(graph)) / 10, num_parameters=len(graph.edges))

    def test(self, graph, *, seed) -> float | None:
        return num_hidden(graph) / 10


class Trains(RewardsHiddenNodes):
    """The same scores as of trainings: they depend on the seed, and there is a standard method."""

    is_cheap = False

    def evaluate(self, graph, *, seed):
        return Score((1 + num_hidden(graph)) / 10 + seed % 1000 / 100_000, num_parameters=len(graph.edges))

    def reference(self, *, seeds):
        return Reference("majority class", [0.05] * len(seeds), [0.05] * len(seeds), 1)


class RewardsNodesOrEdges(RewardsHiddenNodes):
    """Two objectives that cannot both be had: many hidden nodes, few edges."""

    objectives = ("nodes", "edges")

    def evaluate(self, graph, *, seed):
        nodes, edges = num_hidden(graph), len(graph.edges)
        return Score(0.5, num_parameters=edges, metrics={"nodes": float(nodes), "edges": float(edges)})

    def utility(self, objective, value):
        return value / 4 if objective == "nodes" else 1 / value


class SometimesFails(RewardsHiddenNodes):
    """Graphs that begin with a relu crash, graphs that begin with a tanh have no score."""

    def evaluate(self, graph, *, seed):
        first = next(node for node in graph.nodes.values() if node.node_type is NodeType.HIDDEN)
        if first.activation_function == "relu":
            raise RuntimeError("no relu here")
        if first.activation_function == "tanh":
            return Score(float("nan"))
        return super().evaluate(graph, seed=seed)


class AlwaysFails(RewardsHiddenNodes):
    """No graph has a score."""

    def evaluate(self, graph, *, seed):
        raise RuntimeError("nothing works")


class FailsWithEscapes(RewardsHiddenNodes):
    """Half of the graphs fail with an error that would change a terminal's title and colours."""

    def evaluate(self, graph, *, seed):
        if seed % 2:
            raise RuntimeError("\x1b]0;owned\x07 \u202e <script>")
        return super().evaluate(graph, seed=seed)

    def test(self, graph, *, seed):
        raise RuntimeError("\x1b[31m")


class ScoresTheSeed(RewardsHiddenNodes):
    """The score of a graph is a function of its seed alone, in validation as in test."""

    def evaluate(self, graph, *, seed):
        return Score(self.test(graph, seed=seed))

    def test(self, graph, *, seed):
        return 0.1 + seed % 1_009 / 10_000


class DrawsFromEveryGenerator(RewardsHiddenNodes):
    """Rewards wobble by numbers out of torch's, numpy's and Python's global generators."""

    def log_reward(self, scores, conditioning):
        wobble = float(torch.rand(())) + np.random.rand() + random.random()
        return super().log_reward(scores, conditioning) + wobble


class Interrupts(RewardsHiddenNodes):
    """Sends the process a Ctrl-C during its twentieth evaluation."""

    num_calls, signal = 0, signal.SIGINT
    test = GFNTask.test  # no further evaluations for the report

    def evaluate(self, graph, *, seed):
        self.num_calls += 1
        if self.num_calls == 20:
            os.kill(os.getpid(), self.signal)
        return super().evaluate(graph, seed=seed)


class Terminates(Interrupts):
    """Sends a SIGTERM instead."""

    signal = signal.SIGTERM


class DiesOnce(RewardsHiddenNodes):
    """Kills the process during the seventh evaluation of a run, once."""

    num_calls = 0

    def evaluate(self, graph, *, seed):
        self.num_calls += 1
        note = Path(cast(Any, self.config).log_dir, "died")
        if self.num_calls == 7 and not note.exists():
            note.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().evaluate(graph, seed=seed)


class Hangs(RewardsHiddenNodes):
    """Never finishes a sampling in a worker."""

    def sample_conditioning(self, num, *, generator):
        if get_worker_info() is not None:
            threading.Event().wait()
        return super().sample_conditioning(num, generator=generator)


class Dies(RewardsHiddenNodes):
    """Kills a worker at every sampling."""

    def sample_conditioning(self, num, *, generator):
        if get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().sample_conditioning(num, generator=generator)


class CannotBePickled(RewardsHiddenNodes):
    """Holds a function without a name."""

    def __init__(self, config):
        super().__init__(config)
        self.scale = lambda score: score


class HasNoReward(RewardsHiddenNodes):
    """Turns scores into something that is no number."""

    def log_reward(self, scores, conditioning):
        return scores * torch.nan


class BreaksItsReward(RewardsHiddenNodes):
    """Raises where no evaluator looks after it."""

    def log_reward(self, scores, conditioning):
        raise RuntimeError("no reward today")
