"""Invalid options and task sizes of computation graphs raise errors with the option names."""

import re
from typing import Any

import pytest

from gflownet.envs.computation_graph import ComputationGraphEnv, ComputationGraphEnvContext
from gflownet.envs.config import EnvConfig
from gflownet.mdp.states import MOST_VALUES
from gflownet.operations.tensor_shape import Shape


def context(*, inputs: Any = (4,), outputs: Any = (2,), **options: Any) -> ComputationGraphEnvContext:
    return ComputationGraphEnvContext.from_config(
        EnvConfig(**options), input_sizes=inputs, output_sizes=outputs, num_cond_dim=1
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"max_hidden_nodes": 200},
            "env.max_hidden_nodes: expected 0 to 125 with 2 inputs and outputs of the task, got 200",
        ),
        ({"output_sizes": [4, 4]}, "env.output_sizes: expected 1 to 127 distinct values, got [4, 4]"),
        ({"output_sizes": list(range(1, 130))}, "env.output_sizes: expected 1 to 127 distinct values, got [1, 2,"),
        ({"activations": ["relu", "relu"]}, "env.activations: expected 1 to 127 distinct values, got ['relu', 'relu']"),
        ({"aggregations": []}, "env.aggregations: expected 1 to 127 distinct values, got []"),
        ({"max_edges": 1, "inputs": (4, 4)}, "env.max_edges: expected at least 2, to connect inputs and outputs"),
        ({"inputs": ()}, "task: expected input_sizes with one width >= 1 or more, got ()"),
        ({"outputs": ()}, "task: expected output_sizes with one width >= 1 or more, got ()"),
        ({"inputs": (4, 0)}, "task: expected input_sizes with one width >= 1 or more, got (4, 0)"),
        ({"inputs": 4}, "task: expected input_sizes with one width >= 1 or more, got 4"),
        (
            {"inputs": (Shape.of((1, 8, 8)),)},
            "env.name: expected operation_graph for image [1, 8, 8], got computation_graph",
        ),
        ({"inputs": (1,) * 122}, "task: expected at most 122 inputs and outputs together, got 123"),
    ],
)
def test_computation_graph_invalid_option_raises(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}") as error:
        context(**options)
    assert "\n" not in str(error.value)


def test_computation_graph_accepts_maximum_sizes() -> None:
    env = context(max_hidden_nodes=MOST_VALUES - 2).env
    assert isinstance(env, ComputationGraphEnv)
    assert env.vocabulary.max_nodes == MOST_VALUES
    full = context(inputs=(1,) * 121, outputs=(1,), max_hidden_nodes=5, max_edges=121).env
    assert len(full.vocabulary.node_types) == MOST_VALUES
