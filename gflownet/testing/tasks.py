"""Contract of tasks with the trainer and the evaluator."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import torch

from gflownet.config import command_config
from gflownet.envs.config import ENVIRONMENTS
from gflownet.evaluation.execution import outcome_of
from gflownet.evaluation.presentation import references_of
from gflownet.evaluation.store.rows import EvaluationStatus
from gflownet.evaluation.task import GFNTask, Score
from gflownet.learning.sampler import uniform_states
from gflownet.mdp.environment import Environment
from gflownet.run.extensions import load_extensions, validate
from gflownet.search.proposals import check_space
from gflownet.testing.contract import Contract, ContractError, expect
from gflownet.training.random_states import candidate_seed


def check_task(name: str, *options: str) -> None:
    """Check a task on a random graph of its search space.

    Args:
        name: entry point, module:Class or built-in name.
        options: `a.b=c` of the run, for example for a small space; `--config` is that of the task.

    Raises:
        ContractError: the first rule that the task breaks, in one line.
    """
    config = command_config(None, [f"task={name}", *options])
    validate(config)
    config, extensions = load_extensions(config)
    TaskContract(extensions.task(config)).run_all()


class TaskContract(Contract):
    """Checks of one task on a random object of the environment in its config."""

    def __init__(self, task: GFNTask, *, seed: int = 1) -> None:
        self.task, self.seed = task, seed
        self.subject = type(task).__name__

    @cached_property
    def env(self) -> Environment:
        """The environment of a run, with its checks."""
        config: Any = self.task.config
        sizes = {"input_sizes": self.task.input_sizes, "output_sizes": self.task.output_sizes}
        num_cond_dim = self.task.num_cond_dim
        return ENVIRONMENTS.load(config.env.name).from_config(config.env, **sizes, num_cond_dim=num_cond_dim).env

    @cached_property
    def graph(self) -> Any:
        """A terminal object of a random walk."""
        generator = torch.Generator().manual_seed(self.seed)
        return self.env.terminal(uniform_states(self.env, 1, generator=generator), 0)

    def check_search_space_has_a_choice(self) -> None:
        try:
            check_space(self.env)
        except ValueError as error:
            raise ContractError(str(error)) from None

    def check_score_is_valid(self) -> None:
        outcome = outcome_of(self.task, self.task.evaluate(self.graph, seed=1), 0.0)
        expect(outcome.status is EvaluationStatus.OK, outcome.error or "")

    def check_seed_alone_decides_the_score(self) -> None:
        task, graph = self.task, self.graph
        seed = candidate_seed(0, graph.canonical_hash())
        torch.manual_seed(1)
        first, *_ = task.evaluate_many([graph], seeds=[seed])
        torch.manual_seed(2)
        other, again = task.evaluate_many([graph, type(graph).from_dict(graph.to_dict())], seeds=[seed + 1, seed])
        expect(
            first == again, f"expected equal scores of equal graphs and seeds, got {_shown(first)} and {_shown(again)}"
        )
        (fresh,) = type(task)(task.config).evaluate_many([graph], seeds=[seed])
        expect(
            first == fresh, f"expected the score of a new instance to be equal, got {_shown(first)} and {_shown(fresh)}"
        )
        expect(isinstance(other, Score), f"expected a Score with another seed, got {other!r}")

    def check_evaluation_changes_neither_graph_nor_generator(self) -> None:
        before, state = self.graph.to_dict(), torch.get_rng_state()
        list(self.task.evaluate_many([self.graph], seeds=[3]))
        expect(self.graph.to_dict() == before, "expected evaluate to leave the graph as it is, got a changed one")
        same = torch.equal(torch.get_rng_state(), state)
        expect(same, "expected evaluate_many to leave torch's global generator as it is, got another state")

    def check_test_score_is_a_number_or_absent(self) -> None:
        value = self.task.test(self.graph, seed=1)
        valid = value is None or math.isfinite(value)
        expect(valid, f"expected test to return a finite number or None, got {value!r}")
        expect(value == self.task.test(self.graph, seed=1), "expected equal test scores with equal seeds")

    def check_log_reward_grows_with_the_score(self) -> None:
        task, vocabulary = self.task, self.env.vocabulary
        if task.config.cond.limit.metric is not None:
            task.use_limits(vocabulary.limits, smallest=self.env.smallest_sizes, caps=vocabulary.caps)
        conditioning = task.sample_conditioning(2, generator=torch.Generator().manual_seed(0))
        shape, expected = tuple(conditioning.encoding.shape), (2, task.num_cond_dim)
        expect(shape == expected, f"expected conditioning {list(expected)}, got {list(shape)}")
        worse, better = task.log_reward(torch.tensor([0.3, 0.6]), conditioning).tolist()
        expect(worse < better <= 0, f"expected log-rewards of 0.3 < 0.6 to grow up to 0, got {worse} and {better}")
        floored = task.log_reward(torch.tensor([0.0, -1.0]), conditioning)
        expect(torch.isfinite(floored).all(), f"expected finite log-rewards of scores <= 0, got {floored.tolist()}")

    def check_cheap_score_is_independent_of_the_seed(self) -> None:
        """The final stage leaves out tasks without noise, because new seeds give the same score."""
        if not self.task.is_noisy:
            first, second = (self.task.evaluate(self.graph, seed=seed) for seed in (1, 2))
            expect(first == second, "expected a task without is_noisy to ignore the seed, got different scores")

    def check_references_have_one_score_per_seed(self) -> None:
        for reference in references_of(self.task, seeds=[5]):
            num = len(reference.validation), len(reference.test)
            expect(num == (1, 1), f"{reference.name}: expected one validation and test score per seed, got {num}")
            value = reference.validation[0]
            expect(0 < value <= self.task.max_score, f"{reference.name}: expected a score > 0, got {value}")


def _shown(result: Any) -> str:
    return str(result.value) if isinstance(result, Score) else repr(result)
