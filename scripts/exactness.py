"""How exactly the sampler hits p(x) ~ R(x): analytic flows on every toy space, and trained transformers.

    python scripts/exactness.py [--quick] [--json FILE]

Every figure is the exact push-forward of a policy's terminating distribution, never an estimate from samples.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import torch
from bench import Row, finish, parse_arguments
from torch import Tensor

from gflownet.data.sampler import sample_forward
from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.evaluation.conditioning import Conditioning
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.metrics.exact import (
    StateGraph,
    analytic_log_prob,
    enumerate_states,
    jensen_shannon,
    l1_distance,
    policy_log_prob,
    target_distribution,
    terminating_distribution,
    total_variation,
)
from gflownet.objectives.config import AlgoConfig
from gflownet.objectives.trajectory_balance import TrajectoryBalance
from gflownet.policy.config import ModelConfig
from gflownet.policy.dense_transformer import DenseTransformerPolicy

# name: (environment, classes, L1 of the uncorrected policy under a uniform reward, from spec/gflownet.md)
SPACES = {
    "connected graphs, 4 nodes": (GraphBuildingEnv(["a"], max_nodes=4, min_nodes=4), 6, 0.5965),
    "connected graphs, 5 nodes": (GraphBuildingEnv(["a"], max_nodes=5, min_nodes=5), 21, 0.6264),
    "connected graphs, 6 nodes": (GraphBuildingEnv(["a"], max_nodes=6, min_nodes=6), 112, 0.6254),
    "two-coloured graphs, up to 4 nodes": (GraphBuildingEnv(["a", "b"], max_nodes=4), 65, 0.4308),
    "two-coloured graphs, up to 5 nodes": (GraphBuildingEnv(["a", "b"], max_nodes=5), 419, 0.4365),
    "single-source DAGs, 2 types, up to 4 nodes": (
        GraphBuildingEnv(["a", "b"], max_nodes=4, directed=True),
        260,
        0.1638,
    ),
    "single-source DAGs, 1 type, up to 5 nodes": (GraphBuildingEnv(["a"], max_nodes=5, directed=True), 185, 0.2490),
}
TRAINED = {"two-coloured graphs, up to 4 nodes": 1_000, "single-source DAGs, 2 types, up to 4 nodes": 2_500}
NUM_SEEDS = 3
NUM_TRAJECTORIES = 64
GOAL_TV = 0.02


@dataclass(frozen=True)
class Learned:
    """How far a trained policy is from its target."""

    total_variation: float
    jensen_shannon: float
    log_z_error: float
    spearman: float
    seconds: float


def rough_reward(graph: StateGraph, *, seed: int) -> Tensor:
    """Return standard normal log-rewards [S]: nothing about the graph predicts them, so every class must be learned."""
    return torch.randn(len(graph), generator=torch.Generator().manual_seed(seed))


def train(env: GraphBuildingEnv, graph: StateGraph, log_reward: Tensor, *, num_steps: int, seed: int) -> Learned:
    """Train the default network by trajectory balance and compare its exact terminating distribution to the target."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1_000)
    context = GraphBuildingEnvContext(env).with_layout(DenseTransformerPolicy.layout)
    policy = DenseTransformerPolicy(context, ModelConfig(num_layers=3, num_emb=64))
    objective = TrajectoryBalance(context, AlgoConfig())
    groups = [{"params": list(policy.parameters()), "lr": 1e-3}, *objective.parameter_groups()]
    optimizer = torch.optim.Adam(groups, fused=True)
    # A constant rate, then down to zero over the last two thirds.
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, 1.5 * (1 - step / num_steps)))
    conditioning = Conditioning(torch.zeros(NUM_TRAJECTORIES, 1), torch.ones(NUM_TRAJECTORIES))
    index = {env.coloured_graph(graph.states, i).canonical_key(): i for i in range(len(graph))}
    start = time.perf_counter()
    for step in range(num_steps):
        batch = sample_forward(context, policy, conditioning=conditioning, generator=generator, random_action_prob=0.1)
        ends = [index[env.coloured_graph(batch.terminal, i).canonical_key()] for i in range(len(batch))]
        batch = batch.with_rewards(log_reward[ends])
        if step == 0:
            objective.prepare(policy, batch)
        optimizer.zero_grad()
        objective.loss(policy, batch).value.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 10.0)
        optimizer.step()
        schedule.step()
    return measure(context, policy, objective, graph, log_reward, seconds=time.perf_counter() - start)


