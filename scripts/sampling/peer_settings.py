"""Speed at the settings that recursionpharma/gflownet was measured at, and at others beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.mdp.policy import Policy
from gflownet.policy.dense_transformer import DenseTransformerPolicy
from gflownet.policy.graph_transformer import GraphTransformerPolicy
from scripts.bench import Row
from scripts.peers.fixed_length import FixedLengthGraphBuildingEnv
from scripts.sampling.sides import Ours, Turn, take_turns

NODE_TYPES = ("a", "b")
SPEED_OF_THE_PEER = (
    "The peer's speeds (64, 71, 0.56, 0.13, 60, 68, 0.47, 0.085, 23 and 0.18 per CPU second) are those of\n"
    "../shared/spec/performance.md; nothing of the peer is run here, so ratios to them are of two machines' moods."
)


@dataclass(frozen=True)
class Figure:
    """What a speed is compared with, where there is something."""

    peer: float | None = None
    goal: float | None = None


@dataclass(frozen=True)
class Setting:
    """An environment, a policy and a batch, and the figures for sampling and for training (None: not measured)."""

    env: GraphBuildingEnv
    sampled: Figure | None = Figure()
    trained: Figure | None = Figure()
    policy: type[Policy] = DenseTransformerPolicy
    width: int = 64
    batch: int = 64

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
    Setting(_ENV, Figure(64, goal=1300), Figure(0.56, goal=6.7)),
    Setting(_ENV, Figure(71, goal=1450), Figure(0.13, goal=1.6), batch=256),
    Setting(_ENV, Figure(60, goal=600), Figure(0.47, goal=2.82), width=128),
    Setting(_ENV, Figure(68, goal=680), Figure(0.085, goal=0.51), width=128, batch=256),
    Setting(_ENV, Figure(64, goal=512), None, policy=GraphTransformerPolicy),
    Setting(_ENV, Figure(71, goal=568), None, policy=GraphTransformerPolicy, batch=256),
)
SETTINGS_BESIDE = (
    Setting(fixed_length(7, 12, directed=False)),
    Setting(GraphBuildingEnv(NODE_TYPES, max_nodes=7, directed=True)),
    Setting(fixed_length(12, 24), Figure(23), Figure(0.18)),
    Setting(fixed_length(20, 40)),
    Setting(fixed_length(20, 40), policy=GraphTransformerPolicy),
    Setting(fixed_length(40, 80)),
    Setting(fixed_length(40, 80), policy=GraphTransformerPolicy),
)


def measure(settings: Sequence[Setting], *, num_rounds: int) -> list[Row]:
    """Return the speeds at all settings, measured in turn."""
    sides = {}
    for setting in settings:
        for is_training, figure in ((False, setting.sampled), (True, setting.trained)):
            if figure is not None:
                ours = Ours(setting.env, policy_class=setting.policy, width=setting.width, batch=setting.batch)
                sides[setting, is_training] = ours.train if is_training else ours.sample
    rows = []
    for (setting, is_training), turns in take_turns(sides, num_rounds=num_rounds).items():
        if is_training:
            name, unit, figure = f"{setting.label}: trained", "steps/CPU-s", setting.trained
            value = median(map(Turn.steps_per_second, turns))
        else:
            name, unit, figure = f"{setting.label}: sampled", "trajectories/CPU-s", setting.sampled
            value = median(map(Turn.trajectories_per_second, turns))
        rows += _rows(name, value, unit, figure or Figure())
    return rows


def _rows(name: str, value: float, unit: str, figure: Figure) -> list[Row]:
    goal = "" if figure.goal is None else f">= {figure.goal:g}"
    rows = [Row(name, value, unit, goal, figure.goal is None or value >= figure.goal)]
    if figure.peer is not None:
        rows.append(Row(f"{name}, against the peer's {figure.peer:g}", value / figure.peer, "x", "", True))
    return rows
