"""torchgfn's side of the sampling benchmark; runs in torchgfn's own environment, as scripts/peers/process.py starts it.

Reads one JSON object per line, `{"do": "sample" or "train", ...}` with the fields of Settings, and answers each with
one: what one batch, or one training step on one batch, cost and gave, or `{"error": ...}`. Sampling keeps the untrained
policy; training steps follow one another. Everything is torchgfn's own but the masks of a fixed length.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import gc
import json
import resource
import sys
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

LEARNING_RATE, LEARNING_RATE_LOG_Z = 1e-3, 5e-2  # those of torchgfn's tutorial train_graph_triangle.py
# A training step needs memory in proportion to the square of its states (pad_sequence, backwards): at width 64 and 13
# states each, 1.4 GiB for 64 trajectories, 4.4 for 128, 17 for 256. Past this it fails, and the machine lives on.
MOST_MEMORY = 19 << 30


@dataclass(frozen=True)
class Settings:
    """What is built: graphs with two types of node, and networks for both directions."""

    width: int = 64
    num_layers: int = 3
    max_nodes: int = 7
    num_actions: int | None = None  # before EXIT, which is then not allowed; None: EXIT is always allowed
    directed: bool = True
    seed: int = 0


class FixedLengthGraphBuilding(GraphBuilding):
    """torchgfn's graph building in which exactly so many nodes and edges are added."""

    def __init__(self, num_actions: int, **options: Any) -> None:
        self.num_actions = num_actions
        super().__init__(**options)

    def make_states_class(self) -> type:
        """Return the states whose masks allow EXIT after all actions, and everything else before."""
        base: Any = super().make_states_class()
        num_actions = self.num_actions

        class FixedLengthStates(base):
            @property
            def forward_masks(self) -> Any:
                masks = super().forward_masks
                taken = [graph.x.shape[0] + graph.edge_index.shape[1] for graph in self.data.flat]
                finished = torch.tensor(taken).view(self.batch_shape) >= num_actions
                types = masks[GraphActions.ACTION_TYPE_KEY]
                types[finished] = False
                types[..., GraphActionType.EXIT] = finished
                return masks

        return FixedLengthStates


class Side:
    """An environment with its networks and their optimiser."""

    def __init__(self, settings: Settings) -> None:
        torch.manual_seed(settings.seed)
        options: dict[str, Any] = {"num_node_classes": 2, "num_edge_classes": 1}
        self.env = self._environment(settings, options)
        estimators = []
        for is_backward in (False, True):
            network = GraphActionGNN(
                **options,
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
        """Take a training step on a batch of new trajectories, whose forward log-probabilities are kept, and return it.

        The tutorial computes them a second time (`recalculate_all_logprobs`), which takes about a fifth longer.
        """
        trajectories = self.gflownet.sample_trajectories(self.env, n=batch, save_logprobs=True)
        samples = self.gflownet.to_training_samples(trajectories)
        loss = self.gflownet.loss(self.env, samples, recalculate_all_logprobs=False)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        return trajectories

    def _environment(self, settings: Settings, options: dict[str, Any]) -> GraphBuilding:
        options = {**options, "is_directed": settings.directed, "max_nodes": settings.max_nodes}
        options["state_evaluator"] = lambda states: torch.ones(states.batch_shape)
        if settings.num_actions is None:
            return GraphBuilding(**options)
        return FixedLengthGraphBuilding(settings.num_actions, **options)


class Server:
    """Answers commands; each kind of command has a side of its own, warmed up when it is first asked for."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, int, Settings], Callable[[int], Any]] = {}

    def answer(self, do: str, *, batch: int, **settings: Any) -> dict[str, float]:
        """Return the CPU seconds of one batch and what it was."""
        run = self._run(do, batch, Settings(**settings))
        gc.collect()
        start, system_start = process_time(), _system_seconds()
        trajectories = run(batch)
        cpu_seconds, system_seconds = process_time() - start, _system_seconds() - system_start
        return {
            "cpu_seconds": cpu_seconds,
            "system_seconds": system_seconds,
            "num_trajectories": batch,
            # Those that the policy was asked about: with the initial one, without the sink after EXIT.
            "num_states": int((~trajectories.states.is_sink_state).sum()),
            "num_policy_calls": int(trajectories.max_length),
        }

    def _run(self, do: str, batch: int, settings: Settings) -> Callable[[int], Any]:
        if do not in ("sample", "train"):
            raise ValueError(f"do: expected sample or train, got {do!r}")
        key = (do, batch, settings)
        if key not in self._runs:
            side = Side(settings)
            self._runs[key] = side.sample if do == "sample" else side.train
            self._runs[key](batch)
            gc.collect()
            gc.freeze()  # what stays for ever is not looked through again and again
        return self._runs[key]


def _system_seconds() -> float:
    """Return the part of the process's CPU seconds that the kernel took, for new memory above all."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_stime


def main() -> None:
    """Answer line by line until the input ends."""
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever a library prints is no answer
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
    server = Server()
    for line in sys.stdin:
        try:
            answer: dict[str, Any] = server.answer(**json.loads(line))
        except Exception as error:  # the other side says which command it was
            answer = {"error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
