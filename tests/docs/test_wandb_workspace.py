"""The workspace of docs/wandb.md, built and read back with the package that saves it."""

import json
import re
import runpy
from pathlib import Path

import pytest

GROUPS = {"score", "train", "evaluation", "search", "final", "best", "random", "certificate", "top", "report"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of wandb_workspaces with pydantic 2
def test_workspace_is_accepted_and_has_documented_metrics(checkout: Path) -> None:
    from wandb_workspaces.workspaces import Workspace
    from wandb_workspaces.workspaces.internal import View

    workspace = runpy.run_path(str(checkout / "docs" / "static" / "wandb_workspace.py"))["workspace"]("us", "digits")
    view = json.loads(workspace._to_model().model_dump_json(by_alias=True))
    again = Workspace._from_model(View.model_validate(view | {"entity": "us", "project": "digits"}))
    sections = {section.name: section.panels for section in again.sections}
    assert list(sections) == ["Result", "Search", "Sampler", "Final stage and random reference", "Evaluation", "Runs"]
    assert all(sections.values())
    text, page = json.dumps(view), (checkout / "docs" / "wandb.md").read_text()
    metrics = {name for name in re.findall(r"\b(\w+/\w+)", text) if name.partition("/")[0] in GROUPS}
    assert len(metrics) > 25
    ends = {name: name.removesuffix("_total").rpartition("_")[2] for name in metrics}
    undocumented = {name for name, end in ends.items() if name not in page and f"`..._{end}`" not in page}
    assert undocumented == set()
    assert {"evaluations", "seconds", "step"} <= set(re.findall(r'"xAxis": "(\w+)"', text))
