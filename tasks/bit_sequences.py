"""Bit sequences scored by the distance to the nearest of some random modes (Malkin et al. 2022, section 5.3)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gflownet.envs.slots import bits_of
from gflownet.evaluation.config import TaskConfig
from gflownet.evaluation.task import GFNTask, Score
from gflownet.graphs.assignment import Assignment
from gflownet.options import AT_LEAST_ONE, NOT_NEGATIVE, option


@dataclass
class BitSequencesConfig:
    """The random modes."""

    blocks: list[str] = option(
        ["00000000", "11111111", "11110000", "00001111", "00111100"], "words of one length; modes are sequences of them"
    )
    num_modes: int = option(60, "number of different modes", AT_LEAST_ONE)
    mode_seed: int = option(0, "seed of the modes", NOT_NEGATIVE)


class BitSequencesTask(GFNTask):
    """A sequence x of n bits scores exp(-d / n), with d the Hamming distance to the nearest mode.

    The paper's reward is exp(1 - d / n)^3 with the edit distance; ours is proportional to exp(-beta d / n), and with
    beta = n to exp(-d), the reward of torchgfn.
    """

    Config = BitSequencesConfig
    environment = "bit_sequence"
    is_cheap = True

    def __init__(self, config: TaskConfig) -> None:
        super().__init__(config)
        options = config.task_options
        _check_blocks(list(options.blocks))
        self.modes = draw_modes(
            config.env.bit_sequence.num_bits,
            blocks=list(options.blocks),
            num_modes=options.num_modes,
            mode_seed=options.mode_seed,
        )
        if math.exp(-1) < config.evaluation.floor_score:
            floor = config.evaluation.floor_score
            raise ValueError(f"evaluation.floor_score: expected at most exp(-1), the lowest score, got {floor:g}")

    def evaluate(self, graph: Assignment, *, seed: int) -> Score:
        """Return exp(-distance / length); metrics are the distance and the index of the nearest mode."""
        bits = np.array([int(bit) for bit in bits_of(graph)], dtype=np.int8)
        distances = (self.modes != bits).sum(1)
        nearest = int(distances.argmin())
        distance = float(distances[nearest])
        return Score(math.exp(-distance / len(bits)), metrics={"distance": distance, "nearest_mode": float(nearest)})


def draw_modes(num_bits: int, *, blocks: list[str], num_modes: int, mode_seed: int) -> np.ndarray:
    """Return different modes [M, n] of zeros and ones; each is a sequence of random blocks.

    Raises:
        ValueError: the length of the blocks does not divide n, or there are fewer different sequences than modes.
    """
    num_blocks, remainder = divmod(num_bits, len(blocks[0]))
    if remainder:
        raise ValueError(
            f"task_options.blocks: expected blocks of a length that divides env.bit_sequence.num_bits={num_bits}, "
            f"got {len(blocks[0])}"
        )
    max_modes = len(blocks) ** num_blocks
    if num_modes > max_modes:
        raise ValueError(
            f"task_options.num_modes: expected 1 to {max_modes}, for {num_blocks} of {len(blocks)} blocks, "
            f"got {num_modes}"
        )
    rng = np.random.default_rng([mode_seed, num_bits])
    modes: dict[str, None] = {}
    while len(modes) < num_modes:
        modes["".join(blocks[i] for i in rng.integers(len(blocks), size=num_blocks))] = None
    return np.array([[int(bit) for bit in mode] for mode in modes], dtype=np.int8)


def _check_blocks(blocks: list[str]) -> None:
    """Raise ValueError unless the blocks are different words of zeros and ones of one length."""
    is_word = all(block and set(block) <= {"0", "1"} for block in blocks)
    if not blocks or not is_word or len({len(block) for block in blocks}) > 1 or len(set(blocks)) < len(blocks):
        raise ValueError(f"task_options.blocks: expected different words of 0 and 1 of one length, got {blocks}")
