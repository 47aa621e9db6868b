"""Speed at the settings that recursionpharma/gflownet was measured at elsewhere, and at larger ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.mdp.policy import Policy
from gflownet.policy.dense_transformer import DenseTransformerPolicy
from gflownet.policy.graph_transformer import GraphTransformerPolicy
from scripts.bench import Row, figure
from scripts.sampling.sides import Ours, Turn, take_turns
from tests.fixed_length_env import FixedLengthGraphBuildingEnv

NODE_TYPES = ("a", "b")


@dataclass(frozen=True)
class Setting:
    """An environment, a policy and a batch. No goals: the peer's speeds were measured on another machine."""

    env: GraphBuildingEnv
    policy: type[Policy] = DenseTransformerPolicy
    width: int = 64
    batch: int = 64
    is_trained: bool = True  # whether training steps are measured, too

    @property
    def label(self) -> str:
        """Return what it is, in words."""
        kind = "directed" if self.env.vocabulary.directed else "undirected"
        length = "free length"
        if isinstance(self.env, FixedLengthGraphBuildingEnv):
            length = f"{self.env.num_actions + 1} states"
        network = "message passing" if self.policy is GraphTransformerPolicy else "dense"
        sizes = f"{self.env.vocabulary.max_nodes} nodes, {length}"
        return f"{kind}, {sizes}, {network}, width {self.width}, batch {self.batch}"


def fixed_length(max_nodes: int, num_actions: int, *, directed: bool = True) -> FixedLengthGraphBuildingEnv:
    """Return the environment of the peer's settings."""
    return FixedLengthGraphBuildingEnv(NODE_TYPES, max_nodes=max_nodes, num_actions=num_actions, directed=directed)


_ENV = fixed_length(7, 12)
SETTINGS = (
    Setting(_ENV),
    Setting(_ENV, batch=256),
    Setting(_ENV, width=128),
    Setting(_ENV, width=128, batch=256),
    Setting(_ENV, policy=GraphTransformerPolicy, is_trained=False),
    Setting(_ENV, policy=GraphTransformerPolicy, batch=256, is_trained=False),
)
SETTINGS_BESIDE = (
    Setting(fixed_length(7, 12, directed=False)),
    Setting(GraphBuildingEnv(NODE_TYPES, max_nodes=7, directed=True)),
    Setting(fixed_length(12, 24)),
    Setting(fixed_length(20, 40)),
    Setting(fixed_length(20, 40), policy=GraphTransformerPolicy),
    Setting(fixed_length(40, 80)),
    Setting(fixed_length(40, 80), policy=GraphTransformerPolicy),
)


def measure(settings: Sequence[Setting], *, num_rounds: int) -> list[Row]:
    """Return the speeds at all settings, measured in turn."""
    sides = {}
    for setting in settings:
        for is_training in (False, True) if setting.is_trained else (False,):
            ours = Ours(setting.env, policy_class=setting.policy, width=setting.width, batch=setting.batch)
            sides[setting, is_training] = ours.train if is_training else ours.sample
    rows = []
    for (setting, is_training), turns in take_turns(sides, num_rounds=num_rounds).items():
        if is_training:
            speed = median(map(Turn.steps_per_second, turns))
            rows.append(figure(f"{setting.label}: trained", speed, "steps/CPU-s"))
        else:
            speed = median(map(Turn.trajectories_per_second, turns))
            rows.append(figure(f"{setting.label}: sampled", speed, "trajectories/CPU-s"))
    return rows
