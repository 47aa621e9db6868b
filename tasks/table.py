"""Classification and regression of tables: a CSV file or one of scikit-learn's data sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gflownet.errors import UserError
from gflownet.evaluation.datasets import load_splits, standardised, with_standard_targets
from gflownet.evaluation.examples import Split, Splits
from gflownet.evaluation.reference_models import classifier_or_regressor, estimator_reference
from gflownet.evaluation.supervised import SupervisedTask
from gflownet.evaluation.task import Reference
from gflownet.options import option


@dataclass
class TableConfig:
    """The table."""

    data: str = option("wine", "wine, iris, breast_cancer, diabetes, digits, a path (CSV or npz) or module:callable")
    data_test: str = option("", "path of a CSV file with test rows; empty: a fifth of the rows")
    target: str = option("", "column of a CSV file with the target; empty: the last")
    kind: Literal["auto", "classes", "numbers"] = option(
        "auto", "the target is a class or a number; auto: text and up to 50 different whole numbers are classes"
    )


class TableTask(SupervisedTask):
    """Predict a class or a number from the columns of a table, all standardised with the training rows.

    Rows are split 60/20/20 by `evaluation.split_seed`, stratified by class.
    """

    Config = TableConfig

    def splits(self) -> Splits:
        options, seed = self.config.task_options, self.config.evaluation.split_seed
        splits = load_splits(
            options.data,
            key="task_options.data",
            seed=seed,
            target=options.target,
            test=options.data_test,
            kind=options.kind,
        )
        return with_standard_targets(standardised(flat(splits, source=options.data)))

    def references(self, *, seeds: Sequence[int]) -> Sequence[Reference]:
        """Return the scores of scikit-learn's MLP and HistGradientBoosting."""
        mlp = classifier_or_regressor(self, "neural_network.MLPClassifier", "neural_network.MLPRegressor")
        boosting = classifier_or_regressor(
            self, "ensemble.HistGradientBoostingClassifier", "ensemble.HistGradientBoostingRegressor"
        )
        references = [
            estimator_reference(self, "scikit-learn MLP", mlp, seeds=seeds),
            estimator_reference(self, "scikit-learn HistGradientBoosting", boosting, seeds=seeds),
        ]
        return [reference for reference in references if reference is not None]


def flat(splits: Splits, *, source: str) -> Splits:
    """Return splits with one vector [F] per example. Raises UserError for a Dataset."""
    parts = [Split(part.inputs.flatten(1).float(), part.targets) for part in splits if isinstance(part, Split)]
    if len(parts) < len(list(splits)):
        raise UserError(f"task_options.data: expected a table, got a Dataset from {source}")
    return Splits(*parts, num_outputs=splits.num_outputs)
