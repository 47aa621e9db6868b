"""A network from which a search starts (env.start): its file, and its edits within the limits of today."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gflownet.errors import UserError, counted
from gflownet.mdp.construction import built, taken_apart
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates
from gflownet.records.trust import checked_names
from gflownet.search.history import History, ProposalOrigin
from gflownet.search.prior import ends_of, with_ends
from gflownet.search.proposals import distinct, mutations
from gflownet.translation.loading import read_candidate

_NUM_EDITS = 64  # mutations of a generation
_NUM_PARENTS = 16  # smallest networks above the limits, of which these are edits
_MAX_GENERATIONS = 32


@dataclass(frozen=True)
class StartNetwork:
    """A network of a file."""

    name: str  # for lines
    candidate: Any  # with inputs and outputs of today's data; it may be above the limits
    weights: Mapping[str, Tensor] | None  # trained ones by name, as `gflownet.load` loads them; None: there are none


class Start:
    """The network of env.start; read once, part of the checkpoint of the search."""

    def __init__(
        self, env: Environment, *, read: Callable[[], StartNetwork | None], widened: Callable[[Any], Environment]
    ) -> None:
        """Keep the parts.

        Args:
            env: of today.
            read: returns the network of the option, None without one.
            widened: returns the environment of today without caps, with room for a candidate.
        """
        self._env, self._read, self._widened = env, read, widened

    @cached_property
    def network(self) -> StartNetwork | None:
        """The network; None without env.start."""
        return self._read()

    @cached_property
    def _encoded(self) -> tuple[Environment, GraphStates]:
        """The environment of today, or the wider one that the network needs, and its state there, [1]."""
        network = self.network
        assert network is not None
        try:
            return self._env, self._env.states_of([network.candidate])
        except (ValueError, NotImplementedError) as error:
            try:
                env = self._widened(network.candidate)
                states = env.states_of([network.candidate])
            except (ValueError, NotImplementedError):
                expected = f"env.start: expected a network of this search space, got {network.name}"
                raise UserError(f"{expected}: {str(error).removeprefix('graph 0: ')}") from None
            return env, states

    def design(
        self,
        num: int,
        generator: torch.Generator,
        *,
        is_allowed: Callable[[GraphStates], Tensor],
        sizes: Callable[[GraphStates], Tensor],
    ) -> GraphStates:
        """Return up to `num` networks within the limits: that of the option, then its edits; none without the option.

        Of a network above the limits all are edits. A cap of the environment cuts its construction short; for other
        caps the smallest networks are edited until some are within them.

        Args:
            num: at least 1.
            generator: of the edits.
            is_allowed: returns which terminal states [B] no hard cap refuses.
            sizes: returns sizes [B] of terminal states, NaN for unknown ones.
        """
        chosen = self._env.initial_states(0)
        if self.network is None:
            return chosen
        env, parents = self._encoded
        if env is not self._env:
            plan = taken_apart(env, parents[torch.zeros(_NUM_PARENTS, dtype=torch.int64)], generator)
            parents = distinct(self._env, built(self._env, plan, generator)[0])
        children = parents
        for _ in range(_MAX_GENERATIONS):
            mask = is_allowed(children)
            chosen, outside = GraphStates.cat([chosen, children[mask]]), GraphStates.cat([parents, children[~mask]])
            if len(chosen) >= num:
                break
            parents = chosen if len(chosen) else outside[sizes(outside).argsort(stable=True)[:_NUM_PARENTS]]
            edits = mutations(self._env, parents, _NUM_EDITS, generator)
            children = distinct(self._env, GraphStates.cat([chosen, edits]))[len(chosen) :]
        return chosen[:num]

    def line(self, history: History) -> str:
        """Return the words of the closing line and of the page; empty without env.start."""
        if self.network is None:
            return ""
        env, state = self._encoded
        place = history.position(int(env.identify(state))) if env is self._env else None
        edits = [each for each in history.proposals if each.origin is ProposalOrigin.START and each.position != place]
        num = counted(len(edits), "edit")
        designed = f"{num} within the limits, which it exceeds," if place is None else f"it and {num}"
        return f"from {self.network.name}: {designed} in the first design"

    def state_dict(self) -> dict[str, Any] | None:
        """Return the contents, so that a resumed search has them without the file; None without env.start.

        Raises:
            UserError: the file cannot be read, or its network is not of the space of today.
        """
        if self.network is None:
            return None
        _ = self._encoded
        weights = None if self.network.weights is None else {**self.network.weights}
        graph = json.dumps(self.network.candidate.to_dict())
        return {"name": self.network.name, "graph": graph, "weights": weights}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Restore the result of `state_dict`."""
        self.network = None
        if state is not None:
            candidate = self._env.terminal_type.from_dict(json.loads(state["graph"]))
            self.network = StartNetwork(state["name"], candidate, state["weights"])


def read_start(location: str, env: Environment) -> StartNetwork | None:
    """Return the network of env.start, None for an empty text.

    Args:
        location: a run folder, a file with entries such as top_architectures.json or set.json, each with :RANK or 0,
            or a file with one graph.
        env: of today; inputs and outputs of the network get the shapes of its data.

    Raises:
        UserError: no network there, or damaged weights; names of another user's file; another kind of graph.
    """
    if not location:
        return None
    start, _, rank = location.rpartition(":")
    place, number = (start, int(rank)) if start and rank.isdecimal() else (location, None)
    try:
        path, graph, weights = read_candidate(place, number or 0)
        with checked_names(path, graph, folder=path.parent):
            candidate = env.terminal_type.from_dict(with_ends(graph, ends_of(env)))
    except (ValueError, TypeError, KeyError, NotImplementedError) as error:
        raise UserError(f"env.start: {error}") from None
    name = f"{path.parent.name}/{path.name}" + (f", rank {number or 0}" if weights is not None or number else "")
    return StartNetwork(name, candidate, weights)
