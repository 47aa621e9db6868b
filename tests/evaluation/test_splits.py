"""Splits of random tables: no group, time or equal row on both sides; classes as scikit-learn splits them."""

import re
import sys
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.model_selection import GroupShuffleSplit, StratifiedGroupKFold, StratifiedShuffleSplit, TimeSeriesSplit
from torch.utils.data import TensorDataset

from gflownet.errors import UserError
from gflownet.evaluation.data.datasets import load_splits
from gflownet.evaluation.data.examples import Split, Splits
from gflownet.evaluation.data.splits import (
    Division,
    check_classes_of_splits,
    order_of_dates,
    stratified_parts,
    summary_of_splits,
)


def random_table(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return labels, groups, times and equal rows of a random table."""
    rng = np.random.default_rng(seed)
    num = int(rng.integers(40, 400))
    groups = np.unique(rng.integers(0, rng.integers(8, 40), num), return_inverse=True)[1]
    follow = rng.random() < 0.5  # groups that follow each other, or a panel of groups at all times
    days = groups * 5 + rng.integers(0, 10, num) if follow else rng.integers(0, 30, num)
    equal = rng.integers(0, num, num)
    first = np.unique(equal, return_index=True)[1][np.unique(equal, return_inverse=True)[1]]
    return rng.integers(0, rng.integers(1, 5), num), groups, np.unique(days, return_inverse=True)[1], first


def are_disjoint(parts, values: np.ndarray) -> bool:
    sets = [set(values[rows].tolist()) for rows in parts]
    return not (sets[0] & sets[1] or sets[0] & sets[2] or sets[1] & sets[2])


@pytest.mark.parametrize("num_tables", [20, pytest.param(500, marks=pytest.mark.slow)])
def test_random_tables_are_split_by_group_time_and_equal_rows(num_tables):
    refused = 0
    for seed in range(num_tables):
        labels, groups, times, equal = random_table(seed)
        ways = {
            "groups": Division(labels, groups),
            "times": Division(labels, times=times),
            "both": Division(labels, groups, times),
            "equal": Division(labels, equal=equal),
        }
        for name, division in ways.items():
            try:
                parts = division.rows(seed=seed)
            except UserError:
                assert name == "both"
                refused += 1
                continue
            assert all(map(len, parts))
            assert are_disjoint(parts, np.arange(len(labels)))
            if division.groups is not None:
                assert are_disjoint(parts, groups)
            if division.times is not None:
                assert [times[a].max() < times[b].min() for a, b in pairwise(parts)] == [True, True]
            if division.equal is not None:
                assert are_disjoint(parts, equal)
            if name != "both":
                assert sum(map(len, parts)) == len(labels)
    assert refused <= num_tables / 20


def test_sizes_and_classes_are_those_of_scikit_learn():
    """The largest distance of the shares from 60/20/20, and of the classes from theirs, over random tables."""
    sizes, classes = {"ours": [], "theirs": []}, {"ours": [], "theirs": []}
    for seed in range(20):
        labels, groups, *_ = random_table(seed)
        rows = Division(labels, groups).rows(seed=seed)
        _, test = next(GroupShuffleSplit(1, test_size=0.2, random_state=seed).split(labels, labels, groups))
        sizes["ours"].append(abs(len(rows[2]) / len(labels) - 0.2))
        sizes["theirs"].append(abs(len(test) / len(labels) - 0.2))
        folds = StratifiedGroupKFold(5, shuffle=True, random_state=seed).split(labels, labels, groups)
        share = labels.mean()
        classes["ours"].append(abs(labels[rows[2]].mean() - share))
        classes["theirs"].append(max(abs(labels[test].mean() - share) for _, test in folds))
        ordered = Division(labels, times=np.arange(len(labels))).rows(seed=0)
        _, last = list(TimeSeriesSplit(4, test_size=round(0.2 * len(labels))).split(labels))[-1]
        assert abs(len(ordered[2]) - len(last)) <= 1
        assert {*ordered[2].tolist()} - {*last.tolist()} <= {len(labels) - len(ordered[2])}
    assert np.mean(sizes["ours"]) <= np.mean(sizes["theirs"]) + 0.01
    assert np.mean(classes["ours"]) <= np.mean(classes["theirs"])


def test_stratified_parts_have_the_shares_of_scikit_learn_and_every_class():
    labels = np.repeat([0, 1, 2], [90, 9, 3])
    parts = stratified_parts(labels, (0.6, 0.2, 0.2), seed=0)
    _, test = next(StratifiedShuffleSplit(1, test_size=0.2, random_state=0).split(labels[:99], labels[:99]))
    assert np.bincount(labels[parts[2]]).tolist() == [18, 2, 1]
    assert np.bincount(labels[test]).tolist() == [18, 2]
    assert [np.bincount(labels[part]).tolist() for part in parts] == [[54, 5, 1], [18, 2, 1], [18, 2, 1]]


def test_groups_and_times_leave_few_rows_of_groups_that_follow_each_other():
    groups = np.repeat(np.arange(20), 10)
    rows = Division(np.zeros(200, int), groups, np.arange(200)).rows(seed=0)
    assert list(map(len, rows)) == [120, 40, 40]


def test_summary_names_rows_groups_classes_and_rare_ones():
    labels, groups = np.repeat([0, 1], [90, 10]), np.arange(100) // 4
    division = Division(labels, groups)
    rows = division.rows(seed=0)
    lines = list(summary_of_splits(division, rows, [labels[part] for part in rows], ["no", "yes"]))
    assert lines[0] == "splits, by group, with classes as even as the groups allow:"
    assert re.fullmatch(r"  training    \d+ rows, \d+ groups, classes no: \d+, yes: \d", lines[1])
    assert lines[4].startswith("  classes with fewer than 5 examples in a split, whose scores are noise: yes (")
    assert sum(int(re.findall(r"(\d+) rows", line)[0]) for line in lines[1:4]) == 100


def test_split_with_one_class_is_refused():
    with pytest.raises(
        UserError, match=r"two or more classes in the test examples, got only no \(in all: no 5, yes 2\)"
    ):
        check_classes_of_splits([np.array([0, 1]), np.array([0, 1]), np.array([0, 0, 0])], ["no", "yes"])
    check_classes_of_splits([np.zeros(3, int)] * 3, ["no"])  # refused elsewhere, by another line


INPUTS = torch.arange(12, dtype=torch.int16).view(6, 2) % 5
RETURNED = {
    "splits": lambda parts: Splits(*(Split(*part) for part in parts)),
    "mapping": lambda parts: dict(zip(("train", "validation", "test"), parts, strict=True)),
    "datasets": lambda parts: dict(
        zip(("train", "validation", "test"), (TensorDataset(*part) for part in parts), strict=True)
    ),
}


@pytest.mark.parametrize("kind", RETURNED)
def test_splits_of_a_function_have_two_classes_each_and_long_tokens(monkeypatch, kind):
    parts = [(INPUTS, torch.arange(6) % 2), (INPUTS, torch.arange(6) % 2), (INPUTS, torch.ones(6).long())]
    module: Any = ModuleType("returned_splits")
    module.bad = lambda: RETURNED[kind](parts)
    module.good = lambda: RETURNED[kind]([*parts[:2], parts[0]])
    monkeypatch.setitem(sys.modules, "returned_splits", module)
    with pytest.raises(UserError, match=r"^data: expected two or more classes in the test examples, got only 1"):
        load_splits("returned_splits:bad", key="data", seed=0)
    batch, _ = next(iter(load_splits("returned_splits:good", key="data", seed=0).train.in_order()))
    assert batch.dtype == torch.int64


@pytest.mark.parametrize(
    ("num_positive", "expected"), [(2, "got only 0"), (3, None)], ids=["two positives", "three positives"]
)
def test_rare_class_is_in_every_split_or_refused(tmp_path, num_positive, expected):
    path, rng = tmp_path / "rare.csv", np.random.default_rng(0)
    rows = [f"{rng.normal():.3f},{'yes' if place < num_positive else 'no'}" for place in range(100)]
    path.write_text("\n".join(["a,fraud", *rows]))
    if expected:
        with pytest.raises(UserError, match=r"two or more classes in the test examples, got only no") as error:
            load_splits(str(path), key="task_options.data", seed=0)
        assert "splits, stratified by class:" in error.value.summary
    else:
        splits = load_splits(str(path), key="task_options.data", seed=0)
        assert [part.targets.unique().tolist() for part in splits] == [[0, 1]] * 3


def test_dates_of_the_rows_and_drift_are_named():
    days, rng = np.arange(300.0), np.random.default_rng(0)
    assert order_of_dates(days, rng.normal(size=300)) == "the rows are in its order"
    shuffled = rng.permutation(days)
    assert order_of_dates(shuffled, rng.normal(size=300)) == ""
    assert order_of_dates(shuffled, shuffled + rng.normal(size=300)).startswith("the target drifts with it")


@pytest.mark.parametrize("seed", range(20))
def test_class_names_of_a_test_file_are_never_cut(tmp_path, seed):
    """Random names of classes at positions, of several lengths; the test file has some of them, or an unknown one."""
    rng = np.random.default_rng(seed)
    names = np.unique(["".join(rng.choice(list("abT1$"), rng.integers(1, 6))) for _ in range(12)])
    for stem, drawn in (("train", names), ("test", rng.choice(names, 3, replace=False))):
        targets = np.concatenate([drawn, rng.choice(drawn, 40 * 4 - len(drawn))]).reshape(40, 4)
        np.savez(tmp_path / f"{stem}.npz", tokens=rng.integers(0, 9, (40, 4)), tags=targets)
    options = {"key": "task_options.data", "seed": 0, "test": str(tmp_path / "test.npz")}
    splits = load_splits(str(tmp_path / "train.npz"), **options)
    expected = np.searchsorted(names, targets)
    assert splits.test.targets.tolist() == expected.tolist()
    cut = np.array([name[:-1] for name in names if name[:-1] and name[:-1] not in names][:1] or ["c"])
    np.savez(tmp_path / "test.npz", tokens=rng.integers(0, 9, (40, 4)), tags=rng.choice(cut, (40, 4)))
    with pytest.raises(UserError, match="expected a class of the training examples"):
        load_splits(str(tmp_path / "train.npz"), **options)


def test_groups_of_arrays_and_folders_stay_in_one_split(tmp_path):
    patients = np.repeat(np.arange(20), 5)
    np.savez(tmp_path / "scans.npz", x=patients[:, None] + np.zeros((100, 3)), y=np.arange(100) % 2, groups=patients)
    splits = load_splits(str(tmp_path / "scans.npz"), key="task_options.data", seed=0)
    found = [set(part.inputs[:, 0].round().tolist()) for part in splits]
    assert sum(map(len, found)) == 20
    for place, patient in enumerate(patients):
        folder = tmp_path / "images" / "ab"[place % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((2, 2), patient, np.uint8)).save(folder / f"patient{patient}_{place}.png")
    (tmp_path / "groups.csv").write_text(
        "file,group\n" + "".join(f"patient{each}_{place}.png,{each}\n" for place, each in enumerate(patients))
    )
    for group in (r"(patient\d+)_", str(tmp_path / "groups.csv")):
        splits = load_splits(str(tmp_path / "images"), key="task_options.data", seed=0, group=group)
        found = [set((part.inputs.flatten(1)[:, 0] * 255).round().tolist()) for part in splits]
        assert sum(map(len, found)) == 20
        assert "splits, by group, with classes as even as the groups allow:" in splits.summary
    for group, words in (("patient", "in parentheses"), (r"(case)", "got none of a/patient0_0.png"), ("(", "pattern")):
        with pytest.raises(UserError, match=re.escape(words)):
            load_splits(str(tmp_path / "images"), key="task_options.data", seed=0, group=group)
