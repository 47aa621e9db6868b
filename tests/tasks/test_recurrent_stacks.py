"""Stacks of recurrent layers: number of architectures, terminal objects, and errors."""

from typing import Any

import pytest

from gflownet.certificate.exact import enumerate_states
from gflownet.config import load_config
from gflownet.envs.config import RecurrentStackConfig
from gflownet.graphs.assignment import Assignment
from gflownet.rhn.config import StackLayer, read_stack
from tasks.recurrent_stacks import RecurrentStackEnv, choices_of
from tests.contracts.environments import recurrent_stacks


def num_stacks(config: RecurrentStackConfig) -> int:
    """Return the number of architectures by the rule of product."""
    num_rhn = len(config.projections) * len(config.betas) if "rhn" in config.cells else 0
    num_others = len(set(config.cells) - {"rhn"})
    sizes = len(config.ranks) * len(config.ratios)
    total = 0
    for depth in range(1, config.max_depth + 1):
        total_of_depth = (num_rhn + num_others) * (num_rhn + num_others + 1) ** (depth - 1)
        without_rhn = num_others * (num_others + 1) ** (depth - 1)
        total += without_rhn + (total_of_depth - without_rhn) * sizes
    return total * max(1, len(config.widths))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"ratios": [1.0, 2.0]},
        {"cells": ["rhn"], "max_depth": 3, "betas": ["on"], "ranks": [4]},
        {"cells": ["gru"], "max_depth": 3},
        {"cells": ["lstm", "gru"], "max_depth": 4, "widths": [8, 16, 32]},
    ],
)
def test_recurrent_stack_count_matches_rule_of_product(changes: dict) -> None:
    env = recurrent_stacks(**changes)
    graph = enumerate_states(env)
    stacks = [read_stack(env.terminal(graph.states, index).as_dict()) for index in graph.terminal.tolist()]
    options = {"ranks": [2, 4], "ratios": [2.0], "projections": ["up", "gate+down"], "max_depth": 2}
    assert len(set(stacks)) == len(stacks) == num_stacks(RecurrentStackConfig(**{**options, **changes}))


def test_read_stack_returns_chosen_layers() -> None:
    env = RecurrentStackEnv(RecurrentStackConfig(max_depth=4, widths=[8]))
    names = env.vocabulary.node_types
    choices = {"width": "8", "cell[1]": "rhn", "projections[1]": "gate+down", "beta[1]": "off", "rank": "4"}
    choices |= {"ratio": "1", "cell[2]": "repeat", "cell[3]": "lstm", "cell[4]": "gru"}
    stack = Assignment(names, tuple(choices.get(name, "none") for name in names))
    assert env.terminal(env.states_of([stack]), 0) == stack
    config = read_stack(stack.as_dict(), width=5, bottleneck=7)
    assert config.layers == (
        StackLayer("rhn", rank=4, projections=("gate", "down"), beta=False, ratio=1.0),
        StackLayer("repeat"),
        StackLayer("lstm"),
        StackLayer("gru"),
    )
    assert (config.width, config.bottleneck) == (8, 7)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"cell[1]": "gru", "rank": "2"}, "a choice was made that this stack does not have"),
        ({"cell[1]": "rhn", "rank": "2", "ratio": "2", "beta[1]": "on"}, "a choice is missing"),
        ({"cell[2]": "gru"}, "a choice is missing"),
        ({"cell[1]": "4"}, r"cell\[1\]: expected a value out of .*got '4'"),
        ({}, "a stack has at least one layer"),
        ({"cell[1]": "rnn"}, r"expected a value out of .*got 'rnn'"),
    ],
)
def test_recurrent_stack_invalid_object_raises(choices: dict, message: str) -> None:
    env = recurrent_stacks()
    names = env.vocabulary.node_types
    with pytest.raises(ValueError, match=f"graph 0: .*{message}"):
        env.states_of([Assignment(names, tuple(choices.get(name, "none") for name in names))])


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"cells": []}, r"env.recurrent_stack.cells: expected different ones of rhn, gru, lstm, got \[\]"),
        ({"cells": ["rnn"]}, r"env.recurrent_stack.cells: .*got \['rnn'\]"),
        ({"projections": ["up+gate"]}, r"env.recurrent_stack.projections: expected different ones of .*gate\+up"),
        ({"betas": ["on", "on"]}, r"env.recurrent_stack.betas: expected different ones of on, off"),
        ({"ranks": []}, r"env.recurrent_stack.ranks: expected different numbers, got \[\]"),
        ({"widths": [8, 8]}, r"env.recurrent_stack.widths: expected different numbers, got \['8', '8'\]"),
    ],
)
def test_recurrent_stack_invalid_options_raise(option: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RecurrentStackEnv(RecurrentStackConfig(**option))


def test_on_and_off_of_yaml_are_read() -> None:
    config: Any = load_config("language", ["env.recurrent_stack.betas=[off,on]"])
    choices = choices_of(config.env.recurrent_stack)
    assert choices["beta[1]"] == ("off", "on")
