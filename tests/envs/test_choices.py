"""Choices: declarations of places, exact counts, hard caps, and one object for settings that build the same model."""

import logging
import random
import sys
from types import ModuleType
from typing import Any

import pytest
from omegaconf import OmegaConf

from gflownet.certificate.exact import enumerate_states
from gflownet.config import load_config
from gflownet.envs.choice_limits import ListedSettings
from gflownet.envs.choice_places import Places, read_places
from gflownet.envs.choices import ChoicesContext, ChoicesEnv
from gflownet.envs.config import ChoicesConfig, EnvConfig
from gflownet.errors import UserError
from gflownet.graphs.assignment import Assignment
from tests.contracts.environments import PLACES, capped_choices, choices, parity
from tests.oracles.slots import brute_force_settings


def random_places(rng: random.Random) -> Places:
    """Places with conditions on any earlier places, declared in a shuffled order."""
    declared: dict[str, Any] = {}
    for index in range(rng.randint(1, 6)):
        conditions = {
            name: rng.sample(place["values"], rng.randint(1, len(place["values"])))
            for name, place in declared.items()
            if rng.random() < 0.4
        }
        declared[f"p{index}"] = {"values": list(range(rng.randint(1, 3))), "only_if": conditions}
    names = list(declared)
    rng.shuffle(names)
    return read_places({name: declared[name] for name in names})


@pytest.mark.parametrize("seed", range(40))
def test_num_settings_equals_brute_force(seed):
    places = random_places(random.Random(seed))
    settings = brute_force_settings(places)
    assert places.num_settings() == len(settings)
    assert sorted(map(str, (sorted(s.items()) for s in places.settings()))) == sorted(
        map(str, (sorted(s.items()) for s in settings))
    )


def test_num_settings_of_a_large_space():
    """60 independent pairs of a switch and its value: (1 + 3)^60, too many to list."""
    declared: dict[str, Any] = {}
    for index in range(60):
        declared[f"use{index}"] = [False, True]
        declared[f"size{index}"] = {"values": [1, 2, 3], "only_if": {f"use{index}": True}}
    assert read_places(declared).num_settings() == 4**60


@pytest.mark.parametrize("make_env", [choices, capped_choices])
def test_choices_env_terminal_objects_are_the_settings(make_env):
    env = make_env()
    expected = [s for s in brute_force_settings(env.places) if env.limits is None or parity(s) == 0]
    graph = enumerate_states(env)
    objects = [env.terminal(graph.states, i) for i in graph.terminal.tolist()]
    assert {x.canonical_key() for x in objects} == {Assignment.of(s).canonical_key() for s in expected}
    assert len(objects) == len(expected)


def test_choices_env_objects_are_independent_of_declaration_order():
    keys = []
    for declared in (PLACES, dict(reversed(PLACES.items()))):
        env = ChoicesEnv(read_places(declared))
        graph = enumerate_states(env)
        keys.append({env.terminal(graph.states, i).canonical_key() for i in graph.terminal.tolist()})
    assert keys[0] == keys[1]


def test_choices_env_values_have_their_types():
    env = choices()
    setting = Assignment.of({"kind": "conv", "kernel": 3, "bias": True, "dilation": 2, "drop": 0.5})
    restored = env.terminal(env.states_of([setting]), 0)
    assert restored == setting
    assert [type(value) for value in restored.as_dict().values()] == [bool, int, float, int, str]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "pool", "kernel": 3, "drop": 0.0, "heads": 2}, "a place has a value and does not exist with"),
        ({"kind": "pool", "drop": 0.0}, "a place has no value"),
        ({"kind": "pool", "kernel": 5, "drop": 0.0}, r"kernel: expected a value out of \[3, '5'\], got 5"),
        ({"kind": "pool", "width": 5}, "expected places out of kind, kernel, .*, got 'width'"),
    ],
)
def test_choices_env_invalid_setting_raises(values, message):
    with pytest.raises(ValueError, match=f"graph 0: .*{message}"):
        choices().states_of([Assignment.of(values)])


def test_capped_choices_env_setting_above_a_cap_raises():
    values = {"kind": "attention", "heads": 2, "drop": 0.0}
    assert parity(values) == 1
    with pytest.raises(ValueError, match=r"graph 0: .*the setting exceeds a cap"):
        capped_choices().states_of([Assignment.of(values)])


