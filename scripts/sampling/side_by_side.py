"""Our sampler and training step in turn with others that run beside them: the networkx twin, and torchgfn."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from random import Random
from statistics import median
from time import process_time
from typing import NamedTuple

from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.policy.graph_transformer import GraphTransformerPolicy
from scripts.bench import Row, at_least, figure, median_ratio, skip
from scripts.peers.environment import PeerError, find_environment
from scripts.peers.process import AS_IT_COMES, KEEPS_FREED_MEMORY, PeerProcess
from scripts.sampling.peer_settings import NODE_TYPES, fixed_length
from scripts.sampling.sides import SEED, Ours, Side, Turn, take_turns
from tests.oracles.networkx_sampler import rules_of, sample_with_networkx

BATCH, MAX_NODES, NUM_ACTIONS = 64, 7, 12
GOAL_TWIN = 30.0
GOAL_TORCHGFN = {"sample": 5.0, "train": 10.0}
OURS, OURS_SPARSE, TWIN = "ours, dense", "ours, message passing", "networkx twin"
TORCHGFN = {"torchgfn as it comes": AS_IT_COMES, "torchgfn, memory kept": KEEPS_FREED_MEMORY}
NUM_ACTIONS_OF = {"fixed length": NUM_ACTIONS, "free length": None}


class Key(NamedTuple):
    """Who takes a turn, and at what."""

    who: str
    do: str  # sample or train
    length: str  # of the trajectories, of NUM_ACTIONS_OF


Turns = Mapping[Key, list[Turn]]
_TWIN = Key(TWIN, "sample", "fixed length")


def measure(*, num_rounds: int) -> list[Row]:
    """Return the speeds of all sides and how they compare; without torchgfn, and why, where it cannot be had."""
    with ExitStack() as stack:
        sides = {**_our_sides(), _TWIN: Twin().sample}
        try:
            sides |= _torchgfn_sides(stack)
        except PeerError as error:
            skip("rows of torchgfn", str(error))
        turns = take_turns(sides, num_rounds=num_rounds)
    return [*_speeds(turns), *_against_the_twin(turns), *_against_torchgfn(turns)]


class Twin:
    """The slow way to sample: networkx graphs one after another, and a message-passing policy.

    It does not count automorphisms, which ours does.
    """

    def __init__(self) -> None:
        self._ours = Ours(fixed_length(MAX_NODES, NUM_ACTIONS), policy_class=GraphTransformerPolicy, batch=BATCH)
        self._rng = Random(SEED)

    def sample(self) -> Turn:
        """Sample a batch of trajectories."""
        context, ours = self._ours.context, self._ours
        gc.collect()
        start = process_time()
        trajectories = sample_with_networkx(
            context, rules_of(context.env), ours.policy, conditioning=ours.conditioning, rng=self._rng
        )
        seconds = process_time() - start
        return Turn(seconds, num_trajectories=BATCH, num_states=sum(len(t.actions) for t in trajectories))


def _our_sides() -> dict[Key, Side]:
    fixed = fixed_length(MAX_NODES, NUM_ACTIONS)
    free = GraphBuildingEnv(NODE_TYPES, max_nodes=MAX_NODES, directed=True)
    sides: dict[Key, Side] = {}
    for length, env in (("fixed length", fixed), ("free length", free)):
        # Each with a policy of its own: the one that samples stays untrained, as torchgfn's does.
        sides[Key(OURS, "sample", length)] = Ours(env, batch=BATCH).sample
        sides[Key(OURS, "train", length)] = Ours(env, batch=BATCH).train
    sparse = Ours(fixed, policy_class=GraphTransformerPolicy, batch=BATCH)
    return {**sides, Key(OURS_SPARSE, "sample", "fixed length"): sparse.sample}


def _torchgfn_sides(stack: ExitStack) -> dict[Key, Side]:
    """Return what torchgfn does, in one process that manages memory as it comes and in one that keeps it as ours do."""
    python, sides = find_environment(), {}
    for who, variables in TORCHGFN.items():
        process = stack.enter_context(PeerProcess(python, variables=variables))
        for length in NUM_ACTIONS_OF:
            for do in ("sample", "train"):
                sides[Key(who, do, length)] = partial(_torchgfn_turn, process, do, length)
    return sides


def _torchgfn_turn(process: PeerProcess, do: str, length: str) -> Turn:
    cost = process.ask(
        do, batch=BATCH, max_nodes=MAX_NODES, num_actions=NUM_ACTIONS_OF[length], directed=True, seed=SEED
    )
    return Turn(cost.cpu_seconds, num_trajectories=cost.num_trajectories, num_states=cost.num_states)


def _speeds(turns: Turns) -> list[Row]:
    """Return what each side does per CPU second, and how long its trajectories were where that is left to it."""
    rows = []
    for key, of_key in turns.items():
        label = f"side by side, {key.length}, {key.who}: {key.do}"
        if key.do == "sample":
            rows.append(_plain(f"{label}, trajectories", map(Turn.trajectories_per_second, of_key), "per CPU-s"))
            rows.append(_plain(f"{label}, states", map(Turn.states_per_second, of_key), "per CPU-s"))
        else:
            rows.append(_plain(f"{label}, steps", map(Turn.steps_per_second, of_key), "per CPU-s"))
        if NUM_ACTIONS_OF[key.length] is None:
            lengths = (turn.num_states / turn.num_trajectories for turn in of_key)
            rows.append(_plain(f"{label}, length", lengths, "states per trajectory"))
    return rows


def _against_the_twin(turns: Turns) -> list[Row]:
    """Return how many times as fast our policies are sampled from, with a goal for the default one."""
    twin, rows = turns[_TWIN], []
    for who, goal in ((OURS, GOAL_TWIN), (OURS_SPARSE, None)):
        label = f"side by side, {_TWIN.length}, {who} against {TWIN}: sample, trajectories"
        rows.append(_ratio(label, turns[_TWIN._replace(who=who)], twin, what=Turn.trajectories_per_second, goal=goal))
    return rows


def _against_torchgfn(turns: Turns) -> list[Row]:
    """Return how many times as fast we sample and train as torchgfn, as it comes and with its memory kept."""
    rows = []
    for key, theirs in turns.items():
        if key.who in TORCHGFN:
            unit, what = ("states", Turn.states_per_second) if key.do == "sample" else ("steps", Turn.steps_per_second)
            label = f"side by side, {key.length}, {OURS} against {key.who}: {key.do}, {unit}"
            rows.append(_ratio(label, turns[key._replace(who=OURS)], theirs, what=what, goal=GOAL_TORCHGFN[key.do]))
    return rows


def _ratio(
    label: str, ours: list[Turn], theirs: list[Turn], *, what: Callable[[Turn], float], goal: float | None
) -> Row:
    """Return how many times as fast ours is, the median over rounds."""
    value = median_ratio([what(turn) for turn in ours], [what(turn) for turn in theirs])
    return at_least(label, value, "x", goal)


def _plain(label: str, values: Iterable[float], unit: str) -> Row:
    """Return the median over rounds, without a goal."""
    return figure(label, median(values), unit)
