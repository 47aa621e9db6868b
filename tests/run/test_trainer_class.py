"""A run of a subclass of GFNTrainer is recorded, and resumed, as itself."""

from pathlib import Path

import pytest

from gflownet.config import load_config, stored_config
from gflownet.errors import UserError
from gflownet.run.sampling import sample
from gflownet.run.trainer import GFNTrainer, build_trainer
from gflownet.train import main
from tests.evaluation.stub_rows import open_store
from tests.finished_runs import copy_finished
from tests.small_run import SMALL
from tests.tiny_run import metric_rows
from tests.toy_tasks import RewardsHiddenNodes

OPTIONS = (*SMALL, "wandb.mode=disabled", "report.every=null", "num_training_steps=2")


class FewEdges(RewardsHiddenNodes):
    """Another score than that of the option task."""

    def evaluate(self, graph, *, seed):
        score = super().evaluate(graph, seed=seed)
        return type(score)(0.9 if len(graph.edges) < 3 else 0.1)


class OfFewEdges(GFNTrainer):
    """Builds the task itself."""

    def build_task(self):
        return FewEdges(self.config)


def run(folder: Path, *options: str, kind: type[GFNTrainer] = OfFewEdges) -> GFNTrainer:
    trainer = kind(load_config(None, [*OPTIONS, f"log_dir={folder}", *options]))
    trainer.run()
    return trainer


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("own") / "run"
    run(folder)
    return folder


def test_subclass_is_recorded_and_resumed_as_itself(finished, tmp_path):
    folder = copy_finished(finished, tmp_path / "run")
    config = stored_config(folder)
    assert config is not None
    assert (config.trainer, config.task) == (f"{__name__}:OfFewEdges", f"{__name__}:FewEdges")
    assert main([f"log_dir={folder}", "resume=true", "num_training_steps=3"]) == 0
    rows = metric_rows(folder)
    assert len(rows) == 3
    assert {row["failed_share"] for row in rows} == {0.0}
    with open_store(folder / "evaluations.sqlite") as store:
        assert {record.score for record in store} <= {0.1, 0.9}
    assert len(sample(folder, 2)) == 2
    resumed = build_trainer(stored_config(folder, ["resume=true"]) or config)
    assert (type(resumed), type(resumed.task)) == (OfFewEdges, FewEdges)


def test_option_trainer_names_the_class(finished, tmp_path):
    folder = tmp_path / "run"
    assert main([*OPTIONS, f"log_dir={folder}", f"trainer={__name__}:OfFewEdges"]) == 0
    assert metric_rows(folder) == metric_rows(finished)


def test_other_class_is_refused_on_resume(finished, tmp_path):
    folder = copy_finished(finished, tmp_path / "run")
    with pytest.raises(UserError, match=r"^trainer: expected .*:OfFewEdges', as the run in .* was started, got ''"):
        run(folder, "resume=true", f"task={__name__}:FewEdges", kind=GFNTrainer)


def test_class_without_a_name_is_refused_in_one_line(tmp_path, capsys):
    class Local(OfFewEdges):
        """Cannot be imported."""

    folder = tmp_path / "run"
    run(folder, "num_training_steps=1", kind=Local)
    assert main([f"log_dir={folder}", "resume=true"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: trainer: expected a class in a module that can be imported, got ")
    assert "resume the run from the program that defines it" in error
    assert error.count("\n") == 1
    run(folder, "resume=true", kind=Local)
    assert len(metric_rows(folder)) == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gflownet.run.trainer", "expected a class in a module that can be imported, got gflownet.run.trainer"),
        ("__main__:Mine", "expected a class in a module that can be imported, got __main__:Mine"),
        (f"{__name__}:FewEdges", "expected a subclass of GFNTrainer"),
    ],
)
def test_invalid_trainer_raises(name, message):
    with pytest.raises(UserError, match=f"^trainer: {message}"):
        build_trainer(load_config(None, [*OPTIONS, "log_dir=unused", f"trainer={name}"]))
