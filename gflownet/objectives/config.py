"""Options of the objective and of the optimiser that minimises it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass
class TrajectoryBalanceConfig:
    """Options of trajectory balance (Malkin et al. 2022)."""

    Z_learning_rate: float = field(
        default=0.1, metadata={"help": "learning rate of log Z, usually larger than that of the network"}
    )


@dataclass
class AlgoConfig:
    """What is learned from which trajectories."""

    method: str = field(default="tb", metadata={"help": "the objective: tb, or module:Class of your own"})
    num_from_policy: int = field(default=16, metadata={"help": "trajectories sampled per training step"})
    train_random_action_prob: float = field(
        default=0.01, metadata={"help": "epsilon: probability that a training action is drawn uniformly"}
    )
    backward_policy: Literal["uniform", "learned"] = field(
        default="uniform",
        metadata={"help": "P_B: uniform over what can be undone, or learned by heads of the same network"},
    )
    sampling_tau: float = field(
        default=0.0, metadata={"help": "sample from a moving average of the policy with this decay; 0 samples from it"}
    )
    correct_symmetries: bool = field(
        default=True, metadata={"help": "scale rewards by the number of automorphisms, so that p(x) ~ R(x)"}
    )
    tb: TrajectoryBalanceConfig = field(default_factory=TrajectoryBalanceConfig)


@dataclass
class OptimizerConfig:
    """How the policy network is optimised."""

    opt: Literal["adam", "adamw", "sgd"] = field(default="adam", metadata={"help": "optimiser: adam, adamw or sgd"})
    learning_rate: float = field(default=1e-3, metadata={"help": "learning rate of the policy network"})
    weight_decay: float = field(default=0.0, metadata={"help": "weight decay of the policy network"})
    momentum: float = field(default=0.9, metadata={"help": "momentum of sgd, beta1 of adam and adamw"})
    adam_eps: float = field(default=1e-8, metadata={"help": "epsilon of adam and adamw"})
    lr_decay: float = field(default=20_000, metadata={"help": "steps after which the learning rate has halved"})
    clip_grad_type: Literal["norm", "value", "none"] = field(
        default="norm", metadata={"help": "clip the gradient's global norm, its values, or not at all"}
    )
    clip_grad_param: float = field(default=10.0, metadata={"help": "the norm or the value to clip at"})
    precision: Literal["float32", "bfloat16"] = field(
        default="float32", metadata={"help": "of the policy's matrix products: float32, or bfloat16 (mixed precision)"}
    )
    num_micro_batches: int = field(
        default=1,
        metadata={"help": "parts that a step's trajectories are differentiated in: less memory, the same gradient"},
    )


OBJECTIVES = {"tb": "gflownet.objectives.trajectory_balance:TrajectoryBalance"}
