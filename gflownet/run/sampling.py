"""Sample graphs from the policy of a finished run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gflownet.config import stored_config
from gflownet.data.sampler import sample_forward
from gflownet.errors import UserError
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.records.trust import limited, trusting
from gflownet.run.checkpoint import RunLock
from gflownet.run.folder import last_checkpoint
from gflownet.run.trainer import GFNTrainer
from gflownet.training.random_states import get_random_state, set_random_state

_BATCH_SIZE = 256  # trajectories sampled together, to bound memory


def sample(
    run_folder: str | Path,
    num: int,
    *,
    beta: float | None = None,
    preferences: Sequence[float] | None = None,
    focus: Sequence[float] | None = None,
    greediness: float = 0.0,
    variant: str | None = None,
    seed: int = 0,
    device: str = "cpu",
    trust: bool = False,
) -> list[Any]:
    """Sample `num` terminal graphs from the policy in the last checkpoint of a run, without exploration.

    Computation graphs carry the translation settings of the run's task.

    Args:
        run_folder: the run's log_dir.
        num: number of graphs.
        beta: inverse temperature, a value that training draws; None: drawn for each graph.
        preferences: weights of the objectives, scaled to sum to 1; None: drawn for each graph.
        focus: direction in the space of objectives, scaled to sum to 1; None: drawn for each graph.
        greediness: p in [0, 1] of QGFN; above 0, the run needs action values (algo.qgfn.use=true).
        variant: p_greedy, p_quantile or p_of_max; None: the option of the run.
        seed: of the samples.
        device: of the networks, cpu, cuda or cuda:N.
        trust: import and connect to what a run of another user names.

    Raises:
        ValueError: there is no run or checkpoint, the run is active, or another user's and not trusted, its search
            method has trained no policy, it has no action values, or a value is out of bounds or unused in training.
    """
    graphs: list[Any] = []
    with trusting(trust), limited(Path(run_folder)):
        restored = restore(run_folder, greediness=greediness, variant=variant, device=device)
        for batch in restored.batches(num, seed=seed, beta=beta, preferences=preferences, focus=focus):
            graphs += restored.graphs(batch)
    return graphs


@dataclass(frozen=True)
class RestoredPolicy:
    """The policy of a finished run."""

    trainer: GFNTrainer
    policy: PolicyFunction  # for sampling

    def batches(
        self,
        num: int,
        *,
        seed: int,
        beta: float | None = None,
        preferences: Sequence[float] | None = None,
        focus: Sequence[float] | None = None,
    ) -> Iterator[TrajectoryBatch]:
        """Yield batches of `num` trajectories in all, see `sample`."""
        task, generator = self.trainer.task, torch.Generator().manual_seed(seed)
        for start in range(0, num, _BATCH_SIZE):
            conditioning = task.sample_conditioning(min(_BATCH_SIZE, num - start), generator=generator)
            conditioning = task.override_conditioning(conditioning, beta=beta, preferences=preferences, focus=focus)
            yield sample_forward(self.trainer.context, self.policy, conditioning=conditioning, generator=generator)

    def graphs(self, batch: TrajectoryBatch) -> list[Any]:
        """Return the terminal graphs; computation graphs carry the translation settings of the task."""
        graphs = [self.trainer.context.env.terminal(batch.terminal, i) for i in range(len(batch))]
        if not any(isinstance(graph, ComputationGraph) for graph in graphs):
            return graphs  # a task of other objects may have no translation settings
        settings = self.trainer.task.translation_settings
        return [graph.with_translation(settings) if isinstance(graph, ComputationGraph) else graph for graph in graphs]


def restore(
    run_folder: str | Path, *, greediness: float = 0.0, variant: str | None = None, device: str = "cpu"
) -> RestoredPolicy:
    """Return the policy in the last checkpoint of a run. Arguments and errors as in `sample`."""
    trainer = _restored(Path(run_folder), device=device)
    policy: PolicyFunction = trainer.learner.sampling
    if trainer.auxiliary.action_values is not None:
        policy = trainer.auxiliary.action_values.greedier(policy, variant=variant, p=greediness)
    elif greediness:
        raise UserError(f"greediness: expected 0 of a run without algo.qgfn.use=true, got {greediness}")
    return RestoredPolicy(trainer, policy)


def _restored(folder: Path, *, device: str) -> GFNTrainer:
    """Restore the trainer of a run from its last checkpoint; random states of this process are unchanged."""
    config = stored_config(folder, [f"device={device}", "evaluation.device=cpu"])  # no candidate is trained
    if config is None:
        raise UserError(f"run_folder: expected the log_dir of a run with a checkpoint, got {folder}")
    with RunLock(folder):  # an active run deletes checkpoints
        checkpoint = last_checkpoint(folder, option="run_folder")
    random_state, num_threads = get_random_state(), torch.get_num_threads()
    try:
        trainer = GFNTrainer(config)
        trainer.load_state_dict(checkpoint.state)
    finally:
        set_random_state(random_state)
        torch.set_num_threads(num_threads)
    if trainer.search is not None and not trainer.learner.num_steps_done:
        raise UserError(
            f"run_folder: expected a run with a trained policy, got {folder}, where search.method="
            f"{trainer.config.search.method} has trained none"
        )
    return trainer
