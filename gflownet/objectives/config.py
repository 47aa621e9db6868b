"""Options of the objective and its optimiser, and the built-in objectives and regression losses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from gflownet.errors import UserError
from gflownet.options import AT_LEAST_ONE, DECAY, NOT_NEGATIVE, POSITIVE, SHARE, Interval, option
from gflownet.plugins import BuiltIn, ExtensionPoint

BackwardName = Literal["uniform", "learned", "maxent", "tlm", "pessimistic"]
BACKWARD_NAMES: tuple[str, ...] = get_args(BackwardName)
SymmetryName = Literal["reward", "flows", "actions", "none"]
SYMMETRY_NAMES: tuple[str, ...] = get_args(SymmetryName)

_ROOM = "gflownet.objectives"
OBJECTIVES = ExtensionPoint(
    "algo.method",
    contract=f"{_ROOM}.base:Objective",
    options_key="algo.options",
    group="gflownet.objectives",
    built_in={
        "tb": BuiltIn(f"{_ROOM}.trajectory_balance:TrajectoryBalance", "trajectory balance"),
        "vargrad": BuiltIn(f"{_ROOM}.trajectory_balance:VarGrad", "trajectory balance, log Z estimated per batch"),
        "relative_tb": BuiltIn(f"{_ROOM}.relative:RelativeTrajectoryBalance", "posterior of a prior policy"),
        "order_preserving": BuiltIn(f"{_ROOM}.order_preserving:OrderPreserving", "learns the order of rewards"),
        "db": BuiltIn(f"{_ROOM}.detailed_balance:DetailedBalance", "detailed balance"),
        "fl_db": BuiltIn(f"{_ROOM}.detailed_balance:ForwardLookingDetailedBalance", "forward-looking db"),
        "modified_db": BuiltIn(f"{_ROOM}.detailed_balance:ModifiedDetailedBalance", "db where every state may stop"),
        "subtb": BuiltIn(f"{_ROOM}.sub_trajectory_balance:SubTrajectoryBalance", "sub-trajectory balance"),
        "fl_subtb": BuiltIn(
            f"{_ROOM}.sub_trajectory_balance:ForwardLookingSubTrajectoryBalance", "forward-looking subtb"
        ),
        "fm": BuiltIn(f"{_ROOM}.flow_matching:FlowMatching", "flow matching"),
        "soft_q": BuiltIn(f"{_ROOM}.soft_q:SoftQ", "soft Q-learning"),
        "munchausen": BuiltIn(f"{_ROOM}.soft_q:Munchausen", "Munchausen soft Q-learning"),
        "a2c": BuiltIn(f"{_ROOM}.actor_critic:AdvantageActorCritic", "advantage actor-critic"),
        "ppo": BuiltIn(f"{_ROOM}.actor_critic:ProximalPolicyOptimization", "proximal policy optimisation"),
        "max_likelihood": BuiltIn(f"{_ROOM}.max_likelihood:MaxLikelihood", "imitates replayed or offline graphs"),
    },
)
REGRESSIONS = ExtensionPoint(
    "algo.regression",
    contract=f"{_ROOM}.base:Regression",
    built_in={
        "squared": BuiltIn(f"{_ROOM}.base:Squared", "t^2"),
        "half": BuiltIn(f"{_ROOM}.base:Half", "t^2 / 2"),
        "huber": BuiltIn(f"{_ROOM}.base:Huber", "linear beyond 1"),
        "shifted_cosh": BuiltIn(f"{_ROOM}.base:ShiftedCosh", "e^t + e^-t - 2"),
        "linex": BuiltIn(f"{_ROOM}.base:Linex", "e^-t + t - 1"),
    },
)


@dataclass
class TrajectoryBalanceConfig:
    """Options of trajectory balance and the other objectives with a learned log Z."""

    Z_learning_rate: float = option(0.1, "learning rate of log Z, usually larger than that of the network", POSITIVE)


@dataclass
class SubTrajectoryBalanceConfig:
    """Options of sub-trajectory balance."""

    decay: float = option(0.9, "lambda: a sub-trajectory of n steps has weight lambda^n", Interval(0))


@dataclass
class RelativeConfig:
    """Options of relative trajectory balance."""

    prior: str = option("", "log_dir of the run whose policy is the prior; empty: uniform over legal actions")


@dataclass
class TeacherConfig:
    """Options of the adaptive teacher, a second policy that samples where the first one is wrong."""

    share: float = option(0.0, "share of the trajectories per step that the teacher samples; 0: no teacher", DECAY)
    mixing: float = option(0.5, "alpha: weight of the log-reward in the teacher's log-reward", NOT_NEGATIVE)


@dataclass
class QGFNConfig:
    """Options of action values (QGFN), trained with the policy for greedier sampling at inference."""

    use: bool = option(False, "train action values with the policy")


@dataclass
class AlgoConfig:
    """The objective and the trajectories it is trained on."""

    method: str = option("tb", OBJECTIVES.help("objective"))
    options: Any = option({}, "options of your own objective, algo.options.NAME=VALUE")
    num_from_policy: int = option(16, "trajectories sampled per training step", AT_LEAST_ONE)
    num_updates: int = option(
        1,
        "optimiser steps per training step, each on the step's trajectories and its own draw of remembered "
        "batches (replay.num_batches)",
        AT_LEAST_ONE,
    )
    merge_isomorphic: bool = option(
        False,
        "evaluate the policy once per isomorphism class of the states of an update; same loss, less time "
        "where many trajectories meet in few classes",
    )
    train_random_action_prob: float = option(
        0.01, "epsilon: probability that a training action is drawn uniformly", SHARE
    )
    sampling_temperature: float = option(
        1.0, "divisor of the policy's logits during sampling: above 1 is more uniform", POSITIVE
    )
    backward_policy: BackwardName = option(
        "uniform",
        "P_B: uniform over legal backward actions; or heads of the policy network trained by the objective (learned), "
        "for maximum entropy (maxent), on trajectories of the policy (tlm) or on all sampled ones (pessimistic)",
    )
    regression: str = option("squared", REGRESSIONS.help("loss of an imbalance t"))
    sampling_tau: float = option(
        0.0, "sample from a moving average of the policy with this decay; 0: from the policy itself", DECAY
    )
    symmetry: SymmetryName = option(
        "reward",
        "how p(x) ~ R(x) is reached: rewards (with flows: every state flow) multiplied by the number of automorphisms, "
        "equivalent actions counted as one (actions), or no correction: p(x) ~ R(x) / |Aut(x)| (none)",
    )
    tb: TrajectoryBalanceConfig = field(default_factory=TrajectoryBalanceConfig)
    subtb: SubTrajectoryBalanceConfig = field(default_factory=SubTrajectoryBalanceConfig)
    relative: RelativeConfig = field(default_factory=RelativeConfig)
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    qgfn: QGFNConfig = field(default_factory=QGFNConfig)


@dataclass
class OptimizerConfig:
    """The optimiser of the policy network."""

    opt: Literal["adam", "adamw", "sgd", "muon"] = option(
        "adam", "optimiser: adam, adamw, sgd, or muon (for matrices; adam for the rest)"
    )
    learning_rate: float = option(1e-3, "learning rate of the policy network", POSITIVE)
    schedule: Literal["halving", "linear", "cosine", "constant"] = option(
        "halving",
        "learning-rate schedule: halving (every opt.lr_decay steps), constant, or constant for a third of the run and "
        "then down to 0 at num_training_steps: linear, cosine",
    )
    lr_decay: float = option(20_000, "halving: steps in which the learning rate halves", POSITIVE)
    warmup: int = option(0, "steps in which the learning rate rises linearly from 0", NOT_NEGATIVE)
    clip_grad_param: float = option(10.0, "largest norm of the gradient", POSITIVE)
    precision: Literal["float32", "bfloat16"] = option(
        "float32", "precision of the policy's matrix products: float32, or bfloat16 (mixed precision)"
    )


def num_taught(algo: AlgoConfig) -> int:
    """Return the number of trajectories per step that the teacher samples."""
    return round(algo.teacher.share * algo.num_from_policy)


def check_algo(config: AlgoConfig) -> None:
    """Raise UserError for a share of the teacher that leaves it, or the policy, without a trajectory."""
    share = config.teacher.share
    if share and not 0 < num_taught(config) < config.num_from_policy:
        raise UserError(
            "algo.teacher.share: expected at least one trajectory for the teacher and one for the policy with "
            f"algo.num_from_policy={config.num_from_policy}, got {share}"
        )
