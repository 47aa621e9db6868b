"""Options of the search, its methods and its surrogates."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gflownet.options import AT_LEAST_ONE, NOT_NEGATIVE, POSITIVE, Interval, option
from gflownet.plugins import BuiltIn, ExtensionPoint

# The method that trains the policy on the scores themselves.
GFLOWNET = "gflownet"
# Chosen by the task and the options of the run (gflownet.run.extensions.automatic_method).
AUTO = "auto"
# Origins of proposed candidates (ProposalOrigin), with their words.
ORIGINS = {
    "design": "first design",
    "mutation": "mutations",
    "policy": "policy",
    "random": "random",
    "sampler": "sampler",
    "earlier": "earlier runs",
    "start": "env.start and its edits",
}
_ROOM = "gflownet.search"
SEARCH_METHODS = ExtensionPoint(
    "search.method",
    contract=f"{_ROOM}.method:SearchMethod",
    options_key="search.options",
    built_in={
        GFLOWNET: BuiltIn(f"{_ROOM}.gflownet:GFlowNet", "the policy, trained on scores"),
        "random": BuiltIn(f"{_ROOM}.baselines:RandomSearch", "uniformly random actions"),
        "evolution": BuiltIn(f"{_ROOM}.baselines:RegularizedEvolution", "mutations of the best of the youngest"),
        "local_search": BuiltIn(f"{_ROOM}.baselines:FirstImprovement", "first better neighbour, with restarts"),
        "surrogate": BuiltIn(f"{_ROOM}.surrogate_search:SurrogateSearch", "predictions of a surrogate"),
        "surrogate_gflownet": BuiltIn(
            f"{_ROOM}.amortised_search:SurrogateGFlowNet", "surrogate, and a policy trained on its acquisition"
        ),
    },
)
SURROGATES = ExtensionPoint(
    "search.surrogate.name",
    contract=f"{_ROOM}.surrogate:Surrogate",
    options_key="search.surrogate.options",
    built_in={
        "gaussian_process": BuiltIn(
            f"{_ROOM}.gaussian_process:GaussianProcess", "Gaussian process on Weisfeiler-Lehman labels and on numbers"
        )
    },
)
_METHOD_HELP = SEARCH_METHODS.help("search method").replace(
    ": ", f": {AUTO} (surrogate for scores that depend on a training, {GFLOWNET} for others), ", 1
)


@dataclass
class SurrogateConfig:
    """The model that predicts the score of an architecture from its graph."""

    name: str = option("gaussian_process", SURROGATES.help("model"))
    options: Any = option({}, "options of the model, search.surrogate.options.NAME=VALUE")


@dataclass
class AcquisitionConfig:
    """The value of evaluating an architecture: its expected improvement."""

    beta: float = option(4.0, "candidates are sampled in proportion to acquisition^beta; 1000: the best", POSITIVE)


@dataclass
class ProposalConfig:
    """The candidates from which a batch is chosen."""

    num_mutations: int = option(
        64, "mutations of the best architectures per round, and of each generation", NOT_NEGATIVE
    )
    updates_per_evaluation: float = option(
        6.0, "training steps of the policy on the acquisition per evaluation", NOT_NEGATIVE
    )


@dataclass
class RandomConfig:
    """Random architectures: search.method=random, the reference of a run, and the first design of a surrogate."""

    even_share: float = option(
        0.75,
        "share drawn evenly over size and its logarithm, where the task knows parameters; the rest: uniform actions",
        Interval(0, 1),
    )


@dataclass
class SamplerConfig:
    """The training of the sampler after a search, and its verification."""

    num_updates: int = option(
        90,
        "updates of maximum likelihood on trajectories into good candidates, then as many of the objective",
        NOT_NEGATIVE,
    )
    num_verified: int = option(
        8, "new samples that are trained, within budget.evaluations and at most a tenth of it; 0: none", NOT_NEGATIVE
    )


@dataclass
class SearchConfig:
    """The search method; all use the environment, the store, the budget and the executor of the run."""

    method: str = option(AUTO, _METHOD_HELP)
    options: Any = option({}, "options of the method, search.options.NAME=VALUE")
    batch_size: int = option(
        0,
        "candidates proposed together; 0: one per place of the executor; for a surrogate and trainings a 24th of the "
        "search's evaluations, rounded up to a multiple of the places, at most 8 or one per place",
        NOT_NEGATIVE,
    )
    prior: list[str] = option([], "folders of earlier runs, or their stores, from whose evaluations a surrogate starts")
    num_initial: int = option(10, "candidates before the first prediction, unlike each other", AT_LEAST_ONE)
    train_sampler: bool = option(True, "train the policy on predicted scores after the search")
    width: int = option(
        0,
        "candidates without a result at the same time; 0: twice search.batch_size where scores depend on a training, "
        "else, and with search.method=gflownet, as many as are proposed together",
        NOT_NEGATIVE,
    )
    patience: int = option(
        0,
        "evaluations without a better score after which the search ends, counted after the initial candidates of a "
        "surrogate; 0: no end",
        NOT_NEGATIVE,
    )
    random: RandomConfig = field(default_factory=RandomConfig)
    surrogate: SurrogateConfig = field(default_factory=SurrogateConfig)
    acquisition: AcquisitionConfig = field(default_factory=AcquisitionConfig)
    proposals: ProposalConfig = field(default_factory=ProposalConfig)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
