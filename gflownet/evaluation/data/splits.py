"""Rows of the training, validation and test split: stratified by class, by group, in order of time, or both.

N: rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gflownet.errors import UserError, counted

# Shares of the examples; where a data set brings its own validation or test examples, theirs are trained on.
TRAIN_SHARE = 0.6
VALIDATION_SHARE = TEST_SHARE = 0.2
NAMES = ("training", "validation", "test")
_NUM_FOLDS = 5  # of which one validates and one tests
_NUM_ORDERS = 50  # of groups, to choose from
_NUM_RARE = 5  # examples of a class in a split, below which the summary names it
_MAX_SHOWN = 10  # classes with their numbers in a line
_MIN_DRIFT = 0.2  # smallest rank correlation of a target with a date that is named

Rows = Sequence[np.ndarray]  # indices of the training, validation and test rows


@dataclass(frozen=True)
class Division:
    """What decides about the split of each row."""

    labels: np.ndarray  # [N] classes; all 0 without
    groups: np.ndarray | None = None  # [N] integers: equal ones are in one split
    times: np.ndarray | None = None  # [N] integers: later rows are in later splits, equal ones in one split
    equal: np.ndarray | None = None  # [N] integers, as `groups`, where there are neither groups nor times
    has_validation: bool = False  # whether the data bring validation examples of their own
    has_test: bool = False

    @property
    def shares(self) -> np.ndarray:
        """Return the shares of the three splits; 0 where the data bring one."""
        shares = np.array([0.0, (not self.has_validation) * VALIDATION_SHARE, (not self.has_test) * TEST_SHARE])
        shares[0] = 1.0 - shares.sum()
        return shares

    def rows(self, *, seed: int) -> Rows:
        """Return the rows of the three splits, which are disjoint.

        Raises:
            UserError: too few groups or times, or none that are both unseen and later.
        """
        if self.times is not None:
            return self._in_order(self.times, seed=seed)
        if self.groups is not None:
            return self._by_group(self.groups, seed=seed)
        if self.equal is not None:
            first = np.unique(self.equal)
            parts = stratified_parts(self.labels[first], self.shares, seed=seed)
            return [np.flatnonzero(np.isin(self.equal, first[part])) for part in parts]
        return stratified_parts(self.labels, self.shares, seed=seed)

    def _by_group(self, groups: np.ndarray, *, seed: int) -> Rows:
        """Return parts with disjoint groups, by fifths with classes as even as the groups allow."""
        from sklearn.model_selection import StratifiedGroupKFold

        if (num := len(np.unique(groups))) < _NUM_FOLDS:
            raise UserError(f"expected {_NUM_FOLDS} or more groups, got {num}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a class with fewer members than folds
            folds = StratifiedGroupKFold(_NUM_FOLDS, shuffle=True, random_state=seed)
            fifths = [part for _, part in folds.split(self.labels, self.labels, groups)]
        none = np.zeros(0, dtype=int)
        test = none if self.has_test else fifths.pop()
        validation = none if self.has_validation else fifths.pop(0)
        return np.sort(np.concatenate(fifths)), validation, test

    def _in_order(self, times: np.ndarray, *, seed: int) -> Rows:
        """Return parts in order of time; with groups, the rows of each part that are in its groups and in its time.

        Groups are divided in the order of their mean time, so that few rows of groups that follow each other are left
        out; of the orders of groups with equal means, the one with most classes in each part.
        """
        place, groups = _cut(np.bincount(times), self.shares, "times")[times], self.groups
        if groups is None:
            return [np.flatnonzero(place == part) for part in range(3)]
        num, rng = np.bincount(groups), np.random.default_rng(seed)
        mean = np.bincount(groups, times) / num
        best: tuple[int, Rows] = (-1, ())
        for _ in range(_NUM_ORDERS):
            order, part_of = np.lexsort((rng.permutation(len(num)), mean)), np.empty_like(num)
            part_of[order] = _cut(num[order], self.shares, "groups")
            both = np.where(part_of[groups] == place, place, -1)
            parts = [np.flatnonzero(both == part) for part in range(3)]
            wanted = (rows for rows, share in zip(parts, self.shares, strict=True) if share > 0)
            num_classes = min(len(np.unique(self.labels[rows])) for rows in wanted)
            best = max(best, (num_classes, parts), key=lambda each: each[0])
            if best[0] == len(np.unique(self.labels)):
                break  # no order has more
        for name, rows, share in zip(NAMES, best[1], self.shares, strict=True):
            if share > 0 and not len(rows):
                text = f"expected {name} rows that are in their order of time and in groups of their own, got none"
                raise UserError(f"{text}; split by group or by time alone")
        return best[1]

    def words(self) -> str:
        """Return how the rows are split."""
        if self.times is not None:
            later = "in order of time, equal times in one split"
            return later if self.groups is None else f"later rows of unseen groups, {later}"
        classes = "stratified by class" if len(np.unique(self.labels)) > 1 else "by chance"
        if self.groups is None:
            return classes
        return "by group" if classes == "by chance" else "by group, with classes as even as the groups allow"


def stratified_parts(labels: np.ndarray, shares: Sequence[float] | np.ndarray, *, seed: int) -> Rows:
    """Return the indices of three parts, each with its share of every label, and at least one of it where it can."""
    rng, positive = np.random.default_rng(seed), np.asarray(shares) > 0
    parts: tuple[list[np.ndarray], ...] = ([], [], [])
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        sizes = np.diff(np.round(len(members) * np.cumsum([0.0, *shares])).astype(int))
        while (empty := positive & (sizes == 0)).any() and len(members) >= positive.sum():
            sizes[empty.argmax()] += 1
            sizes[sizes.argmax()] -= 1
        for part, indices in zip(parts, np.split(members, np.cumsum(sizes)[:2]), strict=True):
            part.append(indices)
    return tuple(np.sort(np.concatenate(part)) for part in parts)


def _cut(counts: np.ndarray, shares: np.ndarray, noun: str) -> np.ndarray:
    """Return the part of each of K values in order, with so many rows each, by the nearest cuts to the shares."""
    wanted, num = np.flatnonzero(shares > 0), len(counts)
    if num < len(wanted):
        raise UserError(f"expected {len(wanted)} or more different {noun}, got {num}")
    ends, part = np.cumsum(counts), np.full(num, wanted[-1])
    start = 0
    for left, (index, end) in enumerate(zip(wanted[:-1], np.cumsum(shares[wanted])[:-1], strict=True)):
        stop = 1 + int(np.abs(ends - end * ends[-1]).argmin())
        stop = min(max(stop, start + 1), num - (len(wanted) - 1 - left))  # one value at least for each
        part[start:stop], start = index, stop
    return part


def summary_of_splits(
    division: Division, rows: Rows, labels: Sequence[np.ndarray], names: Sequence[str]
) -> Iterator[str]:
    """Yield the lines about the splits: numbers of rows, groups and classes, and rare or absent classes.

    Args:
        division: of the rows.
        rows: of the three splits; a split that the data bring has none.
        labels: classes of the examples of the splits.
        names: of the classes; empty: there are none.
    """
    num_left = len(division.labels) - sum(map(len, rows))
    left_out = f"; {counted(num_left, 'row')} left out" if num_left else ""
    yield f"splits, {division.words()}{left_out}:"
    rare, counts = list[str](), list[np.ndarray]()
    for name, part, classes in zip(NAMES, rows, labels, strict=True):
        words = [counted(len(classes), "row")]
        if division.groups is not None and len(part):
            words.append(counted(len(np.unique(division.groups[part])), "group"))
        if names:
            counts.append(np.bincount(classes, minlength=len(names)))
            shown = "classes " + ", ".join(
                f"{label}: {num:,}" for label, num in zip(names[:_MAX_SHOWN], counts[-1], strict=False)
            )
            words.append(shown + ", ..." * (len(names) > _MAX_SHOWN))
            for label, num in zip(names, counts[-1], strict=True):
                rare += [f"{label} ({num} in {name})"] * int(num < _NUM_RARE)
        yield f"  {name:<10}  {', '.join(words)}"
    if rare:
        shown = ", ".join(rare[:_MAX_SHOWN]) + ", ..." * (len(rare) > _MAX_SHOWN)
        yield f"  classes with fewer than {_NUM_RARE} examples in a split, whose scores are noise: {shown}"


def check_classes_of_splits(labels: Sequence[np.ndarray], names: Sequence[str]) -> None:
    """Raise UserError unless each split of a data set with several classes has two or more of them."""
    if len(np.unique(np.concatenate(labels))) < 2:
        return  # no data set of classes at all, see check_present
    for name, part in zip(NAMES, labels, strict=True):
        if len(present := np.unique(part)) == 1:
            counts = np.bincount(np.concatenate(labels), minlength=len(names))
            others = ", ".join(f"{label} {num:,}" for label, num in zip(names, counts, strict=True))
            text = f"expected two or more classes in the {name} examples, got only {names[present[0]]}"
            raise UserError(f"{text} (in all: {others}); each split needs two, also by group or in order of time")


def order_of_dates(days: np.ndarray, targets: np.ndarray) -> str:
    """Return what a column of dates tells about the rows: that they are in its order, or drift with it; else empty.

    Args:
        days: [N] numbers of days; NaN where there is none.
        targets: [N] numbers, or classes.
    """
    has_day = ~np.isnan(days)
    days, targets = days[has_day], targets[has_day]
    if len(days) < _NUM_FOLDS or len(np.unique(days)) < _NUM_FOLDS:
        return ""
    steps = np.diff(days)
    if (steps >= 0).all() or (steps <= 0).all():
        return "the rows are in its order"
    centred = [ranks - ranks.mean() for ranks in (_ranks(days), _ranks(targets))]
    scale = np.sqrt((centred[0] ** 2).sum() * (centred[1] ** 2).sum())
    correlation = float((centred[0] * centred[1]).sum() / scale) if scale else 0.0
    # Three standard errors of the rank correlation of independent values, and not negligible.
    if abs(correlation) > max(3 / np.sqrt(len(days)), _MIN_DRIFT):
        return f"the target drifts with it (rank correlation {correlation:+.2f})"
    return ""


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return the mean rank of each value."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[places]
