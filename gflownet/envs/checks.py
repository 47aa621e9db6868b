"""Whether the options under `env` and the task's sizes describe a search space, said in the names the user knows."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

from gflownet.envs.config import EnvConfig
from gflownet.mdp.states import MOST_VALUES


def check_search_space(config: EnvConfig, *, input_sizes: Sequence[int], output_sizes: Sequence[int]) -> None:
    """Raise ValueError naming the first option, or attribute of the task, that makes no computation graphs."""
    _check_widths("input_sizes", input_sizes)
    _check_widths("output_sizes", output_sizes)
    for name in ("activations", "aggregations", "output_sizes"):
        values = list(getattr(config, name))
        if not 1 <= len(set(map(str, values))) == len(values) <= MOST_VALUES:
            raise ValueError(f"env.{name}: expected 1 to {MOST_VALUES} distinct values, got {values}")
    num_ends, most_ends = len(input_sizes) + len(output_sizes), MOST_VALUES - max(1, len(config.activations))
    if num_ends > most_ends:
        raise ValueError(f"task: expected at most {most_ends} inputs and outputs together, got {num_ends}")
    most_hidden = MOST_VALUES - num_ends
    if not 0 <= config.max_hidden_nodes <= most_hidden:
        expected = f"expected 0 to {most_hidden} beside the task's {num_ends} inputs and outputs"
        raise ValueError(f"env.max_hidden_nodes: {expected}, got {config.max_hidden_nodes}")
    fewest_edges = max(len(input_sizes), len(output_sizes))
    if config.max_edges < fewest_edges:
        raise ValueError(
            f"env.max_edges: expected at least {fewest_edges}, to join inputs and outputs, got {config.max_edges}"
        )


def _check_widths(name: str, sizes: object) -> None:
    widths = list(sizes) if isinstance(sizes, Sequence) else []
    if not widths or not all(isinstance(width, Integral) and int(width) >= 1 for width in widths):
        raise ValueError(f"task: expected {name} with one width >= 1 or more, got {sizes!r}")