def test_read_places_ranges_and_groups():
    places = read_places({"depth": "1..3", "width": ["-1..1", 8], "block": {"size": [1.5], "norm": ["batch", "1..2"]}})
    values = {place.name: place.values for place in places.places}
    assert values == {"depth": (1, 2, 3), "width": (-1, 0, 1, 8), "block.size": (1.5,), "block.norm": ("batch", 1, 2)}


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({}, "expected 1 to 127 places, such as kernel: .*, got 0 places"),
        ({"a": 3}, r"places.a: expected a list of numbers, .* or a range such as 1..6, got 3"),
        ({"a": "3"}, r"places.a: expected a list of numbers, .*, got '3'"),
        ({"a": []}, r"places.a: expected a list of numbers, .*, got \[\]"),
        ({"a": "6..1"}, r"places.a: expected a list of numbers, .*, got '6..1'"),
        ({"a": [[1]]}, r"places.a: expected a list of numbers, .*, got \[\[1\]\]"),
        ({"a": [None]}, r"places.a: expected a list of numbers, .*, got \[None\]"),
        ({"a": [float("nan")]}, r"places.a: expected a list of numbers, .*, got \[nan\]"),
        ({"a": [1, 1]}, r"places.a: expected different values, got \[1, 1\]"),
        ({"a": [1, True]}, r"places.a: expected different values, got \[1, True\]"),
        ({"a": [1, "1"]}, r"places.a: expected different values, got \[1, '1'\]"),
        ({"a": "1..200"}, "places.a: expected at most 127 values, got 200"),
        ({"a": "1..1000000000"}, "places.a: expected at most 127 values, got 1,000,000,000"),
        ({"a.b": [1, 2], "a": {"b": [3, 4]}}, "places.a.b: expected one declaration of the place, got several"),
        (OmegaConf.create({"a": ["${width}", 2]}), "places: expected values that can be read, got .*'width' not found"),
        ({"a": {"values": [1], "if": {"b": 1}}}, "places.a: expected values and only_if, got if"),
        ({"a": {"only_if": {"b": 1}}}, r"places.a: expected values, such as values: \[1, 2, 4\], got none"),
        ({"a": [1], "b": {"values": [1], "only_if": 3}}, "places.b.only_if: expected place: value or values, got 3"),
        ({"a": [1], "b": {"values": [1], "only_if": {"c": 1}}}, "b.only_if: expected another place, out of a, got 'c'"),
        ({"b": {"values": [1], "only_if": {"b": 1}}}, "b.only_if: expected another place, out of none, got 'b'"),
        ({"a": [1], "b": {"values": [1], "only_if": {"a": 2}}}, r"b.only_if.a: expected values out of \[1\], got 2"),
        ({"a": [1], "b": {"values": [1], "only_if": {"a": "1"}}}, r"b.only_if.a: .* out of \[1\], got '1'"),
        (
            {"a": {"values": [1], "only_if": {"b": 1}}, "b": {"values": [1], "only_if": {"a": 1}}, "c": [1]},
            "places: expected conditions without a circle, got one among a, b$",
        ),
    ],
)
def test_read_places_invalid_declaration_raises(declared, message):
    with pytest.raises(UserError, match=message):
        read_places(declared)


@pytest.fixture
def cost_module(monkeypatch) -> ModuleType:
    module = ModuleType("choice_costs")
    module.__dict__.update(
        by_size=lambda choices: (choices["width"] * 10, choices.get("depth", 0)),
        wrong=lambda choices: "small",
        calls=[],
    )
    monkeypatch.setitem(sys.modules, "choice_costs", module)
    return module


_SIZES = {"width": "1..4", "depth": {"values": [5, 6], "only_if": {"width": [3, 4]}}}


def make_env(**options) -> ChoicesEnv:
    config = EnvConfig(choices=ChoicesConfig(**{"places": _SIZES, **options}))
    return ChoicesContext.build_env(config, input_sizes=(), output_sizes=())


@pytest.mark.parametrize(
    ("caps", "expected"),
    [
        ({}, {(1, None), (2, None), (3, 5), (3, 6), (4, 5), (4, 6)}),
        ({"max_parameters": 30}, {(1, None), (2, None), (3, 5), (3, 6)}),
        ({"max_parameters": 30, "max_multiply_adds": 5}, {(1, None), (2, None), (3, 5)}),
        ({"max_multiply_adds": 0}, {(1, None), (2, None)}),
    ],
)
def test_choices_env_caps(cost_module, caps, expected):
    env = make_env(cost="choice_costs:by_size", **caps)
    graph = enumerate_states(env)
    settings = [env.terminal(graph.states, i).as_dict() for i in graph.terminal.tolist()]
    assert {(s["width"], s.get("depth")) for s in settings} == expected
    assert len(settings) == len(expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_parameters": 9}, "expected a setting within max_parameters=9 .*none; the smallest have 10 and 0"),
        ({"cost": "choice_costs:wrong"}, r"cost: expected choice_costs:wrong to return .* of \{'width': 1\}, got V"),
        ({"cost": "choice_costs:by_siz"}, "cost: expected a function, got .*; did you mean choice_costs:by_size"),
        ({"cost": "choice_costs"}, "env.choices.cost: expected module:function, got 'choice_costs'"),
        ({"places": {f"p{i}": "0..9" for i in range(6)}}, "cost: expected at most 100,000 settings, .*, got 1,000,000"),
    ],
)
def test_choices_env_invalid_caps_raise(cost_module, options, message):
    with pytest.raises(UserError, match=message):
        make_env(**{"cost": "choice_costs:by_size", **options})


def test_capped_settings_progress_is_logged(cost_module, monkeypatch, caplog):
    monkeypatch.setattr("gflownet.envs.choice_limits._SECONDS_BETWEEN_LINES", 0.0)
    with caplog.at_level(logging.INFO):
        ListedSettings.within(read_places(_SIZES), ChoicesConfig(cost="choice_costs:by_size"))
    assert "costs of 6 of 6 settings" in caplog.text


def test_choices_cap_without_cost_raises():
    config = load_config("choices", ["env.choices.max_parameters=3"])
    with pytest.raises(UserError, match=r"env.choices.max_parameters: expected env.choices.cost=module:function"):
        ChoicesContext.check_config(config)


def test_choices_places_on_the_command_line():
    config = load_config(None, ["env.choices.places.depth=1..3", "env.choices.places.block.size=[1,2]"])
    places = read_places(config.env.choices.places)
    assert [(place.name, place.values) for place in places.places] == [("depth", (1, 2, 3)), ("block.size", (1, 2))]
