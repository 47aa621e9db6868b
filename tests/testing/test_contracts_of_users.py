"""Planted bugs in classes of users: each contract reports its bug in one plain message."""

from __future__ import annotations

import re
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch

import gflownet
from gflownet.envs.slots import HypergridEnv
from gflownet.errors import UserError
from gflownet.evaluation.task import GFNTask, Score
from gflownet.mdp.action import GraphActionType
from gflownet.mdp.environment import Rule
from gflownet.objectives import TrajectoryBalance, total_loss
from gflownet.operations.operation import Example, Operation, single_input
from gflownet.operations.tensor_shape import Shape
from gflownet.policy.mlp import MLPPolicy
from gflownet.search import loop
from gflownet.search.baselines import RandomSearch
from gflownet.testing import (
    ContractError,
    check_environment,
    check_objective,
    check_operation,
    check_policy,
    check_search_method,
    check_task,
)

SMALL = ("env.max_hidden_nodes=1", "env.max_edges=3")


class Honest(GFNTask):
    input_sizes, output_sizes = (2,), (1,)

    def evaluate(self, graph: Any, *, seed: int) -> Score:
        return Score(1 / (1 + len(graph.edges)), metrics={"edges": float(len(graph.edges))})


class Forgetful(Honest):
    num_calls = 0

    def evaluate(self, graph: Any, *, seed: int) -> Score:
        type(self).num_calls += 1
        return Score(1 / type(self).num_calls)


class Meddling(Honest):
    def evaluate(self, graph: Any, *, seed: int) -> Score:
        graph.add_node(max(graph.nodes) + 1, "hidden", output_size=2)
        return Score(0.5)


class Raising(Honest):
    def evaluate(self, graph: Any, *, seed: int) -> Score:
        return Score({}["missing"])


class Negative(Honest):
    def evaluate(self, graph: Any, *, seed: int) -> Score:
        return Score(-1.0)


class NoLayout(Honest):
    input_sizes = ((1, 48),)


class NoDirection(Honest):
    objectives = ("edges", "size")
    costs = MappingProxyType({"size": 2.0})

    def evaluate(self, graph: Any, *, seed: int) -> Score:
        edges = len(graph.edges)
        return Score(0.0, metrics={"edges": edges + 2, "size": edges})  # a score of 0 and integers are valid


TASKS = {
    Forgetful: r"Forgetful: expected equal scores of equal graphs and seeds, got .* and .*",
    Meddling: r"Meddling: expected evaluate to leave the graph as it is, got a changed one",
    Raising: r"Raising: expected no exception, got KeyError: 'missing' \(check_score_is_valid\)",
    Negative: r"Negative: expected a score in \[0, 1e\+06\], got -1.0 \(check_score_is_valid\)",
    NoLayout: r"NoLayout: task: expected input_sizes with the layout of two axes, got \(1, 48\): gflownet.Shape.of",
    NoDirection: r"NoDirection: objective edges: expected its direction, NoDirection.costs = .* above 1, ",
}


OBJECTIVES = "evaluation.objectives=[edges,size]"


@pytest.mark.parametrize("task", TASKS)
def test_bug_in_a_task_is_reported(task):
    objectives = (OBJECTIVES,) if task is NoDirection else ()
    with pytest.raises(ContractError, match=f"^{TASKS[task]}") as caught:
        check_task(f"{__name__}:{task.__name__}", *SMALL, *objectives)
    assert "\n" not in str(caught.value)


def test_task_is_accepted_by_its_checks_as_by_a_run():
    check_task(f"{__name__}:NoDirection", *SMALL)  # a score of 0, and metrics that are integers
    with pytest.raises(ContractError, match=r"Honest: env: expected a search space of two or more, got 1; .*conv1d"):
        check_task(f"{__name__}:Honest", "env.name=operation_graph", "env.operation_graph.operations=[conv1d]")


def test_correct_task_passes():
    check_task(f"{__name__}:Honest", *SMALL)


class WrongBackward(HypergridEnv):
    """A coordinate that is not lowered to 0."""

    def backward_rules(self, states: Any) -> Any:
        rules = super().backward_rules(states)
        first = next(iter(rules))
        mask = torch.ones(1, states.node_attr.shape[1], 1, dtype=torch.bool)
        mask[:, 0] = False
        return {**rules, first: [*rules[first], Rule("the first coordinate stays", mask)]}


