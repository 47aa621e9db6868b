"""The set of networks of a run: chosen on validation data among kept weights, then measured on test data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, cast

import torch
from torch import Tensor

from gflownet.errors import counted
from gflownet.evaluation.candidates.metrics import METRICS
from gflownet.evaluation.candidates.sets import (
    WEIGHTS_NAME,
    WeightFolder,
    calibration,
    figures_of,
    greedy,
    loss_of,
    predicted,
)
from gflownet.evaluation.candidates.tensor_task import INHERITED, TensorTask
from gflownet.evaluation.data.examples import labelled_classes
from gflownet.evaluation.dispatcher import Dispatcher, EvaluationStoppedError
from gflownet.evaluation.evaluator import exceeded
from gflownet.evaluation.execution import describe
from gflownet.evaluation.final import FinalStage, TopArchitecture
from gflownet.evaluation.job import Request
from gflownet.evaluation.racing import RANDOM_REPEAT
from gflownet.evaluation.store.claims import NoStore
from gflownet.evaluation.store.rows import EvaluationRecord, Identity
from gflownet.evaluation.task import GFNTask
from gflownet.files import sealed
from gflownet.report.architectures import SET_NAME, entries_of
from gflownet.run.components import Components
from gflownet.run.run import Run

_NUM_KEPT = 20  # best candidates of the search, and of random ones, whose weights are kept for the set
_Row = dict[str, Any]  # key, name, number of parameters and test figures of a set or network


def kept_weights(parts: Components, run: Run) -> WeightFolder | None:
    """Return the folder of the weights that a run keeps, None without final trainings of modules."""
    task = parts.task
    if not (parts.plan.num_final and task.max_fidelity):
        return None

    has_set = _has_set(parts)
    return WeightFolder(
        run.folder.path / WEIGHTS_NAME,
        _NUM_KEPT if has_set else 0,
        write=run.folder.write,
        is_allowed=lambda row: INHERITED not in row.metrics and exceeded(row.metrics, task.limits) is None,
        keeps_all=has_set,
        records=run.store.of_run(parts.run_id) if run.folder.resumed else (),
    )


def _has_set(parts: Components) -> bool:
    return bool(parts.config.final.set) and type(parts.task).outputs is not GFNTask.outputs


def with_set(parts: Components, evaluator: Dispatcher, run: Run, final: FinalStage) -> FinalStage:
    """Choose and write the set; return the final stage with a line about it, or the reason why there is none."""
    if not parts.config.final.set or run.is_stopped:
        return final
    if evaluator.weights is None or not _has_set(parts):
        line = f"no set of networks: task={parts.config.task} gives no trained modules"
    else:
        dispatcher = parts.build_evaluator(NoStore(), evaluator.executor, stopped=lambda: run.is_stopped)
        try:
            with closing(dispatcher):
                line = _Choice(parts, run, evaluator.weights, dispatcher, final).write()
        except EvaluationStoppedError:
            return final
        except Exception as error:  # the report is written without it
            line = f"no set of networks: {describe(error)}"
    return replace(final, notes=(*final.notes, line))


@dataclass
class _Choice:
    """Choice and figures of a set."""

    parts: Components
    run: Run
    weights: WeightFolder
    dispatcher: Dispatcher
    final: FinalStage

    def write(self) -> str:
        """Write set.json with the weights of its members, log the figures, and return the line about them."""
        task = cast(TensorTask, self.parts.task)
        rows = [row for row in self.run.store.of_run(self.parts.run_id) if self.weights.path(row).exists()]
        rows = [row for row in rows if exceeded(row.metrics, task.limits) is None]
        targets, values = task.validation.targets, self._predictions(rows, "validation")
        rows = sorted((row for row in rows if row.identity in values), key=lambda row: row.identity)
        own, random = ([row for row in rows if (row.seed >= RANDOM_REPEAT) == is_random] for is_random in (False, True))
        if not (members := self._chosen(own, values)):
            return "no set of networks: no outputs of modules that this run has trained"
        losses = {row.identity: loss_of(values[row.identity], targets) for row in own}
        single = min((row for row in own if _size([row]) <= _size(members)), key=lambda row: losses[row.identity])
        top = self.final.top if self.final.sizes else self.final.top[:1]  # with caps, those of each cap
        first = max(top, key=lambda each: (bool(each.scores), each.mean)).record  # others have the search's score
        length = self.final.fidelity or 0
        best = [row for row in own if row.seed and row.key == first.key and row.fidelity == length]
        compared = {
            ("set", f"a set of {len(members)}"): members,
            ("best_alone", "best alone"): best,
            ("best_seeds", f"its {counted(len(best), 'seed')} averaged"): best,
            ("random_set", "random's set"): self._chosen(random, values),
            ("best_single", "the best single network of at most that size"): [single],
        }
        different = {row.identity: row for members in compared.values() for row in members}
        test = self._predictions(list(different.values()), "test")
        table = [
            {"key": key, "name": name, "num_parameters": _size(members[:1] if key == "best_alone" else members)}
            | _figures([test[row.identity] for row in members], task, is_mean=key != "best_alone")
            for (key, name), members in compared.items()
            if members
        ]
        self._write_members(members, table)
        self.run.record(set=tuple(table))
        return _line(table, num_different=len({row.identity for row in members}))

    def _predictions(self, rows: Sequence[EvaluationRecord], split: str) -> dict[Identity, Tensor]:
        """Return the predictions of trainings on a split by their models in the executor; none of a failed one."""
        from_dict = self.parts.env.terminal_type.from_dict
        options = [{"repeat": row.seed, "fidelity": row.fidelity or None, "split": split} for row in rows]
        requests = [
            Request(from_dict(json.loads(row.graph)), training=self.weights.path(row).read_bytes(), **each)
            for row, each in zip(rows, options, strict=True)
        ]
        targets = getattr(cast(TensorTask, self.parts.task).splits_in_use, split).targets
        futures = self.dispatcher.complete(requests, step=self.parts.step)
        outputs = {each.request.identity: each.outcome.outputs for each in futures if each.outcome is not None}
        known = {key: predicted(torch.from_numpy(o), targets) for key, o in outputs.items() if o is not None}
        return {key: values for key, values in known.items() if values.isfinite().all()}

    def _chosen(self, rows: Sequence[EvaluationRecord], values: Mapping[Identity, Tensor]) -> list[EvaluationRecord]:
        targets, size = cast(TensorTask, self.parts.task).validation.targets, self.parts.config.final.set
        return [rows[place] for place in greedy([values[row.identity] for row in rows], targets, size=size)]

    def _write_members(self, members: Sequence[EvaluationRecord], table: Sequence[_Row]) -> None:
        folder, from_dict = self.run.folder, self.parts.env.terminal_type.from_dict
        rows = list({row.identity: row for row in members}.values())
        trained = [TopArchitecture(row, weights=self.weights.read(row)) for row in rows]
        parts: Any = {"task": self.parts.task, "from_dict": from_dict, "write": folder.write}
        entries = entries_of(folder.path, trained, [None] * len(rows), prefix="set", **parts)
        described = [
            sealed(entry | {"seed": row.seed, "weight": members.count(row) / len(members)})
            for entry, row in zip(entries, rows, strict=True)
        ]
        content = {"has_classes": "accuracy" in table[0], "members": described, "table": table}
        folder.write(folder.path / SET_NAME, json.dumps(sealed(content), indent=1) + "\n")


def _size(rows: Sequence[EvaluationRecord]) -> int:
    """Return the number of parameters of different trainings."""
    return sum({row.identity: row.num_parameters or 0 for row in rows}.values())


def _figures(values: Sequence[Tensor], task: TensorTask, *, is_mean: bool) -> _Row:
    """Return the figures of the mean of predictions, or their mean figures and the calibration of the first.

    The metric of the run comes first, unless it is a function of the user; those of numbers are in its units.
    """
    each, targets = [torch.stack([*values]).mean(0)] if is_mean else values, task.test_split.targets
    metric, is_number = task.measure.metric, targets.is_floating_point()

    def figures(value: Tensor) -> dict[str, float]:
        outputs, true = (value, targets) if is_number else (value.log(), labelled_classes(targets))
        own = {metric.name: task.test_measure.value_of([(outputs, true)])} if metric.name in METRICS else {}
        return own | figures_of(metric.units(value), metric.units(targets))

    rows = [figures(value) for value in each]
    means = {name: fmean(row[name] for row in rows) for name in rows[0]}
    return means if is_number else means | {"calibration": calibration(each[0], targets)}


def _line(table: Sequence[_Row], *, num_different: int) -> str:
    """Return the first two figures of all rows, with the names of the first."""
    first, *others = table
    shown = [name for name, value in first.items() if isinstance(value, float)][:2]
    figures = ", ".join(f"{name.replace('_', ' ')} {first[name]:.4g}" for name in shown)
    size = f"{counted(num_different, 'distinct network')}, {counted(first['num_parameters'], 'parameter')}"
    rest = "".join(f"; {row['name']} {', '.join(f'{row[name]:.4g}' for name in shown)}" for row in others)
    return f"{first['name']} ({size}): {figures}{rest}"
