"""Runs that start from earlier ones: closing line, record, and resume without the earlier folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from gflownet.evaluation.store.database import STORE_NAME
from gflownet.evaluation.store.overview import StoreOverview
from gflownet.report.results import read_results
from gflownet.train import main
from tests.benchmark_tables import write_nb201

RUN = ("--config", "cells", "search.train_sampler=false", "final.top=0", "wandb.mode=disabled")


def scores_of(folder: Path) -> list[tuple[str, float]]:
    with StoreOverview(str(folder / STORE_NAME)) as overview:
        return [(str(row["key"]), float(row["score"])) for row in overview.results()]


@pytest.mark.slow
def test_a_run_names_what_it_took_over_and_resumes_without_the_earlier_folder(tmp_path: Path, capsys) -> None:
    options = (*RUN, f"task_options.table={write_nb201(tmp_path / 'table.csv')}", "task_options.test_column=")
    assert main([*options, f"log_dir={tmp_path / 'first'}", "budget.evaluations=12"]) == 0
    prior = f"search.prior=[{tmp_path / 'first'}]"
    assert main([*options, f"log_dir={tmp_path / 'whole'}", "budget.evaluations=14", prior, "seed=1"]) == 0
    found = read_results(tmp_path / "whole").search
    assert found is not None
    [taken] = found.taken_over
    assert (taken.run, taken.num_evaluations, taken.num_first) == ("first", 12, 5)
    assert f"\n{taken.line}\n" in capsys.readouterr().out
    assert "Taken over from first: 12 evaluations" in (tmp_path / "whole" / "report.html").read_text()
    assert main([*options, f"log_dir={tmp_path / 'parts'}", "budget.evaluations=7", prior, "seed=1"]) == 0
    (tmp_path / "first").rename(tmp_path / "elsewhere")
    assert main([f"log_dir={tmp_path / 'parts'}", "resume=true", "budget.evaluations=14"]) == 0
    assert scores_of(tmp_path / "parts") == scores_of(tmp_path / "whole")


def test_a_method_without_a_surrogate_has_no_prior(tmp_path: Path, capsys) -> None:
    options = (*RUN, f"task_options.table={write_nb201(tmp_path / 'table.csv')}", "search.method=random")
    assert main([*options, f"log_dir={tmp_path / 'run'}", "search.prior=[nowhere]"]) == 2
    expected = "search.prior: expected a search method with a surrogate, got search.method=random"
    assert expected in capsys.readouterr().err
