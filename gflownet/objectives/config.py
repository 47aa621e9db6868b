"""Options of the objective and of the optimiser that minimises it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

BackwardName = Literal["uniform", "learned", "maxent", "tlm", "pessimistic"]
SymmetryName = Literal["reward", "flows", "actions", "none"]
Weighting = Literal["within", "geometric", "equal_within", "equal"]


@dataclass
class TrajectoryBalanceConfig:
    """Options of trajectory balance and of whatever else learns log Z."""

    Z_learning_rate: float = field(
        default=0.1, metadata={"help": "learning rate of log Z, usually larger than that of the network"}
    )


@dataclass
class SubTrajectoryBalanceConfig:
    """Options of sub-trajectory balance."""

    decay: float = field(default=0.9, metadata={"help": "lambda: a sub-trajectory of n steps weighs lambda^n"})
    weighting: Weighting = field(
        default="within",
        metadata={
            "help": "within: weights lambda^n sum to one in each trajectory; geometric: over the whole batch; "
            "equal_within, equal: the same with equal weights"
        },
    )


@dataclass
class SoftQConfig:
    """Options of Munchausen soft Q-learning."""

    munchausen: float = field(default=0.15, metadata={"help": "alpha: share of the log-policy added to the reward"})
    lowest_log_policy: float = field(default=-25.0, metadata={"help": "where the log-policy in the reward is cut off"})


@dataclass
class ActorCriticConfig:
    """Options of a2c and ppo."""

    entropy: float = field(default=0.01, metadata={"help": "weight of the policy's entropy"})
    value_weight: float = field(default=0.5, metadata={"help": "weight of the value function's loss"})
    clip: float = field(default=0.2, metadata={"help": "ppo: how far the probability ratio may leave 1"})
    num_epochs: int = field(default=4, metadata={"help": "ppo: optimiser steps per batch of trajectories"})


@dataclass
class RelativeConfig:
    """Options of relative trajectory balance."""

    prior: str = field(
        default="", metadata={"help": "log_dir of the run whose policy is the prior; empty: uniform over legal actions"}
    )


@dataclass
class TeacherConfig:
    """Options of the adaptive teacher, a second policy that samples where the first one is wrong."""

    share: float = field(
        default=0.0, metadata={"help": "share of a step's trajectories that the teacher samples; 0: there is none"}
    )
    weight: float = field(
        default=19.0,
        metadata={"help": "C: what the policy samples too rarely counts 1 + C times in the teacher's reward"},
    )
    mixing: float = field(
        default=0.5, metadata={"help": "alpha: how much of the log-reward itself is in the teacher's log-reward"}
    )


@dataclass
class QGFNConfig:
    """Options of action values, learned beside the policy to sample more greedily at inference."""

    use: bool = field(default=False, metadata={"help": "learn action values beside the policy"})
    variant: Literal["p_greedy", "p_quantile", "p_of_max"] = field(
        default="p_of_max",
        metadata={
            "help": "how they make it greedier: p_greedy (take the best action with probability p), p_quantile (leave "
            "out those below the p-quantile) or p_of_max (leave out those worth less than p times the best)"
        },
    )
    p: float = field(default=0.9, metadata={"help": "how greedy validations are: from 0, not at all, to 1"})
    num_steps: int = field(
        default=25,
        metadata={"help": "n of the n-step targets; as long as trajectories, they are the outcomes that were seen"},
    )
    learning_rate: float = field(default=1e-3, metadata={"help": "learning rate of the network of action values"})
    decay: float = field(default=0.95, metadata={"help": "of the moving average that values the states n steps on"})


@dataclass
class AlgoConfig:
    """What is learned from which trajectories."""

    method: str = field(
        default="tb",
        metadata={
            "help": "the objective: tb, vargrad, db, modified_db, subtb, fl_db, fl_subtb, fm, relative_tb, "
            "order_preserving, soft_q, munchausen, a2c, ppo, max_likelihood, or module:Class of your own"
        },
    )
    num_from_policy: int = field(default=16, metadata={"help": "trajectories sampled per training step"})
    num_updates: int = field(
        default=1,
        metadata={
            "help": "optimiser steps per training step, each on the step's trajectories and its own draw of remembered "
            "batches (replay.num_batches)"
        },
    )
    merge_isomorphic: bool = field(
        default=False,
        metadata={
            "help": "evaluate the policy once per isomorphism class of the states of an update; same loss, less time "
            "where many trajectories meet in few classes"
        },
    )
    train_random_action_prob: float = field(
        default=0.01, metadata={"help": "epsilon: probability that a training action is drawn uniformly"}
    )
    sampling_temperature: float = field(
        default=1.0, metadata={"help": "the policy's logits are divided by it to sample: above 1 is more uniform"}
    )
    backward_policy: BackwardName = field(
        default="uniform",
        metadata={
            "help": "P_B: uniform over what can be undone, or heads of the same network that are learned with P_F, for "
            "maximum entropy, from the policy's own trajectories (tlm) or from all those seen (pessimistic)"
        },
    )
    regression: Literal["squared", "half", "huber", "shifted_cosh", "linex"] = field(
        default="squared", metadata={"help": "how a balance that is off by t is penalised"}
    )
    sampling_tau: float = field(
        default=0.0, metadata={"help": "sample from a moving average of the policy with this decay; 0 samples from it"}
    )
    symmetry: SymmetryName = field(
        default="reward",
        metadata={
            "help": "how p(x) ~ R(x) comes about: rewards (and, with flows, every state's flow) scaled by the number "
            "of automorphisms, equivalent actions counted as one, or not at all: p(x) ~ R(x) / |Aut(x)|"
        },
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

    opt: Literal["adam", "adamw", "sgd", "muon"] = field(
        default="adam", metadata={"help": "optimiser: adam, adamw, sgd, or muon (of matrices; adam of the rest)"}
    )
    learning_rate: float = field(default=1e-3, metadata={"help": "learning rate of the policy network"})
    weight_decay: float = field(default=0.0, metadata={"help": "weight decay of the policy network"})
    momentum: float = field(default=0.9, metadata={"help": "momentum of sgd and muon, beta1 of adam and adamw"})
    adam_eps: float = field(default=1e-8, metadata={"help": "epsilon of adam and adamw"})
    schedule: Literal["halving", "linear", "cosine", "constant"] = field(
        default="halving",
        metadata={
            "help": "learning-rate schedule: halving (every opt.lr_decay steps), constant, or constant for "
            "opt.constant_share of the run and then down to 0 at num_training_steps: linear, cosine"
        },
    )
    lr_decay: float = field(default=20_000, metadata={"help": "halving: steps in which the learning rate halves"})
    constant_share: float = field(
        default=1 / 3, metadata={"help": "linear, cosine: share of the training steps before the rate falls"}
    )
    warmup: int = field(default=0, metadata={"help": "steps in which the learning rate rises linearly from 0"})
    clip_grad_type: Literal["norm", "value", "none"] = field(
        default="norm", metadata={"help": "clip the gradient's global norm, its values, or not at all"}
    )
    clip_grad_param: float = field(default=10.0, metadata={"help": "the norm or the value to clip at"})
    precision: Literal["float32", "bfloat16"] = field(
        default="float32", metadata={"help": "of the policy's matrix products: float32, or bfloat16 (mixed precision)"}
    )
    num_micro_batches: int = field(
        default=1,
        metadata={
            "help": "parts in which a step's states are shown to the policy, again for the gradient: less memory, the "
            "same gradient, a forward pass more"
        },
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
