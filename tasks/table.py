"""Classification and regression of tables: a CSV file or one of scikit-learn's data sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Literal

from gflownet.errors import UserError
from gflownet.evaluation.candidates.references import OPTIONAL, classifier_or_regressor, estimator_method
from gflownet.evaluation.candidates.supervised import SupervisedTask
from gflownet.evaluation.data.checks import with_shaped_targets
from gflownet.evaluation.data.datasets import splits_of, standardised, with_standard_targets
from gflownet.evaluation.data.examples import Split, Splits
from gflownet.evaluation.presentation import ReferenceMethod
from gflownet.options import option

_ESTIMATORS = {
    "scikit-learn RandomForest": "ensemble.RandomForest",
    "scikit-learn MLP": "neural_network.MLP",
    "scikit-learn HistGradientBoosting": "ensemble.HistGradientBoosting",
    "CatBoost": "catboost.CatBoost",
    "TabPFN": "tabpfn.TabPFN",
}


@dataclass
class TableConfig:
    """The table."""

    data: str = option(
        "wine", "wine, iris, breast_cancer, diabetes, digits, a path (CSV, Parquet or npz) or module:callable"
    )
    data_test: str = option("", "path of a file with test rows; empty: a fifth of the rows")
    target: str = option("", "column with the target, or several of numbers as a,b; empty: the last")
    kind: Literal["auto", "classes", "numbers"] = option(
        "auto", "the target is a class or a number; auto: text and up to 50 different whole numbers are classes"
    )
    header: Literal["auto", "yes", "no"] = option("auto", "whether the first row of a CSV file has the names")
    encoding: str = option("", "of a CSV file, such as latin1; empty: UTF-8, UTF-16 with a mark, or cp1252")
    columns: Any = option(
        {},
        "kinds of columns by name: number, date (or its format, as %d.%m.%Y), text, words (of free text) or ignored; "
        "others are found from their cells",
    )
    group: str = option("", "column whose equal values stay in one split, such as a patient; no input")
    weights: str = option("", "column of the weights of the rows in loss and metrics; no input")
    target_transform: Literal["auto", "log1p", "none"] = option(
        "auto", "predict log(1 + target), of numbers from 0; auto: of those with a heavy tail"
    )
    time: str = option("", "column in whose order rows are split: the oldest are trained on, the newest are the test")
    duplicates: Literal["refuse", "together", "keep"] = option(
        "together", "equal rows: together in one split, by chance as other rows (keep), or refuse more than 5 %"
    )


class TableTask(SupervisedTask):
    """Predict a class or a number from the columns of a table, prepared and standardised with the training rows.

    Rows are split 60/20/20 by `evaluation.split_seed`, stratified by class, by group or in order of time.
    """

    Config = TableConfig

    def splits(self) -> Splits:
        splits = splits_of(self.config)
        splits = with_shaped_targets(splits, key="task_options.data")
        return with_standard_targets(standardised(flat(splits, source=self.config.task_options.data)))

    def reference_methods(self) -> Sequence[ReferenceMethod]:
        """Return estimators with their defaults on the same inputs, of other packages where installed."""
        return [
            estimator_method(self, name, classifier_or_regressor(self, f"{path}Classifier", f"{path}Regressor"))
            for name, path in _ESTIMATORS.items()
            if not path.startswith(OPTIONAL) or find_spec(path.partition(".")[0])
        ]


def flat(splits: Splits, *, source: str) -> Splits:
    """Return splits with one vector [F] per example. Raises UserError for a Dataset."""
    if not all(isinstance(part, Split) for part in splits):
        raise UserError(f"task_options.data: expected a table, got a Dataset from {source}")
    return splits.changed(lambda part: replace(part, inputs=part.inputs.flatten(1).float()), layout=None)
