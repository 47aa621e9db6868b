"""Stacks of recurrent layers, built layer by layer: the cell of each layer and its options.

Only choices that change the architecture are made, so that different terminal states are different stacks: adapters
only in RHN layers, sizes of RHN layers only in stacks with one.
`gflownet.rhn.config.read_stack` reads a finished stack.

Letters: B states, N places, D maximum number of layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gflownet.envs.choice_places import Place, Places
from gflownet.envs.choices import ChoicesEnv
from gflownet.envs.config import EnvConfig, RecurrentStackConfig
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Rule, Rules
from gflownet.mdp.states import GraphStates

RHN, REPEAT = "rhn", "repeat"
CELLS = (RHN, "gru", "lstm")
PROJECTIONS = ("gate", "up", "down")  # projections of a feed-forward network, joined by +
BETAS = ("on", "off")
NOTHING = "none"  # shown for a place that the architecture does not have
WIDTH, RANK, RATIO = "width", "rank", "ratio"


class RecurrentStackEnv(ChoicesEnv):
    """Stacks of 1 to `max_depth` layers; a layer is added when the previous one is complete.

    The places are those of `choices`; this class has the order, which conditions on values do not express.

    Raises:
        ValueError: an option with an invalid value.
    """

    def __init__(self, config: RecurrentStackConfig) -> None:
        check_choices(config)
        choices = choices_of(config)
        super().__init__(Places(tuple(Place(*item) for item in choices.items())), attribute="choice", absent=NOTHING)
        # [N] layer of each place from 0, -1 for places of the whole stack
        self._layer = torch.tensor([int(name.rstrip("]").partition("[")[2] or 0) - 1 for name in choices])
        # [N] bool, places of the cell of a layer, of sizes of all RHN layers
        self._is_cell = torch.tensor([name.startswith("cell") for name in choices])
        self._is_of_rhn = torch.tensor([name in (RANK, RATIO) for name in choices])
        self._cells = self._is_cell.nonzero().squeeze(1)  # [D] places of the cells

    def offered(self, place: int) -> tuple[Sequence[int], Sequence[Any]]:
        positions = sorted(super().offered(place)[0])  # in the order of the vocabulary
        return positions, [self.values[position] for position in positions]

    def forward_rules(self, states: GraphStates) -> Rules:
        filled, needed, depth = self.filled(states), self._needed(states), self._depth(states)
        missing = needed & ~filled
        is_missing = missing.any(1, keepdim=True)
        is_next = missing | self._is_cell & (self._layer == depth) & ~is_missing
        return {
            Kind.Stop: [
                Rule("a choice is missing", ~is_missing[:, :, None]),
                Rule("a stack has at least one layer", (depth > 0)[:, :, None]),
                Rule("a choice was made that this stack does not have", (filled == needed).all(1)[:, None, None]),
            ],
            Kind.SetNodeAttr: [
                Rule("the place is taken", ~filled[:, :, None]),
                Rule("the place is not next, or none of this stack", is_next[:, :, None]),
                Rule("the value is of another place", self._allowed[None]),
            ],
        }

    def backward_rules(self, states: GraphStates) -> Rules:
        filled, is_rhn, last = self.filled(states), self._has_rhn(states), self._depth(states) - 1
        # Sizes of all RHN layers are chosen with the first of them, the width before any layer.
        first_rhn = is_rhn.int().argmax(1, keepdim=True)
        is_of_last = torch.where(self._is_of_rhn, first_rhn, self._layer) == last
        is_bare = ~(is_of_last & filled & ~self._is_cell).any(1, keepdim=True)
        return {
            Kind.RemoveNodeAttr: [
                Rule("the place is empty", filled[:, :, None]),
                Rule("what was chosen last is taken back first", (is_of_last & (is_bare | ~self._is_cell))[:, :, None]),
            ]
        }

    def _depth(self, states: GraphStates) -> Tensor:
        """Return the number of layers, [B, 1]."""
        return (self.filled(states) & self._is_cell).sum(1, keepdim=True)

    def _has_rhn(self, states: GraphStates) -> Tensor:
        """Return the mask of RHN layers, [B, D] bool."""
        value = states.node_attr[:, self._cells, 0]
        return value == self.values.index(RHN) if RHN in self.values else torch.zeros_like(value, dtype=torch.bool)

    def _needed(self, states: GraphStates) -> Tensor:
        """Return the mask of places that exist for these cells, [B, N] bool."""
        is_rhn = self._has_rhn(states)
        whole = torch.where(self._is_of_rhn, is_rhn.any(1, keepdim=True), True)
        per_layer = torch.where(self._is_cell, self._layer < self._depth(states), is_rhn[:, self._layer.clamp(min=0)])
        return torch.where(self._layer < 0, whole, per_layer)


def choices_of(config: RecurrentStackConfig) -> dict[str, tuple[str, ...]]:
    """Return the places and their allowed values."""
    choices = {WIDTH: tuple(map(str, config.widths))} if config.widths else {}
    has_rhn = RHN in config.cells
    if has_rhn:
        choices |= {RANK: tuple(map(str, config.ranks)), RATIO: tuple(f"{ratio:g}" for ratio in config.ratios)}
    for layer in range(1, config.max_depth + 1):
        repeats = (REPEAT,) if layer > 1 else ()
        choices[f"cell[{layer}]"] = (*config.cells, *repeats)
        if has_rhn:
            choices[f"projections[{layer}]"] = tuple(config.projections)
            choices[f"beta[{layer}]"] = _switches(config.betas)
    return choices


def _switches(values: Sequence[str]) -> tuple[str, ...]:
    """Return on and off, which YAML reads as true and false."""
    return tuple({"True": "on", "False": "off"}.get(value, value) for value in values)


def check_choices(config: RecurrentStackConfig) -> None:
    """Raise ValueError for the first option with an invalid value."""
    every = ["+".join(p for p, bit in zip(PROJECTIONS, (4, 2, 1), strict=True) if m & bit) for m in range(1, 8)]
    for name, allowed in (("cells", CELLS), ("projections", every), ("betas", BETAS)):
        values = list(_switches(getattr(config, name)))
        if not values or len(set(values)) < len(values) or not set(values) <= set(allowed):
            raise ValueError(
                f"env.recurrent_stack.{name}: expected different ones of {', '.join(allowed)}, got {values}"
            )
    for name in ("ranks", "ratios", "widths"):
        values = [f"{value:g}" for value in getattr(config, name)]
        if len(set(values)) < len(values) or not (values or name == "widths"):
            raise ValueError(f"env.recurrent_stack.{name}: expected different numbers, got {values}")


class RecurrentStackContext(GraphBuildingEnvContext):
    """Context of stacks, from the options under `env.recurrent_stack`."""

    @classmethod
    def build_env(
        cls, config: EnvConfig, *, input_sizes: Sequence[int], output_sizes: Sequence[int]
    ) -> RecurrentStackEnv:
        return RecurrentStackEnv(config.recurrent_stack)
