"""Classification of images by networks of cells: the cell of `env.cells` is repeated in its skeleton and trained."""

from __future__ import annotations

from typing import Any

from torch import nn

from gflownet.envs.cells import read_design, sizes_of
from gflownet.evaluation.config import TaskConfig
from gflownet.evaluation.store.fingerprint import data_digest
from gflownet.evaluation.task import Cost
from gflownet.graphs.assignment import Assignment
from gflownet.graphs.canonical import ColouredGraph
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.typed import graph_cost

from .images import ImagesTask


class NasBench201TrainTask(ImagesTask):
    """Train the network of a cell and score it by its validation accuracy."""

    environment = "cells"

    def __init__(self, config: TaskConfig) -> None:
        super().__init__(config)
        self._design = read_design(config.env.cells)
        self._networks: Any = self._design.networks(*sizes_of(self.input_sizes, self.output_sizes))

    def network(self, candidate: Assignment | ColouredGraph) -> ComputationGraph:
        """Return the network of a finished cell."""
        return self._networks.graph(candidate)

    def build_model(self, candidate: Assignment | ColouredGraph) -> nn.Module:
        """Return the untrained network of a finished cell."""
        return super().build_model(self.network(candidate))

    def cost(self, graph: Assignment | ColouredGraph) -> Cost:
        """Return the size of the network of a finished cell."""
        cost = graph_cost(self.network(graph))
        return Cost(cost.num_parameters, 2 * cost.multiply_adds)

    def fingerprint(self) -> str:
        """Return a digest of the images and of the skeleton around the cells."""
        return data_digest([super().fingerprint(), repr(self._design)])