@torch.no_grad()
def measure(
    context: GraphBuildingEnvContext,
    policy: DenseTransformerPolicy,
    objective: TrajectoryBalance,
    graph: StateGraph,
    log_reward: Tensor,
    *,
    seconds: float,
) -> Learned:
    """Return the distances between the exact terminating distribution of the policy and the target."""

    def score(states):
        return policy(context.to_batch(states), torch.zeros(len(states), 1))[0].log_probs()

    found = terminating_distribution(graph, policy_log_prob(graph, score))
    target = target_distribution(graph, log_reward)
    log_z = float(log_reward[graph.terminal].double().logsumexp(0))
    return Learned(
        total_variation=total_variation(found, target),
        jensen_shannon=jensen_shannon(found, target),
        log_z_error=abs(float(objective.log_z(torch.zeros(1, 1))) - log_z),
        spearman=rank_correlation(found[graph.terminal], target[graph.terminal]),
        seconds=seconds,
    )


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Return Spearman's correlation of two lists without ties."""
    ranks = torch.stack([a.argsort().argsort(), b.argsort().argsort()]).double()
    return float(torch.corrcoef(ranks)[0, 1])


def analytic_rows() -> list[Row]:
    """Return, for every toy space, the error of analytic flows and what they give without the correction."""
    rows = []
    for name, (env, num_classes, published) in SPACES.items():
        graph = enumerate_states(env)
        log_reward = 2 * rough_reward(graph, seed=0)
        corrected, _ = analytic_log_prob(graph, log_reward + graph.num_automorphisms.log())
        error = l1_distance(terminating_distribution(graph, corrected), target_distribution(graph, log_reward))
        uniform = torch.zeros(len(graph))
        uncorrected, _ = analytic_log_prob(graph, uniform)
        control = l1_distance(terminating_distribution(graph, uncorrected), target_distribution(graph, uniform))
        rows.append(
            Row(f"{name}: classes", len(graph.terminal), "", str(num_classes), len(graph.terminal) == num_classes)
        )
        rows.append(Row(f"{name}: L1, analytic flows", error, "", "< 1e-6", error < 1e-6))
        agrees = abs(control - published) < 1e-4
        rows.append(Row(f"{name}: L1, uncorrected control", control, "", f"{published}", agrees))
    return rows


def trained_rows(*, quick: bool) -> list[Row]:
    """Return the distances of trained transformers; a quick run is one short training without a goal."""
    rows = []
    for name, num_steps in TRAINED.items():
        env = SPACES[name][0]
        graph = enumerate_states(env)
        for seed in range(1 if quick else NUM_SEEDS):
            learned = train(
                env, graph, rough_reward(graph, seed=seed), num_steps=100 if quick else num_steps, seed=seed
            )
            goal = "" if quick else f"< {GOAL_TV}"
            label = f"{name}, trained, seed {seed}"
            holds = quick or learned.total_variation < GOAL_TV
            rows += [
                Row(f"{label}: total variation", learned.total_variation, "", goal, holds),
                Row(f"{label}: Jensen-Shannon divergence", learned.jensen_shannon, "nats", "", True),
                Row(f"{label}: error of log Z", learned.log_z_error, "nats", "", True),
                Row(f"{label}: Spearman(p, R)", learned.spearman, "", "", True),
                Row(f"{label}: training time", learned.seconds, "s", "", True),
            ]
            print(f"{label}: total variation {learned.total_variation:.4f} after {learned.seconds:.0f} s", flush=True)
    return rows


if __name__ == "__main__":
    arguments = parse_arguments(__doc__)
    torch.set_num_threads(1)
    sys.exit(finish(analytic_rows() + trained_rows(quick=arguments.quick), json_path=arguments.json))
