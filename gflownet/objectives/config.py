"""Options of the objective and of the optimiser that minimises it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from gflownet.options import AT_LEAST_ONE, DECAY, NOT_NEGATIVE, POSITIVE, SHARE, Interval, option

BackwardName = Literal["uniform", "learned", "maxent", "tlm", "pessimistic"]
SymmetryName = Literal["reward", "flows", "actions", "none"]
Weighting = Literal["within", "geometric", "equal_within", "equal"]


@dataclass
class TrajectoryBalanceConfig:
    """Options of trajectory balance and of whatever else learns log Z."""

    Z_learning_rate: float = option(0.1, "learning rate of log Z, usually larger than that of the network", POSITIVE)


@dataclass
class SubTrajectoryBalanceConfig:
    """Options of sub-trajectory balance."""

    decay: float = option(0.9, "lambda: a sub-trajectory of n steps weighs lambda^n", Interval(0))
    weighting: Weighting = option(
        "within",
        "within: weights lambda^n sum to one in each trajectory; geometric: over the whole batch; "
        "equal_within, equal: the same with equal weights",
    )


@dataclass
class SoftQConfig:
    """Options of Munchausen soft Q-learning."""

    munchausen: float = option(0.15, "alpha: share of the log-policy added to the reward", DECAY)
    lowest_log_policy: float = option(-25.0, "where the log-policy in the reward is cut off", Interval(-math.inf, 0))


@dataclass
class ActorCriticConfig:
    """Options of a2c and ppo."""

    entropy: float = option(0.01, "weight of the policy's entropy", NOT_NEGATIVE)
    value_weight: float = option(0.5, "weight of the value function's loss", NOT_NEGATIVE)
    clip: float = option(0.2, "ppo: how far the probability ratio may leave 1", POSITIVE)
    num_epochs: int = option(4, "ppo: optimiser steps per batch of trajectories", AT_LEAST_ONE)


@dataclass
class RelativeConfig:
    """Options of relative trajectory balance."""

    prior: str = option("", "log_dir of the run whose policy is the prior; empty: uniform over legal actions")


@dataclass
class TeacherConfig:
    """Options of the adaptive teacher, a second policy that samples where the first one is wrong."""

    share: float = option(0.0, "share of a step's trajectories that the teacher samples; 0: there is none", DECAY)
    weight: float = option(
        19.0, "C: what the policy samples too rarely counts 1 + C times in the teacher's reward", NOT_NEGATIVE
    )
    mixing: float = option(0.5, "alpha: how much of the log-reward itself is in the teacher's log-reward", NOT_NEGATIVE)


@dataclass
class QGFNConfig:
    """Options of action values, learned beside the policy to sample more greedily at inference."""

    use: bool = option(False, "learn action values beside the policy")
    variant: Literal["p_greedy", "p_quantile", "p_of_max"] = option(
        "p_of_max",
        "how they make it greedier: p_greedy (take the best action with probability p), p_quantile (leave "
        "out those below the p-quantile) or p_of_max (leave out those worth less than p times the best)",
    )
    p: float = option(0.9, "how greedy validations are: from 0, not at all, to 1", SHARE)
    num_steps: int = option(
        25, "n of the n-step targets; as long as trajectories, they are the outcomes that were seen", AT_LEAST_ONE
    )
    learning_rate: float = option(1e-3, "learning rate of the network of action values", POSITIVE)
    decay: float = option(0.95, "of the moving average that values the states n steps on", DECAY)


@dataclass
class AlgoConfig:
    """What is learned from which trajectories."""

    method: str = option(
        "tb",
        "the objective: tb, vargrad, db, modified_db, subtb, fl_db, fl_subtb, fm, relative_tb, "
        "order_preserving, soft_q, munchausen, a2c, ppo, max_likelihood, or module:Class of your own",
    )
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
        1.0, "the policy's logits are divided by it to sample: above 1 is more uniform", POSITIVE
    )
    backward_policy: BackwardName = option(
        "uniform",
        "P_B: uniform over what can be undone, or heads of the same network that are learned with P_F, for "
        "maximum entropy, from the policy's own trajectories (tlm) or from all those seen (pessimistic)",
    )
    regression: Literal["squared", "half", "huber", "shifted_cosh", "linex"] = option(
        "squared", "how a balance that is off by t is penalised"
    )
    sampling_tau: float = option(
        0.0, "sample from a moving average of the policy with this decay; 0 samples from it", DECAY
    )
    symmetry: SymmetryName = option(
        "reward",
        "how p(x) ~ R(x) comes about: rewards (and, with flows, every state's flow) scaled by the number "
        "of automorphisms, equivalent actions counted as one, or not at all: p(x) ~ R(x) / |Aut(x)|",
    )
    tb: TrajectoryBalanceConfig = field(default_factory=TrajectoryBalanceConfig)
    subtb: SubTrajectoryBalanceConfig = field(default_factory=SubTrajectoryBalanceConfig)
    soft_q: SoftQConfig = field(default_factory=SoftQConfig)
    actor_critic: ActorCriticConfig = field(default_factory=ActorCriticConfig)
    relative: RelativeConfig = field(default_factory=RelativeConfig)
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    qgfn: QGFNConfig = field(default_factory=QGFNConfig)


@dataclass
class OptimizerConfig:
    """How the policy network is optimised."""

    opt: Literal["adam", "adamw", "sgd", "muon"] = option(
        "adam", "optimiser: adam, adamw, sgd, or muon (of matrices; adam of the rest)"
    )
    learning_rate: float = option(1e-3, "learning rate of the policy network", POSITIVE)
    weight_decay: float = option(0.0, "weight decay of the policy network", NOT_NEGATIVE)
    momentum: float = option(0.9, "momentum of sgd and muon, beta1 of adam and adamw", DECAY)
    adam_eps: float = option(1e-8, "epsilon of adam and adamw", POSITIVE)
    schedule: Literal["halving", "linear", "cosine", "constant"] = option(
        "halving",
        "learning-rate schedule: halving (every opt.lr_decay steps), constant, or constant for "
        "opt.constant_share of the run and then down to 0 at num_training_steps: linear, cosine",
    )
    lr_decay: float = option(20_000, "halving: steps in which the learning rate halves", POSITIVE)
    constant_share: float = option(1 / 3, "linear, cosine: share of the training steps before the rate falls", DECAY)
    warmup: int = option(0, "steps in which the learning rate rises linearly from 0", NOT_NEGATIVE)
    clip_grad_type: Literal["norm", "value", "none"] = option(
        "norm", "clip the gradient's global norm, its values, or not at all"
    )
    clip_grad_param: float = option(10.0, "the norm or the value to clip at", POSITIVE)
    precision: Literal["float32", "bfloat16"] = option(
        "float32", "of the policy's matrix products: float32, or bfloat16 (mixed precision)"
    )
    num_micro_batches: int = option(
        1,
        "parts in which a step's states are shown to the policy, again for the gradient: less memory, the "
        "same gradient, a forward pass more",
        AT_LEAST_ONE,
    )


OBJECTIVES = {
    "tb": "gflownet.objectives.trajectory_balance:TrajectoryBalance",
    "vargrad": "gflownet.objectives.trajectory_balance:VarGrad",
    "relative_tb": "gflownet.objectives.relative:RelativeTrajectoryBalance",
    "order_preserving": "gflownet.objectives.order_preserving:OrderPreserving",
    "db": "gflownet.objectives.detailed_balance:DetailedBalance",
    "fl_db": "gflownet.objectives.detailed_balance:ForwardLookingDetailedBalance",
    "modified_db": "gflownet.objectives.detailed_balance:ModifiedDetailedBalance",
    "subtb": "gflownet.objectives.sub_trajectory_balance:SubTrajectoryBalance",
    "fl_subtb": "gflownet.objectives.sub_trajectory_balance:ForwardLookingSubTrajectoryBalance",
    "fm": "gflownet.objectives.flow_matching:FlowMatching",
    "soft_q": "gflownet.objectives.soft_q:SoftQ",
    "munchausen": "gflownet.objectives.soft_q:Munchausen",
    "a2c": "gflownet.objectives.actor_critic:AdvantageActorCritic",
    "ppo": "gflownet.objectives.actor_critic:ProximalPolicyOptimization",
    "max_likelihood": "gflownet.objectives.max_likelihood:MaxLikelihood",
}

# Objectives under which every trajectory has an imbalance that a teacher can look for.
TAUGHT = ("tb", "vargrad", "db", "subtb")


def num_taught(algo: AlgoConfig) -> int:
    """Return how many of a step's trajectories the teacher samples."""
    return round(algo.teacher.share * algo.num_from_policy)
