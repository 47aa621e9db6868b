"""The set of networks of a run: chosen on validation data among kept weights, then measured on test data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from statistics import fmean
from typing import Any, cast

import torch
from safetensors.torch import load
from torch import Tensor

from gflownet.errors import counted
from gflownet.evaluation.dispatcher import Dispatcher, EvaluationStoppedError
from gflownet.evaluation.evaluator import exceeded
from gflownet.evaluation.execution import describe
from gflownet.evaluation.final import FinalStage, NoStore, TopArchitecture
from gflownet.evaluation.job import Request
from gflownet.evaluation.racing import RANDOM_REPEAT
from gflownet.evaluation.sets import WEIGHTS_NAME, WeightFolder, calibration, figures_of, greedy, loss_of, predicted
from gflownet.evaluation.store_rows import EvaluationRecord, Identity
from gflownet.evaluation.tensor_task import TensorTask
from gflownet.files import sealed
from gflownet.report.architectures import SET_NAME, entry_of
from gflownet.run.parts import Parts
from gflownet.run.run import Run

_ROW = Mapping[str, Any]  # a row of the table: name, numbers of networks and parameters, test figures


def kept_weights(parts: Parts, run: Run) -> WeightFolder | None:
    """Return the folder of the weights that a run keeps, None without a set."""
    options, task = parts.config.final, parts.task
    if not (options.set and parts.plan.num_final and task.gives_outputs):
        return None
    cap = options.set_parameters or inf
    return WeightFolder(
        run.folder.path / WEIGHTS_NAME,
        options.keep,
        write=run.folder.write,
        accepts=lambda row: (row.num_parameters or 0) <= cap and exceeded(row.metrics, task.limits) is None,
        records=(row for row in run.store if row.run == parts.run_id) if run.folder.resumed else (),
    )


def with_set(parts: Parts, evaluator: Dispatcher, run: Run, final: FinalStage) -> FinalStage:
    """Choose and write the set; return the final stage with a line about it, or the reason why there is none."""
    if not parts.config.final.set or run.is_stopped:
        return final
    if evaluator.weights is None:
        line = f"no set of networks: task={parts.config.task} gives no outputs of trained modules"
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

    parts: Parts
    run: Run
    weights: WeightFolder
    dispatcher: Dispatcher
    final: FinalStage
    test: Mapping[Identity, Tensor] = field(default_factory=dict)  # predictions of the compared trainings

    def write(self) -> str:
        """Write set.json with the weights of its members, log the figures, and return the line about them."""
        rows = [row for row in self.run.store if row.run == self.parts.run_id and self.weights.path(row).exists()]
        rows.sort(key=lambda row: (row.seed, row.key, row.fidelity))
        own, random = ([row for row in rows if (row.seed >= RANDOM_REPEAT) == wanted] for wanted in (False, True))
        values = self._predictions(rows, "validation")
        chosen, random_set = self._chosen(own, values), self._chosen(random, values)
        if not chosen:
            return f"no set of networks: none of {len(own)} with kept weights has {self._max_parameters:,} parameters"
        small = [row for row in own if row.identity in values and _size([row]) <= _size(chosen)]
        targets = self._task.validation.targets
        single = min(small, key=lambda row: loss_of(values[row.identity], targets))
        best = [row for row in own if row.key == self.final.top[0].record.key and row.seed]
        compared = {
            f"a set of {len(chosen)}": chosen,
            "best alone": best,
            f"its {counted(len(best), 'seed')} averaged": best,
            "random's set": random_set,
            "a single network of at most that size": [single],
        }
        self.test = self._predictions(
            {row.identity: row for each in compared.values() for row in each}.values(), "test"
        )
        table = [self._row(name, members) for name, members in compared.items() if members]
        self._write(chosen, table, best)
        return _line(table, num_different=len({row.identity for row in chosen}))

    @property
    def _task(self) -> TensorTask:
        return cast(TensorTask, self.parts.task)

    @property
    def _max_parameters(self) -> float:
        return self.parts.config.final.set_parameters or inf

    def _predictions(self, rows: Any, split: str) -> dict[Identity, Tensor]:
        """Return the predictions of trainings on a split by their models in the executor; none of a failed one."""
        from_dict, targets = self.parts.env.terminal_type.from_dict, getattr(self._task.splits_in_use, split).targets
        requests = [
            Request(
                from_dict(json.loads(row.graph)),
                repeat=row.seed,
                fidelity=row.fidelity or None,
                split=split,
                weights=self.weights.path(row).read_bytes(),
            )
            for row in rows
        ]
        tickets = self.dispatcher.complete(requests, step=self.parts.step)
        outputs = {each.request.identity: each.outcome.outputs for each in tickets if each.outcome is not None}
        return {key: predicted(torch.from_numpy(o), targets) for key, o in outputs.items() if o is not None}

    def _chosen(self, rows: Sequence[EvaluationRecord], values: Mapping[Identity, Tensor]) -> list[EvaluationRecord]:
        rows = [row for row in rows if row.identity in values]
        places = greedy(
            [values[row.identity] for row in rows],
            self._task.validation.targets,
            [_size([row]) for row in rows],
            size=self.parts.config.final.set,
            max_parameters=self._max_parameters,
        )
        return [rows[place] for place in places]

    def _row(self, name: str, members: Sequence[EvaluationRecord]) -> _ROW:
        """Return a row of the table: figures of the averaged predictions; of "best alone", the mean of its seeds."""
        targets, values = self._task.test_split.targets, [self.test[row.identity] for row in members]
        if name == "best alone":
            each, members = [figures_of(value, targets) for value in values], members[:1]
            figures = {metric: fmean(row[metric] for row in each) for metric in each[0]}
        else:
            figures = figures_of(torch.stack(values).mean(0), targets)
        return {"name": name, "num_parameters": _size(members), **figures}

    def _write(
        self, chosen: Sequence[EvaluationRecord], table: Sequence[_ROW], best: Sequence[EvaluationRecord]
    ) -> None:
        run, task, targets = self.run, self._task, self._task.test_split.targets
        rows = list({row.identity: row for row in chosen}.values())
        graphs = [self.parts.env.terminal_type.from_dict(json.loads(row.graph)) for row in rows]
        entry = partial(entry_of, run.folder.path, task=task, write=run.folder.write)
        members = [
            entry(
                TopArchitecture(row, weights=load(self.weights.path(row).read_bytes())),
                *(None,),
                rank=rank,
                name=f"set_{rank}",
                graph=graph,
                settings=settings,
            )
            | {"weight": chosen.count(row) / len(chosen)}
            for rank, (row, graph, settings) in enumerate(zip(rows, graphs, task.settings(graphs), strict=True))
        ]
        has_classes = not targets.is_floating_point()
        bins = {"set": chosen, "best alone": best[:1]} if has_classes else {}
        curves = {
            name: calibration(torch.stack([self.test[row.identity] for row in each]).mean(0), targets)
            for name, each in bins.items()
            if each
        }
        content = {
            "has_classes": has_classes,
            "members": [*map(sealed, members)],
            "table": table,
            "calibration": curves,
        }
        run.folder.write(run.folder.path / SET_NAME, json.dumps(sealed(content), indent=1) + "\n")
        names = ("set", "best_alone", "best_seeds", "random_set", "best_single")
        run.logger.summarise(
            {
                f"{name}_{metric}": value
                for name, row in zip(names, table, strict=False)
                for metric, value in row.items()
                if metric != "name"
            }
        )


def _size(rows: Sequence[EvaluationRecord]) -> int:
    """Return the number of parameters of different trainings."""
    return sum({row.identity: row.num_parameters or 0 for row in rows}.values())


def _line(table: Sequence[_ROW], *, num_different: int) -> str:
    first, *others = table
    shown = [key for key in first if key not in ("name", "num_parameters", "calibration_error")]
    words = {key: "R²" if key == "r2" else key.replace("_", " ") for key in shown}
    figures = ", ".join(f"{words[key]} {first[key]:.4g}" for key in shown)
    size = f"{counted(num_different, 'distinct network')}, {first['num_parameters']:,} parameters"
    rest = "".join(f"; {row['name']} {', '.join(f'{row[key]:.4g}' for key in shown)}" for row in others)
    return f"{first['name']} ({size}): {figures}{rest}"
