"""Back-and-forth local search: proposals and accepted states."""

import pytest
import torch
from torch import Tensor

from gflownet.certificate.exact import enumerate_states
from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.learning.config import LocalSearchConfig
from gflownet.learning.sampler import Exploration
from gflownet.learning.source import LocalSearch, Refined
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.trajectory import Origin, TrajectoryBatch
from tests.contracts.environments import ENVIRONMENTS
from tests.learning.policies import keys, opinionated, unconditional

MADE = {
    "many_lengths": lambda: GraphBuildingEnv(["a"], max_nodes=4),  # classes of 1 to 4 nodes, 0 to 6 edges
    "directed": lambda: GraphBuildingEnv(["a", "b"], max_nodes=3, directed=True),
    "computation_graph_ordered": ENVIRONMENTS["computation_graph_ordered"],
}


class Space:
    def __init__(self, env: Environment) -> None:
        self.env, self.graph = env, enumerate_states(env)
        generator = torch.Generator().manual_seed(1)
        drawn = torch.randn(len(self.graph.terminal), generator=generator, dtype=torch.float64)
        self.terminal = self.graph.states[self.graph.terminal]
        self.keys = keys(env, self.terminal)
        self.log_reward = dict(zip(self.keys, drawn.tolist(), strict=True))
        self.num_scored = 0

    def score(self, trajectories: TrajectoryBatch) -> TrajectoryBatch:
        self.num_scored += len(trajectories)
        found = keys(self.env, trajectories.terminal)
        return trajectories.with_rewards(torch.tensor([self.log_reward[key] for key in found]))

    def refine(
        self, context: GraphBuildingEnvContext, policy: PolicyFunction, config: LocalSearchConfig, index: Tensor
    ) -> Refined:
        log_reward = torch.tensor(list(self.log_reward.values()))[index]
        return LocalSearch(context, config, Exploration()).refine(
            self.terminal[index],
            log_reward,
            unconditional(len(index)),
            policy=policy,
            score=self.score,
            generator=torch.Generator().manual_seed(2),
        )


@pytest.mark.parametrize(
    ("name", "two_way"), [("many_lengths", False), ("directed", True), ("computation_graph_ordered", False)]
)
def test_local_search_proposals_share_first_steps(name, two_way, monkeypatch):
    space = Space(MADE[name]())
    env = space.env
    context, policy = opinionated(env, two_way=two_way, sharpness=1.0)
    index = torch.arange(12) % len(space.terminal)
    monkeypatch.setattr("gflownet.learning.local_search._SHARE_BACK", 0.01)  # one step is undone
    config = LocalSearchConfig(num=12, num_iterations=2)
    refined = space.refine(context, policy, config, index)
    assert space.num_scored == 24
    here = space.terminal[index]
    before = {i: {keys(env, state)[0] for _, state in env.parents(here, i)} for i in range(12)}
    for i in range(12):
        one = refined.proposals[0][i]
        assert bool(one.states[:1].equals(env.initial_states(1)).all())
        after = env.step(one.states, one.actions)  # raises if one is illegal
        assert bool(after[: len(after) - 1].equals(one.states[1:]).all())
        assert bool(one.states[-1:].equals(one.terminal).all())
        on_the_way = before[i] & set(keys(env, one.states))
        assert on_the_way or not before[i]
        counts = env.backward_masks(one.states[1:]).num_actions()
        assert torch.allclose(one.log_backward[:-1], -counts.log())
    assert set(refined.proposals[0].origin.tolist()) == {int(Origin.RESAMPLED)}


def test_local_search_better_acceptance(monkeypatch):
    space = Space(MADE["many_lengths"]())
    context, policy = opinionated(space.env, sharpness=1.0)
    index = torch.arange(40) % len(space.terminal)
    monkeypatch.setattr("gflownet.learning.local_search._SHARE_BACK", 1.0)
    config = LocalSearchConfig(num=40, num_iterations=5)
    refined = space.refine(context, policy, config, index)
    tried = [torch.tensor(list(space.log_reward.values()))[index], *(p.log_reward for p in refined.proposals)]
    best = torch.stack(tried).max(0).values
    ends = torch.tensor([space.log_reward[key] for key in keys(space.env, refined.terminal)])
    assert torch.equal(ends, best)
    assert float((best - tried[0]).mean()) > 0.3
    improved = sum(float((tried[t + 1] > torch.stack(tried[: t + 1]).max(0).values).double().mean()) for t in range(5))
    assert refined.accepted_share == pytest.approx(improved / 5)


def test_local_search_generator():
    space = Space(MADE["many_lengths"]())
    context, policy = opinionated(space.env, two_way=True)
    config = LocalSearchConfig(num=8)
    torch.manual_seed(0)
    first = space.refine(context, policy, config, torch.arange(8))
    torch.manual_seed(1)
    again = space.refine(context, policy, config, torch.arange(8))
    for ours, theirs in zip(first.proposals, again.proposals, strict=True):
        assert bool(ours.terminal.equals(theirs.terminal).all())
    assert bool(first.terminal.equals(again.terminal).all())