class DeadEnd(HypergridEnv):
    """Nothing stops at the last corner."""

    def forward_rules(self, states: Any) -> Any:
        rules = super().forward_rules(states)
        num_moves = sum(1 for kind in rules if kind != GraphActionType.Stop)
        assert num_moves
        return {**rules, GraphActionType.Stop: [Rule("never", torch.zeros(1, 1, 1, dtype=torch.bool))]}


class ForgetsAState(HypergridEnv):
    """The list of states lacks the last one, which actions reach."""

    def every_state(self) -> Any:
        states = super().every_state()
        return None if states is None else states[:-1]


ENVIRONMENTS = {
    ForgetsAState: r"ForgetsAState: list of every_state, 1 time, first \[.*\] is missing",
    WrongBackward: "WrongBackward: backward mask hides a legal removal, 6 times, first RemoveNodeAttr",
    DeadEnd: "DeadEnd: illegal state, 2 times, first SetNodeAttr.*violates: some forward action is legal",
}


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_bug_in_an_environment_is_reported(env):
    with pytest.raises(ContractError, match=f"^{ENVIRONMENTS[env]}") as caught:
        check_environment(env(2, 3))
    assert "\n" not in str(caught.value)


def test_correct_environment_passes():
    check_environment(HypergridEnv(2, 3))


class Detached(TrajectoryBalance):
    uses_regression = False

    def loss(self, policy: Any, trajectories: Any) -> Any:
        steps = self.reader.read(policy, trajectories)
        imbalance = steps.log_ratio().detach() + self.log_z(trajectories.conditioning)
        return total_loss(imbalance.square().mean(), steps, {})


def test_bug_in_an_objective_is_reported():
    with pytest.raises(ContractError, match=r"^.*:Detached: expected a gradient of the logits of actions, got none"):
        check_objective(f"{__name__}:Detached")


class Unconditional(MLPPolicy):
    def encode(self, batch: Any, conditioning: Any) -> Any:
        return super().encode(batch, torch.zeros_like(conditioning))


def test_bug_in_a_policy_is_reported():
    expected = r"^.*:Unconditional on HypergridEnv: expected the conditioning feature 0 to change the output"
    with pytest.raises(ContractError, match=expected):
        check_policy(f"{__name__}:Unconditional", HypergridEnv(2, 3))


class Miscounted(Operation):
    """A linear layer that counts no bias."""

    examples = (Example((Shape.of(4),)),)

    @classmethod
    def infer_shape(cls, inputs: Any, settings: Any) -> Shape:
        return single_input(inputs, "vector")

    @classmethod
    def build(cls, inputs: Any, settings: Any) -> torch.nn.Module:
        return torch.nn.Linear(4, 4)

    @classmethod
    def num_parameters(cls, inputs: Any, settings: Any) -> int:
        return 16


def test_bug_in_an_operation_is_reported():
    expected = r"^.*:Miscounted: expected num_parameters 20 as of the module, got 16 \(check_output_shape"
    with pytest.raises(ContractError, match=expected):
        check_operation(f"{__name__}:Miscounted")


class Global(RandomSearch):
    """Proposals of a generator that the seed does not decide."""

    num_calls = 0

    def propose(self, call: int, num: int) -> Any:
        type(self).num_calls += 1
        return super().propose(type(self).num_calls, num)


def test_bug_in_a_search_method_is_reported(monkeypatch):
    monkeypatch.setattr(loop, "_MAX_REPEATS", 20)
    with pytest.raises(ContractError, match=r"^.*:Global: expected equal proposals with equal seeds, got different"):
        check_search_method(f"{__name__}:Global")
    check_search_method("random")


def test_unknown_class_is_a_user_error():
    with pytest.raises(UserError, match="task: expected one of"):
        check_task("diggits")


def test_package_does_not_import_pytest():
    """The contracts run without the extra for tests; a module that imports pytest inside a function counts too."""
    imports = re.compile(r"^\s*(import|from) _?pytest\b", re.MULTILINE)
    assert imports.search(Path(__file__).read_text())
    package = Path(gflownet.__file__).parent
    assert [path for path in package.rglob("*.py") if imports.search(path.read_text())] == []
