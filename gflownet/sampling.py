"""Graphs sampled from the policy of a finished run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from gflownet.checkpoint import RunLock
from gflownet.config import stored_config
from gflownet.data.sampler import sample_forward
from gflownet.errors import UserError
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.mdp.policy import PolicyFunction
from gflownet.run_folder import last_checkpoint
from gflownet.trainer import GFNTrainer
from gflownet.workers.process import get_random_state, set_random_state

_AT_ONCE = 256  # trajectories sampled together, to bound memory


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
) -> list[Any]:
    """Return `num` terminal graphs sampled from the policy in the last checkpoint of a run, without exploration.

    Computation graphs carry the settings that the run's task translates them with.

    Args:
        run_folder: the run's log_dir.
        num: how many.
        beta: the inverse temperature they are asked for, one of those that training draws; drawn for each if not given.
        preferences: weights of the objectives, scaled to sum to 1; drawn for each if not given.
        focus: a direction in the space of objectives, scaled to sum to 1; drawn for each if not given.
        greediness: p in [0, 1] of QGFN; above 0, the run has to have learned action values (algo.qgfn.use=true).
        variant: p_greedy, p_quantile or p_of_max; the run's own if not given.
        seed: decides what is sampled.
        device: where the networks are to be, cpu, cuda or cuda:N.

    Raises:
        ValueError: there is no run or no checkpoint, it is still running, it has no action values, a value is out of
            bounds, or training never conditions on it.
    """
    trainer = _restored(Path(run_folder), device=device)
    policy: PolicyFunction = trainer.learner.sampling
    if trainer.auxiliary.action_values is not None:
        policy = trainer.auxiliary.action_values.greedier(policy, variant=variant, p=greediness)
    elif greediness:
        raise UserError(f"greediness: expected 0 of a run without algo.qgfn.use=true, got {greediness}")
    generator, context = torch.Generator().manual_seed(seed), trainer.context
    graphs: list[Any] = []
    while len(graphs) < num:
        drawn = trainer.task.sample_conditioning(min(_AT_ONCE, num - len(graphs)), generator=generator)
        asked = trainer.task.asked(drawn, beta=beta, preferences=preferences, focus=focus)
        sampled = sample_forward(context, policy, conditioning=asked, generator=generator)
        graphs += [context.env.terminal(sampled.terminal, i) for i in range(len(sampled))]
    settings = trainer.task.translation_settings
    return [graph.with_translation(settings) if isinstance(graph, ComputationGraph) else graph for graph in graphs]


def _restored(folder: Path, *, device: str) -> GFNTrainer:
    """Return the trainer of a run as its last checkpoint left it; this process's random numbers stay what they are."""
    config = stored_config(folder, [f"device={device}"])
    if config is None:
        raise UserError(f"run_folder: expected the log_dir of a run with a checkpoint, got {folder}")
    with RunLock(folder):  # a run deletes checkpoints while it goes
        checkpoint = last_checkpoint(folder, option="run_folder")
    random_state, num_threads = get_random_state(), torch.get_num_threads()
    try:
        trainer = GFNTrainer(config)
        trainer.load_state_dict(checkpoint.state)
    finally:
        set_random_state(random_state)
        torch.set_num_threads(num_threads)
    return trainer
