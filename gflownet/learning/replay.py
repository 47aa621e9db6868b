"""Replay buffer of scored terminal states, graphs with known scores from a file, and trajectories as action sequences.

Letters: B trajectories, S steps of all of them, N maximum number of nodes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gflownet.errors import UserError
from gflownet.evaluation.conditioning import Conditioning
from gflownet.evaluation.task import GFNTask, Score
from gflownet.files import is_intact, parse_json
from gflownet.learning.config import OfflineConfig, ReplayConfig
from gflownet.learning.sampler import assembled, limited_states, roll_out, sample_backward
from gflownet.mdp.action import ActionBatch, GraphActionType
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import Origin, TrajectoryBatch
from gflownet.records.trust import checked_names

_DTYPE = torch.int32  # of kind, row and column of an action


@dataclass(frozen=True)
class ActionSequences:
    """The forward actions of B trajectories, one trajectory after another, each ending with Stop.

    A node index is the node's position in the state built by the preceding actions.
    """

    num_actions: Tensor  # [B] int64
    actions: ActionBatch  # S, int32

    def __len__(self) -> int:
        """Return the number of trajectories."""
        return len(self.num_actions)

    def __getitem__(self, index: Tensor | slice) -> ActionSequences:
        """Return the trajectories selected by an index."""
        length, start = self.num_actions[index], self._starts[index]
        within = torch.arange(int(length.sum())) - (length.cumsum(0) - length).repeat_interleave(length)
        return ActionSequences(length, self.actions[start.repeat_interleave(length) + within])

    @property
    def _starts(self) -> Tensor:
        return self.num_actions.cumsum(0) - self.num_actions

    @staticmethod
    def cat(batches: Sequence[ActionSequences]) -> ActionSequences:
        """Concatenate trajectories."""
        actions = ActionBatch.cat([batch.actions for batch in batches])
        return ActionSequences(torch.cat([batch.num_actions for batch in batches]), actions)

    def walk(self, env: Environment, *, conditioning: Conditioning, origin: Origin) -> TrajectoryBatch:
        """Replay the actions from the initial state; return the trajectories without rewards."""
        starts, num_taken = self._starts, 0

        def choose(states: GraphStates, alive: Tensor) -> ActionBatch:
            nonlocal num_taken
            actions = self.actions[starts[alive] + num_taken]
            num_taken += 1
            return ActionBatch(*(column.long() for column in actions.parts))

        with torch.inference_mode():
            steps = roll_out(env, limited_states(env, len(self), conditioning.limit), choose)
        return assembled(env, steps, conditioning, origin)


def action_sequences(env: Environment, trajectories: TrajectoryBatch) -> ActionSequences:
    """Return the actions of trajectories sampled forward or backward, with nodes numbered in order of creation.

    A trajectory that was sampled backwards renumbers its nodes at each step: an added node takes the position that it
    had when it was removed. The numbers are tracked from the initial state on.
    """
    order = trajectories.trajectory.argsort(stable=True)
    length = torch.bincount(trajectories.trajectory, minlength=len(trajectories))
    start = length.cumsum(0) - length
    kind, row, column = (values[order] for values in trajectories.actions.parts)
    position, num_nodes = trajectories.backward.row[order], trajectories.states.num_nodes[order]
    names = torch.arange(env.vocabulary.max_nodes).repeat(len(trajectories), 1)  # [B, N]
    for step in range(int(length.max())):
        alive = (length > step).nonzero().squeeze(1)
        index = start[alive] + step
        actions = ActionBatch(kind[index], row[index], column[index])
        row[index] = actions.renamed(names[alive], directed=env.vocabulary.directed).row
        adds = (kind[index] == int(GraphActionType.AddNode)).nonzero().squeeze(1)
        names[alive[adds]] = _inserted(names[alive[adds]], position[index[adds]], num_nodes[index[adds]])
    return ActionSequences(length, ActionBatch(kind.to(_DTYPE), row.to(_DTYPE), column.to(_DTYPE)))


def _inserted(names: Tensor, position: Tensor, new: Tensor) -> Tensor:
    """Insert the node number `new` [B] into names [B, N] at a position [B]; later ones move up."""
    place = torch.arange(names.shape[1])
    moved = names.gather(1, torch.where(place > position[:, None], place - 1, place).clamp(min=0))
    return torch.where(place == position[:, None], new[:, None], moved)


TOP_QUANTILE = 0.9  # of the scores in the buffer: above it are the best states
RANK_OFFSET = 0.01  # k of Tripp et al. 2020, appendix: smaller values prefer the best more


@dataclass(frozen=True)
class SeenStates:
    """B terminal states with their scores and optionally the action sequences that built them."""

    terminal: GraphStates  # B states
    scores: Tensor  # [B], or utilities [B, K]
    sequences: ActionSequences | None = None  # B

    def __len__(self) -> int:
        """Return the number of states."""
        return len(self.scores)

    def __getitem__(self, index: Tensor | slice) -> SeenStates:
        """Return the states selected by an index."""
        sequences = None if self.sequences is None else self.sequences[index]
        return SeenStates(self.terminal[index], self.scores[index], sequences)

    @staticmethod
    def cat(batches: Sequence[SeenStates]) -> SeenStates:
        """Concatenate batches of states."""
        sequences = [batch.sequences for batch in batches if batch.sequences is not None]
        return SeenStates(
            GraphStates.cat([batch.terminal for batch in batches]),
            torch.cat([batch.scores for batch in batches]),
            ActionSequences.cat(sequences) if len(sequences) == len(batches) else None,
        )

    @property
    def quality(self) -> Tensor:
        """Return the ranking criterion [B]: the score, or the mean of the utilities."""
        return self.scores if self.scores.ndim == 1 else self.scores.mean(1)


class ReplayBuffer:
    """Distinct terminal states with their scores; a full buffer drops the oldest or the worst.

    It stores scores, not rewards, which depend on the conditioning of the replayed trajectory.
    """

    def __init__(self, config: ReplayConfig) -> None:
        self.config = config
        self._keys: list[str] = []  # canonical keys, oldest first
        self._seen: SeenStates | None = None

    def __len__(self) -> int:
        """Return the number of states."""
        return len(self._keys)

    def add(self, states: SeenStates, *, keys: Sequence[str]) -> int:
        """Add the states whose canonical key is new, and return the size of the buffer."""
        stored = set(self._keys)
        new = [i for i, key in enumerate(keys) if key not in stored and key not in keys[:i]]
        if not new:
            return len(self)
        added = states[torch.tensor(new)]
        together = added if self._seen is None else SeenStates.cat([self._seen, added])
        index = torch.arange(len(together))[-self.config.capacity :]
        if self.config.evict == "worst":  # the oldest of equal states
            index = together.quality.argsort(stable=True)[-self.config.capacity :].sort().values
        all_keys = [*self._keys, *(keys[i] for i in new)]
        self._keys, self._seen = [all_keys[i] for i in index.tolist()], together[index]
        return len(self)

    def sample(self, num: int, *, seed: int) -> SeenStates | None:
        """Return `num` states drawn by priority; None until the buffer holds `warmup` states.

        Counts differ from their expectation by less than 1 (systematic sampling).
        """
        if self._seen is None or len(self) < self.config.warmup:
            return None
        weights = PRIORITIES[self.config.priority](self._seen.quality)
        return self._seen[draw(weights, num, torch.Generator().manual_seed(seed))]

    def state_dict(self) -> dict[str, Any]:
        """Return the contents as tensors and strings, safe to load with `weights_only=True`."""
        contents = self._seen
        if contents is None:
            return {"keys": [], "states": None, "scores": None, "sequences": None}
        actions = contents.sequences
        sequences = None if actions is None else [actions.num_actions, *actions.actions.parts]
        states = contents.terminal.state_dict()
        return {"keys": list(self._keys), "states": states, "scores": contents.scores, "sequences": sequences}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self._keys, self._seen = list(state["keys"]), None
        if state["states"] is None:
            return
        sequences = None
        if state["sequences"] is not None:
            num_actions, *parts = state["sequences"]
            sequences = ActionSequences(num_actions, ActionBatch(*parts))
        self._seen = SeenStates(GraphStates(**state["states"]), state["scores"], sequences)


def draw(weights: Tensor, num: int, generator: torch.Generator) -> Tensor:
    """Draw `num` indices in proportion to their weights by systematic sampling in random order (Madow & Madow 1944).

    The expected counts equal those of independent draws, and each count differs from its expectation by less than 1.

    Args:
        weights: [B], not negative, not all 0.
        num: number of draws.
        generator: of the order and the offset.
    """
    order = torch.randperm(len(weights), generator=generator)
    expected = weights[order].double().cumsum(0)  # [B]
    point = torch.arange(num) + torch.rand((), generator=generator, dtype=torch.float64)
    index = torch.searchsorted(expected * (num / expected[-1]), point, right=True)
    return order[index.clamp(max=len(order) - 1)]  # a rounded sum may exceed the last bound


def _mixed(quality: Tensor) -> Tensor:
    """Return weights with half of the draws for the best tenth and the other half for all states.

    Prioritized replay training, Shen et al. 2023, section 4, where the remainder goes to the other nine tenths.
    """
    best = (quality >= quality.quantile(TOP_QUANTILE)).float()
    return (best / best.sum() + 1 / len(quality)) / 2


def _rank(quality: Tensor) -> Tensor:
    """Return weights 1 / (k size + rank), rank 0 the best (Tripp et al. 2020, eq. 4).

    Ranks, unlike rewards, are the same at every temperature; equal states share their best rank.
    """
    rank = len(quality) - torch.searchsorted(quality.sort().values, quality, right=True)
    return 1 / (RANK_OFFSET * len(quality) + rank)


# Qualities [B] -> weights [B].
PRIORITIES: dict[str, Callable[[Tensor], Tensor]] = {"uniform": torch.ones_like, "mixed": _mixed, "rank": _rank}


_SCORES = ("score", "validation_score")  # names of the score in an entry; the second is used by a run's report


def load_offline(config: OfflineConfig, context: GraphBuildingEnvContext, task: GFNTask) -> SeenStates | None:
    """Read the graphs of the file and their scores or utilities; None without a file.

    An entry is an object with `graph` (node-link form), `score` or `validation_score` and, where the task has several
    objectives, `metrics`. One per line, or all in one JSON list, such as a run's top_architectures.json.

    Raises:
        UserError: the file cannot be read, or an entry is no terminal state of this environment; the text has its line.
    """
    if not config.path:
        return None
    path = Path(config.path)
    entries = _read(path)
    graphs, scores = [], []
    for name, entry in entries:
        try:
            if not isinstance(entry, Mapping):
                raise ValueError(f"expected an object, got {entry!r}")
            if not is_intact(entry):
                raise ValueError("expected an entry as it was written, got another checksum")
            with checked_names(path, entry["graph"], folder=path.parent):
                graphs.append(context.env.terminal_type.from_dict(entry["graph"]))
            scores.append(_score(entry, task))
        except (KeyError, TypeError, ValueError) as error:
            reason = f"expected a field {error}" if isinstance(error, KeyError) else error
            raise UserError(f"offline.path: {config.path}, {name}: {reason}") from None
    try:
        states = context.env.states_of(graphs)
        _check_reached(context, states)
    except ValueError as error:
        index, _, reason = str(error).removeprefix("graph ").partition(": ")
        raise UserError(f"offline.path: {config.path}, {entries[int(index)][0]}: {reason}") from None
    return SeenStates(states, torch.tensor(scores))


def _read(path: Path) -> list[tuple[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"offline.path: expected a file of graphs, got {path} ({error})") from None
    lines = [(f"line {number}", line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    try:
        if text.lstrip().startswith("["):
            entries = [(f"entry {position}", entry) for position, entry in enumerate(parse_json(text))]
        else:
            entries = [(name, parse_json(line)) for name, line in lines]
    except json.JSONDecodeError as error:
        raise UserError(f"offline.path: expected JSON lines or a JSON list, got {path} ({error})") from None
    if not entries:
        raise UserError(f"offline.path: expected at least one graph, got {path} without any")
    return entries


def _score(entry: Mapping[str, Any], task: GFNTask) -> Any:
    """Return the score, or the utilities of the chosen objectives."""
    values = [entry[name] for name in _SCORES if name in entry]
    if not values:
        raise KeyError(_SCORES[0])
    value = float(values[0])
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"expected a finite score >= 0, got {value}")
    return task.utilities(Score(value, entry.get("num_parameters"), entry.get("metrics") or {})) or value


def _check_reached(context: GraphBuildingEnvContext, terminal: GraphStates) -> None:
    """Raise ValueError for a state that no trajectory of legal steps reaches."""
    env, num = context.env, len(terminal)
    conditioning = Conditioning(torch.zeros(num, context.num_cond_dim), torch.ones(num))
    # One backward trajectory per state suffices: all of them are legal or none is.
    backward = sample_backward(context, terminal, conditioning=conditioning, generator=torch.Generator())
    illegal = ~env.forward_masks(backward.states).contains(backward.actions)
    order = backward.trajectory.argsort(stable=True)
    length = torch.bincount(backward.trajectory, minlength=num)
    first = backward.states[order[length.cumsum(0) - length]]
    unreachable = ~first.equals(env.initial_states(num))
    unreachable[backward.trajectory[illegal]] = True
    if bool(unreachable.any()):
        index = int(unreachable.nonzero()[0])
        raise ValueError(f"graph {index}: expected a graph that can be built, got one that cannot")
