"""Tasks whose scores are read off the graph, so that a whole run takes a second."""

import os
import signal

from gflownet.evaluation.task import GFNTask, Score
from gflownet.graphs.computation_graph import ComputationGraph, NodeType


def num_hidden(graph: ComputationGraph) -> int:
    return sum(node.node_type is NodeType.HIDDEN for node in graph.nodes.values())


class RewardsHiddenNodes(GFNTask):
    """Score (1 + hidden nodes) / 10."""

    input_sizes = (4,)
    output_sizes = (2,)

    def evaluate(self, graph, *, seed):
        return Score((1 + num_hidden(graph)) / 10, num_parameters=len(graph.edges))

    def test(self, graph, *, seed):
        return num_hidden(graph) / 10


class SometimesFails(RewardsHiddenNodes):
    """Graphs that begin with a relu crash, graphs that begin with a tanh have no score."""

    def evaluate(self, graph, *, seed):
        first = next(node for node in graph.nodes.values() if node.node_type is NodeType.HIDDEN)
        if first.activation_function == "relu":
            raise RuntimeError("no relu here")
        if first.activation_function == "tanh":
            return Score(float("nan"))
        return super().evaluate(graph, seed=seed)


class Interrupts(RewardsHiddenNodes):
    """Sends the process a Ctrl-C during its twentieth evaluation."""

    num_calls = 0

    def evaluate(self, graph, *, seed):
        self.num_calls += 1
        if self.num_calls == 20:
            os.kill(os.getpid(), signal.SIGINT)
        return super().evaluate(graph, seed=seed)
