"""Runs that start from earlier ones: closing line, record, and resume without the earlier folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gflownet.config import load_config
from gflownet.evaluation.store.database import STORE_NAME
from gflownet.evaluation.store.overview import StoreOverview
from gflownet.report.results import read_results
from gflownet.run.components import Builder
from gflownet.run.folder import last_checkpoint
from gflownet.train import main
from tests.benchmark_tables import write_nb201
from tests.tiny_run import TINY_RUN, TINY_TASKS

RUN = ("--config", "cells", "search.sampler.num_updates=3", "final.top=0", "certify=false", "wandb.mode=disabled")


def outcome_of(folder: Path) -> tuple[list[tuple[str, float]], list[list[float]]]:
    """Return the scores of a run in order, and the weights of its trained policy."""
    policy = last_checkpoint(folder, option="").state["policy"]
    with StoreOverview(str(folder / STORE_NAME)) as overview:
        scores = [(str(row["key"]), float(row["score"])) for row in overview.results()]
    return scores, [value.flatten().tolist() for value in policy.values()]


def test_the_sampler_begins_with_the_policy_of_a_run_of_this_space_and_model(finished_runs) -> None:
    folder = finished_runs("cells")
    tiny = [*TINY_RUN[:-1], *TINY_TASKS["cells"], f"task_options.table={folder.parent / 'table.csv'}"]
    builder = Builder(load_config("cells", [*tiny, f"search.prior=[{folder}]", "env.cells.max_vertices=4"]))
    known = last_checkpoint(folder, option="").state["policy"]
    learner, _ = next(iter(builder.build_sampler_learners()))
    assert all(torch.equal(value, known[name]) for name, value in learner.policy.state_dict().items())
    for group, name, value in (("env", "allow_recurrent", True), ("model", "num_layers", 2), ("model", "num_emb", 8)):
        before, options = getattr(builder.config, group)[name], getattr(builder.config, group)
        options[name] = value
        assert (builder.build_search().method.setup.prior.policy is None) == (before != value), name
        options[name] = before


@pytest.mark.slow
def test_a_run_names_what_it_took_over_and_resumes_without_the_earlier_folder(tmp_path: Path, capsys) -> None:
    options = (*RUN, f"task_options.table={write_nb201(tmp_path / 'table.csv')}", "task_options.test_column=")
    assert main([*options, f"log_dir={tmp_path / 'first'}", "budget.evaluations=12"]) == 0
    prior = f"search.prior=[{tmp_path / 'first'}]", f"env.start={tmp_path / 'first'}:4"
    assert main([*options, f"log_dir={tmp_path / 'whole'}", "budget.evaluations=14", *prior, "seed=1"]) == 0
    found = read_results(tmp_path / "whole").search
    assert found is not None
    [taken] = found.taken_over
    assert (taken.run, taken.num_evaluations, taken.num_first, taken.starts_sampler) == ("first", 12, 5, True)
    start = "from first/top_architectures.json, rank 4: it and 5 edits in the first design"
    assert f"\n{start}\n{taken.line}\n" in capsys.readouterr().out
    assert f"Started {start}." in (tmp_path / "whole" / "report.html").read_text()
    assert "Taken over from first: 12 evaluations" in (tmp_path / "whole" / "report.html").read_text()
    assert main([*options, f"log_dir={tmp_path / 'parts'}", "budget.evaluations=7", *prior, "seed=1"]) == 0
    (tmp_path / "first").rename(tmp_path / "elsewhere")
    assert main([f"log_dir={tmp_path / 'parts'}", "resume=true", "budget.evaluations=14"]) == 0
    assert outcome_of(tmp_path / "parts") == outcome_of(tmp_path / "whole")


def test_a_method_without_a_surrogate_has_no_prior(tmp_path: Path, capsys) -> None:
    options = (*RUN, f"task_options.table={write_nb201(tmp_path / 'table.csv')}", "search.method=random")
    assert main([*options, f"log_dir={tmp_path / 'run'}", "search.prior=[nowhere]"]) == 2
    expected = "search.prior: expected a search method with a surrogate, got search.method=random"
    assert expected in capsys.readouterr().err
