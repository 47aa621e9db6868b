"""Sets of networks: kept weights, greedy selection against brute force, calibration error."""

from dataclasses import replace
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from gflownet.evaluation.candidates.sets import (
    NUM_BINS,
    WeightFolder,
    calibration,
    figures_of,
    greedy,
    loss_of,
    predicted,
)
from gflownet.evaluation.job import EvaluationStatus
from gflownet.evaluation.racing import RANDOM_REPEAT
from gflownet.files import write_whole
from tests.evaluation.candidates import record

NUM, CLASSES = 40, 3


def probabilities(num: int, seed: int) -> tuple[list[Tensor], Tensor]:
    """Return probabilities of a number of networks, and targets."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(CLASSES, (NUM,), generator=generator)
    logits = torch.randn(num, NUM, CLASSES, generator=generator)
    logits += 1.5 * torch.nn.functional.one_hot(targets, CLASSES)
    return [predicted(each, targets) for each in logits], targets


def best_next(values: list[Tensor], targets: Tensor, chosen: list[int], allowed: list[int]) -> int:
    """Return the place that brute force adds to a set."""

    def loss(place: int) -> float:
        mean = np.mean([values[k].numpy() for k in (*chosen, place)], axis=0)
        return float(np.mean([-np.log(mean[row, target]) for row, target in enumerate(targets.tolist())]))

    return min(allowed, key=loss)


@pytest.mark.parametrize("seed", range(4))
def test_greedy_adds_the_best_of_brute_force(seed: int):
    values, targets = probabilities(6, seed)
    chosen = greedy(values, targets, size=5)
    assert len(chosen) == 5
    for number in range(5):
        assert chosen[number] == best_next(values, targets, chosen[:number], [*range(6)])
    # No better pair begins with the best network.
    pairs = {
        pair: loss_of((values[pair[0]] + values[pair[1]]) / 2, targets)
        for pair in combinations_with_replacement(range(6), 2)
        if chosen[0] in pair
    }
    assert {*chosen[:2]} == {*min(pairs, key=lambda pair: pairs[pair])}


def test_greedy_repeats_the_one_good_network():
    values, targets = probabilities(4, 0)
    good = predicted(8.0 * torch.nn.functional.one_hot(targets, CLASSES), targets)
    values = [torch.full_like(good, 1 / CLASSES), good, torch.full_like(good, 1 / CLASSES)]
    assert greedy(values, targets, size=3) == [1, 1, 1]


def test_greedy_averages_numbers():
    targets = torch.tensor([[0.0], [1.0], [2.0]])
    values = [targets - 0.5, torch.zeros(3, 1), targets + 0.4]
    assert greedy([each.double() for each in values], targets, size=2) == [2, 0]
    figures = figures_of(values[2].double(), targets)
    assert figures == {"r2": pytest.approx(1 - 0.16 / (2 / 3)), "mse": pytest.approx(0.16)}


def test_calibration_error_equals_that_of_a_loop():
    values, targets = probabilities(1, 3)
    error, rows = (
        0.0,
        [(max(p), p.index(max(p)) == t) for p, t in zip(values[0].tolist(), targets.tolist(), strict=True)],
    )
    for place in range(NUM_BINS):
        inside = [row for row in rows if place / NUM_BINS < row[0] <= (place + 1) / NUM_BINS]
        if inside:
            gap = sum(right for _, right in inside) / len(inside) - sum(sure for sure, _ in inside) / len(inside)
            error += len(inside) / NUM * abs(gap)
    figures = figures_of(values[0], targets)
    assert figures["calibration_error"] == pytest.approx(error)
    assert figures["accuracy"] == sum(right for _, right in rows) / NUM
    assert sum(share for _, _, share in calibration(values[0], targets)) == pytest.approx(1.0)


def test_calibration_error_of_a_sure_network_is_its_error_rate():
    targets = torch.tensor([0, 0, 0, 1])
    sure = torch.tensor([[1.0, 0.0]] * 4).double()
    assert figures_of(sure, targets)["calibration_error"] == pytest.approx(0.25)


def folder_of(path: Path, num_best: int = 2, **options) -> WeightFolder:
    return WeightFolder(path / "weights", num_best, write=write_whole, **options)


def rows_of(*scores: float, seed: int = 0):
    return [replace(record(f"{score}"), score=score, seed=seed) for score in scores]


def kept(folder: WeightFolder, rows) -> list[float]:
    return [row.score for row in rows if folder.path(row).exists()]


@pytest.mark.parametrize("seed", [0, RANDOM_REPEAT])
def test_weight_folder_keeps_the_best_candidates(seed: int, tmp_path: Path):
    folder, rows = folder_of(tmp_path), rows_of(0.5, 0.3, 0.9, 0.1, 0.7, seed=seed)
    for row in rows:
        folder.add(row, str(row.score).encode())
    assert kept(folder, rows) == [0.9, 0.7]
    assert folder.path(rows[2]).read_bytes() == b"0.9"


def test_weight_folder_keeps_all_new_seeds_and_no_failure(tmp_path: Path):
    folder, rows = folder_of(tmp_path, 1), [*rows_of(0.5, 0.6, seed=1), *rows_of(0.7, seed=RANDOM_REPEAT + 1)]
    failed = replace(rows_of(0.8, seed=2)[0], status=EvaluationStatus.FAILED)
    for row in (*rows, failed):
        folder.add(row, b"weights")
    assert kept(folder, [*rows, failed]) == [0.5, 0.6, 0.7]


def test_weight_folder_without_a_set_keeps_first_new_seeds(tmp_path: Path):
    folder = folder_of(tmp_path, 0, keeps_all=False)
    rows = [row for seed in (0, 1, 2) for row in rows_of(0.1 + seed, seed=seed)]
    rows += [row for seed in (0, 1, 2) for row in rows_of(0.2 + seed, seed=RANDOM_REPEAT + seed)]
    for row in rows:
        folder.add(row, b"weights")
    assert kept(folder, rows) == [1.1, 1.2]
    assert [row.seed % RANDOM_REPEAT for row in rows if folder.keeps(row.seed)] == [1, 1]
    assert folder.read(rows[0]) is None


def test_weight_folder_goes_on_after_a_kill(tmp_path: Path):
    """A process that ends between writing a file and removing another one leaves one too many."""
    rows, stranger = rows_of(0.5, 0.3, 0.9, 0.1), tmp_path / "weights" / "of-a-user.safetensors"
    first = folder_of(tmp_path, 3)
    for row in rows[:3]:
        first.add(row, b"weights")
    stranger.write_bytes(b"theirs")
    again = folder_of(tmp_path, 2, records=rows)
    assert kept(again, rows) == [0.5, 0.9]
    again.add(rows_of(0.8)[0], b"weights")
    assert kept(again, [*rows, *rows_of(0.8)]) == [0.9, 0.8]
    assert stranger.read_bytes() == b"theirs"
