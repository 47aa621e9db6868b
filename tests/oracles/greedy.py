"""Reference greedy policies for one graph, exact action values and n-step targets, as loops."""

import math

from tests.oracles.categorical import probabilities
from tests.oracles.tabular import Classes

Action = tuple[int, int, int]


def greedier(policy: dict[Action, float], values: dict[Action, float], variant: str, p: float) -> dict[Action, float]:
    """Return the probability of every legal action from the logits of P_F and the action values."""
    chances, highest = probabilities(policy), max(values.values())
    if variant == "p_greedy":
        best = [action for action, value in values.items() if value == highest]
        return {a: (1 - p) * chance + (p / len(best) if a in best else 0.0) for a, chance in chances.items()}
    if variant == "p_quantile":
        ordered = sorted(values.values())
        position = p * (len(ordered) - 1)
        below, above = ordered[math.floor(position + 1e-12)], ordered[math.ceil(position - 1e-12)]
        threshold = below + (position - math.floor(position + 1e-12)) * (
            above - below
        )  # as numpy.quantile interpolates
        candidates = [action for action, value in values.items() if value >= threshold - 1e-12]
    else:
        candidates = [action for action, value in values.items() if value >= p * highest]
    total = math.fsum(chances[action] for action in candidates)
    return {action: chances[action] / total if action in candidates else 0.0 for action in chances}


def best_reachable(space: Classes, reward: list[float]) -> dict[tuple[int, int, bool], float]:
    """Return Q*(s, a), the maximum reachable reward, by (state, next state, is Stop)."""
    value: dict[int, float] = {}
    action_values = {}
    for s in space.by_level:
        values = {(s, s, True): reward[s]} if s in space.may_stop else {}
        values |= {(s, after, False): value[after] for after in space.children(s)}
        value[s] = max(values.values())
        action_values |= values
    return action_values


def n_step_targets(steps: list[list[float]], outcomes: list[float], n: int) -> list[list[float]]:
    """Return the n-step targets of every trajectory from its state values and its outcome."""
    return [
        [values[t + n] if t + n < len(values) else outcome for t in range(len(values))]
        for values, outcome in zip(steps, outcomes, strict=True)
    ]
