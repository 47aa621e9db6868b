"""Sample graphs from the policy of a finished run."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from gflownet.config import stored_config
from gflownet.errors import UserError, counted
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.learning.sampler import conditions_of, sample_forward
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.records.marker import MARKER_NAME
from gflownet.records.trust import limited, trusting
from gflownet.run.checkpoint import Checkpoint, CheckpointFolder, RunLock
from gflownet.run.folder import CHECKPOINTS_NAME, last_checkpoint
from gflownet.run.trainer import GFNTrainer, build_trainer
from gflownet.search.amortised_search import PredictedOnce
from gflownet.search.candidate_model import observed
from gflownet.search.proposals import accepted, unknown_mask
from gflownet.search.sampler import capped_conditioning, log_score
from gflownet.training.random_states import get_random_state, set_random_state

_BATCH_SIZE = 256  # trajectories sampled together, to bound memory; the best new ones are chosen from as many
_MAX_BATCHES = 8  # until there are enough new ones


def sample(
    run_folder: str | Path,
    num: int,
    *,
    max_parameters: int | None = None,
    max_multiply_adds: int | None = None,
    varied: bool = False,
    beta: float | None = None,
    preferences: Sequence[float] | None = None,
    focus: Sequence[float] | None = None,
    greediness: float = 0.0,
    variant: str = "p_of_max",
    seed: int = 0,
    device: str = "cpu",
    trust: bool = False,
) -> list[Any]:
    """Sample `num` terminal graphs from the policy in the last checkpoint of a run, without exploration.

    After a search method these are new ones: the best by prediction of 256 samples. A run without a sampler trains it
    first. Computation graphs carry the translation settings of the run's task.

    Args:
        run_folder: the run's log_dir.
        num: number of graphs; a small space may have fewer new ones.
        max_parameters: cap of the parameters, below that of the environment; None: the largest of the training.
        max_multiply_adds: the same of the multiply-adds.
        varied: return samples as they come, known ones included; always so where the policy was trained on scores.
        beta: inverse temperature, a value that training draws; None: drawn for each graph.
        preferences: weights of the objectives, scaled to sum to 1; None: drawn for each graph.
        focus: direction in the space of objectives, scaled to sum to 1; None: drawn for each graph.
        greediness: p in [0, 1] of QGFN; above 0, the run needs action values (algo.qgfn.use=true).
        variant: p_greedy, p_quantile or p_of_max.
        seed: of the samples.
        device: of the networks, cpu, cuda or cuda:N.
        trust: import and connect to what a run of another user names.

    Raises:
        ValueError: there is no run or checkpoint, the run is active, or another user's and not trusted, it has
            evaluated nothing, it has no action values, or a value is out of bounds or unused in training.
    """
    graphs: list[Any] = []
    with trusting(trust), limited(Path(run_folder)):
        restored = restore(run_folder, greediness=greediness, variant=variant, device=device)
        caps = {"parameters": max_parameters, "multiply_adds": max_multiply_adds}
        conditions: dict[str, Any] = {"beta": beta, "preferences": preferences, "focus": focus}
        for batch in restored.batches(num, seed=seed, varied=varied, caps=caps, **conditions):
            graphs += restored.graphs(batch)
    return graphs


@dataclass(frozen=True)
class RestoredPolicy:
    """The policy of a finished run."""

    trainer: GFNTrainer
    policy: PolicyFunction  # for sampling
    _last: dict[str, TrajectoryBatch] = field(default_factory=dict)  # best samples of the last call, by its arguments

    @cached_property
    def predict(self) -> PredictedOnce | None:
        """The predictions that the sampler of a search was trained on; None where the policy was trained on scores."""
        trainer = self.trainer
        if trainer.search.method.trains_policy:
            return None
        return PredictedOnce(trainer.env, trainer.sampler.score_model())

    def batches(self, num: int, *, seed: int, varied: bool = False, **conditions: Any) -> Iterator[TrajectoryBatch]:
        """Yield batches of `num` trajectories in all; conditions as in `sample`, with `caps` by metric."""
        generator = torch.Generator().manual_seed(seed)
        if not varied and self.predict is not None:
            key = repr((num, seed, sorted(conditions.items())))
            batch = self._last.get(key) or self._best(self.predict, num, generator, conditions)
            self._last.clear()
            if len(batch) == num:  # fewer have a line each time
                self._last[key] = batch
            yield from [batch] if len(batch) else []
            return
        for start in range(0, num, _BATCH_SIZE):
            yield self._sampled(min(_BATCH_SIZE, num - start), generator, **conditions)

    def _best(
        self, predict: PredictedOnce, num: int, generator: torch.Generator, conditions: Mapping[str, Any]
    ) -> TrajectoryBatch:
        """Return up to `num` new samples with the best predicted scores, best first."""
        batch, method = self._sampled(_BATCH_SIZE, generator, **conditions), self.trainer.search.method
        for _ in range(_MAX_BATCHES):
            new = unknown_mask(method.history, batch.terminal).nonzero().squeeze(1)
            if len(new):
                scores = log_score(self.trainer.task, predict(batch.terminal[new]), conditions_of(batch)[new])
                new = new[scores.argsort(descending=True, stable=True)]
            best = accepted(batch.terminal, new, num, method.setup.is_refused_at)
            if len(best) == num:
                break
            batch = TrajectoryBatch.cat([batch, self._sampled(_BATCH_SIZE, generator, **conditions)])
        if len(best) < num:
            words = f"{counted(len(best), 'new architecture')} of {num:,} found"
            print(f"{words}; varied (--varied) gives known ones, too", file=sys.stderr)
        return batch.rows(best)

    def _sampled(
        self,
        num: int,
        generator: torch.Generator,
        *,
        caps: Mapping[str, int | None] = MappingProxyType({}),
        **fixed: Any,
    ) -> TrajectoryBatch:
        trainer, task = self.trainer, self.trainer.task
        if trainer.search.method.trains_policy and not any(caps.values()):  # trained on scores, with caps as drawn
            conditioning = task.override_conditioning(task.sample_conditioning(num, generator=generator), **fixed)
        else:
            conditioning = capped_conditioning(task, trainer.env, num, generator, caps=caps, **fixed)
        return sample_forward(trainer.context, self.policy, conditioning=conditioning, generator=generator)

    def graphs(self, batch: TrajectoryBatch) -> list[Any]:
        """Return the terminal graphs; computation graphs carry the translation settings of the task."""
        graphs = [self.trainer.context.env.terminal(batch.terminal, i) for i in range(len(batch))]
        if not any(isinstance(graph, ComputationGraph) for graph in graphs):
            return graphs  # a task of other objects may have no translation settings
        settings = self.trainer.task.translation_settings
        return [graph.with_translation(settings) if isinstance(graph, ComputationGraph) else graph for graph in graphs]


def restore(
    run_folder: str | Path, *, greediness: float = 0.0, variant: str = "p_of_max", device: str = "cpu"
) -> RestoredPolicy:
    """Return the policy in the last checkpoint of a run; the last one stays in memory. Arguments as in `sample`."""
    folder, arguments = Path(run_folder), (str(Path(run_folder).resolve()), greediness, variant, device)
    if _last.get(arguments, ((), None))[0] != _version(folder):
        trainer = _restored(folder, device=device)
        policy: PolicyFunction = trainer.learner.sampling
        if trainer.auxiliary.action_values is not None:
            policy = trainer.auxiliary.action_values.greedier(policy, variant=variant, p=greediness)
        elif greediness:
            raise UserError(f"greediness: expected 0 of a run without algo.qgfn.use=true, got {greediness}")
        _last.clear()
        _last[arguments] = _version(folder), RestoredPolicy(trainer, policy)
    return _last[arguments][1]


_last: dict[tuple[Any, ...], tuple[Any, RestoredPolicy]] = {}  # at most one, by the arguments of `restore`


# No candidate is trained: a run on GPUs or on a cluster is sampled without them.
_NO_CANDIDATES = ("evaluation.device=cpu", "evaluation.executor=inline")


def _version(folder: Path) -> list[tuple[str, int]]:
    """Return the marker and the checkpoints of a run with the times of their last changes."""
    files = [folder / MARKER_NAME, *CheckpointFolder(folder / CHECKPOINTS_NAME, run="").files()]
    return [(file.name, file.stat().st_mtime_ns) for file in files if file.exists()]


def _restored(folder: Path, *, device: str) -> GFNTrainer:
    """Restore the trainer of a run from its last checkpoint; random states of this process are unchanged."""
    config = stored_config(folder, [f"device={device}", *_NO_CANDIDATES])
    if config is None:
        raise UserError(f"run_folder: expected the log_dir of a run with a checkpoint, got {folder}")
    with RunLock(folder):  # an active run deletes checkpoints
        checkpoint = last_checkpoint(folder, option="run_folder")
    random_state, num_threads = get_random_state(), torch.get_num_threads()
    try:
        trainer = build_trainer(config)
        trainer.restore(checkpoint)
        if not trainer.search.method.trains_policy and trainer.sampler.scale is None:
            _train(trainer, folder, checkpoint)
    finally:
        set_random_state(random_state)
        torch.set_num_threads(num_threads)
    return trainer


def _train(trainer: GFNTrainer, folder: Path, checkpoint: Checkpoint) -> None:
    """Train the sampler of a run without one, and keep it in the checkpoint, with one line."""
    num = len(observed(trainer.search.history))
    if not num:
        raise UserError(f"run_folder: expected a run with evaluations, got {folder}, which has none")
    print(f"{folder}: the sampler is trained on predictions from {counted(num, 'evaluation')}", file=sys.stderr)
    trainer.learner.on_skip = lambda error, batch: None
    deque(trainer.sampler.work(0), maxlen=0)
    state = trainer.state_dict() | {"random_state": checkpoint.state["random_state"]}
    try:
        with RunLock(folder):
            CheckpointFolder(checkpoint.path.parent, run=trainer.run_id).save(checkpoint.step, state)
    except (UserError, OSError) as error:
        print(f"{folder}: the sampler is not kept: {error}", file=sys.stderr)
