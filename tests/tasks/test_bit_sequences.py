"""Modes of bit sequences and the distances to them."""

import math
from itertools import product

import pytest

from gflownet.config import load_config, with_task_options
from gflownet.graphs.assignment import Assignment
from tasks.bit_sequences import BitSequencesConfig, BitSequencesTask, draw_modes

PAPER = BitSequencesConfig()


def make_task(*overrides: str) -> BitSequencesTask:
    config = load_config("bit_sequences", overrides)
    return BitSequencesTask(with_task_options(config, BitSequencesConfig))


def sequence(bits: str, word: int = 3) -> Assignment:
    words = tuple(bits[i : i + word] for i in range(0, len(bits), word))
    return Assignment(tuple(f"word{i}" for i in range(len(words))), words)


def test_modes_of_the_paper_are_sixty_different_rows_of_blocks():
    modes = draw_modes(120, blocks=PAPER.blocks, num_modes=PAPER.num_modes, mode_seed=0)
    assert modes.shape == (60, 120)
    texts = ["".join(map(str, mode)) for mode in modes.tolist()]
    assert len(set(texts)) == 60
    used = {text[i : i + 8] for text in texts for i in range(0, 120, 8)}
    assert used == {"00000000", "11111111", "11110000", "00001111", "00111100"}
    other = draw_modes(120, blocks=PAPER.blocks, num_modes=60, mode_seed=1)
    assert not bool((modes == other).all())


def test_scores_fall_with_the_distance_to_the_nearest_mode():
    task = make_task()
    modes = ["".join(map(str, mode)) for mode in task.modes.tolist()]
    assert len(set(modes)) == 8
    for bits in map("".join, product("01", repeat=12)):
        distances = [sum(a != b for a, b in zip(bits, mode, strict=True)) for mode in modes]
        score = task.evaluate(sequence(bits), seed=0)
        assert score.value == pytest.approx(math.exp(-min(distances) / 12), abs=1e-12)
        assert score.metrics["distance"] == min(distances)
        assert distances[int(score.metrics["nearest_mode"])] == min(distances)


def test_maximum_number_of_modes_gives_all_block_sequences():
    modes = draw_modes(4, blocks=["00", "11"], num_modes=4, mode_seed=0)
    assert {"".join(map(str, mode)) for mode in modes.tolist()} == {"0000", "0011", "1100", "1111"}


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ('task_options.blocks=["00","1"]', r"task_options\.blocks: expected different words of 0 and 1 of one length"),
        ('task_options.blocks=["02"]', r"task_options\.blocks: expected different words of 0 and 1"),
        ("task_options.blocks=[]", r"task_options\.blocks: expected different words of 0 and 1 .*, got \[\]"),
        ('task_options.blocks=["00000"]', r"length that divides env\.bit_sequence\.num_bits=12, got 5"),
        ("task_options.num_modes=126", r"task_options\.num_modes: expected 1 to 125, for 3 of 5 blocks, got 126"),
        ("task_options.num_modes=0", r"task_options\.num_modes: expected a number >= 1, got 0"),
        ("task_options.mode_seed=-1", r"task_options\.mode_seed: expected a number >= 0, got -1"),
        ("evaluation.floor_score=0.5", r"evaluation\.floor_score: expected at most exp\(-1\)"),
        ("env.name=hypergrid", r"env\.name: expected bit_sequence with this task, got hypergrid"),
    ],
)
def test_invalid_modes_raise(option, message):
    with pytest.raises(ValueError, match=message):
        make_task(option)
