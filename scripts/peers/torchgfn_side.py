"""torchgfn's side of bench_sampling.py, run in torchgfn's environment by `PeerProcess`.

Each JSON line `{"do": "sample" or "train", "batch": n, ...}` with the fields of Settings is answered with the cost of
one batch, or of one training step on it, or with `{"error": ...}`. Sampling uses an untrained policy; training steps
continue one training. Everything is torchgfn's own except the masks of a fixed length.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import gc
import resource
from collections.abc import Callable
from dataclasses import dataclass
from time import process_time
from typing import Any

import torch
from gfn.actions import GraphActions, GraphActionType
from gfn.estimators import DiscreteGraphPolicyEstimator
from gfn.gflownet.trajectory_balance import TBGFlowNet
from gfn.gym.graph_building import GraphBuilding
from gfn.utils.modules import GraphActionGNN
from process import serve

LEARNING_RATE, LEARNING_RATE_LOG_Z = 1e-3, 5e-2  # of torchgfn's tutorial train_graph_triangle.py
# A training step needs memory in proportion to the square of its states (pad_sequence, backward): at width 64 and 13
# states each, 1.4 GiB for 64 trajectories, 4.4 for 128, 17 for 256. Above this limit it fails.
MAX_MEMORY = 19 << 30


@dataclass(frozen=True)
class Settings:
    """Graphs with two node types, and networks for both directions."""

    width: int = 64
    num_layers: int = 3
    max_nodes: int = 7
    num_actions: int | None = None  # actions before EXIT, at which EXIT is the only one; None: EXIT is always legal
    directed: bool = True
    seed: int = 0


class FixedLengthGraphBuilding(GraphBuilding):
    """torchgfn's graph building with a fixed number of actions before EXIT."""

    def __init__(self, num_actions: int, **options: Any) -> None:
        self.num_actions = num_actions
        super().__init__(**options)

    def make_states_class(self) -> type:
        """Return states whose masks allow EXIT after all actions, and only the other actions before."""
        base: Any = super().make_states_class()
        num_actions = self.num_actions

        class FixedLengthStates(base):
            @property
            def forward_masks(self) -> Any:
                masks = super().forward_masks
                num_taken = [graph.x.shape[0] + graph.edge_index.shape[1] for graph in self.data.flat]
                finished = torch.tensor(num_taken).view(self.batch_shape) >= num_actions
                types = masks[GraphActions.ACTION_TYPE_KEY]
                types[finished] = False
                types[..., GraphActionType.EXIT] = finished
                return masks

        return FixedLengthStates


class Side:
    """An environment with its networks and their optimiser."""

    def __init__(self, settings: Settings) -> None:
        torch.manual_seed(settings.seed)
        classes: dict[str, Any] = {"num_node_classes": 2, "num_edge_classes": 1}
        options = {**classes, "is_directed": settings.directed, "max_nodes": settings.max_nodes}
        options["state_evaluator"] = lambda states: torch.ones(states.batch_shape)
        num_actions = settings.num_actions
        self.env = GraphBuilding(**options) if num_actions is None else FixedLengthGraphBuilding(num_actions, **options)
        estimators = []
        for is_backward in (False, True):
            network = GraphActionGNN(
                **classes,
                directed=settings.directed,
                embedding_dim=settings.width,
                num_conv_layers=settings.num_layers,
                is_backward=is_backward,
            )
            estimators.append(DiscreteGraphPolicyEstimator(module=network, is_backward=is_backward))
        self.gflownet = TBGFlowNet(*estimators)
        networks = [p for name, p in self.gflownet.named_parameters() if name != "logZ"]
        groups = [{"params": networks}, {"params": [self.gflownet.logZ], "lr": LEARNING_RATE_LOG_Z}]
        self.optimiser = torch.optim.Adam(groups, lr=LEARNING_RATE)

    def sample(self, batch: int) -> Any:
        """Return a batch of trajectories, without gradients."""
        with torch.no_grad():
            return self.gflownet.sample_trajectories(self.env, n=batch)

    def train(self, batch: int) -> Any:
        """Take a training step on a batch of new trajectories and return it.

        The forward log-probabilities of sampling are kept; the tutorial computes them again, about a fifth slower.
        """
        trajectories = self.gflownet.sample_trajectories(self.env, n=batch, save_logprobs=True)
        samples = self.gflownet.to_training_samples(trajectories)
        loss = self.gflownet.loss(self.env, samples, recalculate_all_logprobs=False)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        return trajectories


class Server:
    """Answer messages; each kind of message has its own Side, warmed up at its first message."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, int, Settings], Callable[[int], Any]] = {}

    def answer(self, do: str, *, batch: int, **settings: Any) -> dict[str, float]:
        """Return the cost and size of one batch."""
        run = self._run(do, batch, Settings(**settings))
        gc.collect()
        start = process_time()
        trajectories = run(batch)
        cpu_seconds = process_time() - start
        # States evaluated by the policy: with the initial state, without the sink state after EXIT.
        num_states = int((~trajectories.states.is_sink_state).sum())
        return {"cpu_seconds": cpu_seconds, "num_trajectories": batch, "num_states": num_states}

    def _run(self, do: str, batch: int, settings: Settings) -> Callable[[int], Any]:
        if do not in ("sample", "train"):
            raise ValueError(f"do: expected sample or train, got {do!r}")
        key = (do, batch, settings)
        if key not in self._runs:
            side = Side(settings)
            self._runs[key] = side.sample if do == "sample" else side.train
            self._runs[key](batch)
            gc.collect()
            gc.freeze()  # exclude long-lived objects from later collections
        return self._runs[key]


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY, MAX_MEMORY))
    server = Server()
    serve(lambda message: server.answer(**message))
