"""Save the workspace of a project on Weights & Biases with the panels for runs of gflownet, and print its address.

pip install "wandb[workspaces]"
python wandb_workspace.py ENTITY PROJECT
"""

import sys

import wandb_workspaces.reports.v2 as panels
from wandb_workspaces.workspaces import Section, Workspace


def line(title: str, *metrics: str, x: str = "step", log_y: bool = False) -> panels.LinePlot:
    """Return a line plot over steps, evaluations or seconds."""
    return panels.LinePlot(title=title, x=x, y=list(metrics), log_y=log_y)


def scalars(*metrics: str) -> list[panels.ScalarChart]:
    """Return a chart with the last value of each metric."""
    return [panels.ScalarChart(title=metric, metric=panels.SummaryMetric(metric)) for metric in metrics]


SECTIONS = {
    "Result": [
        *scalars("best/score", "best/test_score", "random/score", "best/num_parameters"),
        panels.WeavePanelSummaryTable(table_name="top/architectures"),
        panels.MediaBrowser(title="best drawings", media_keys=[f"top/drawing_{rank}" for rank in range(3)]),
        panels.MediaBrowser(title="report", media_keys=["report/page"]),
    ],
    "Search": [
        line("best and mean score", "score/score_best", "score/score_mean"),
        line("best score by evaluations", "score/score_best", x="evaluations"),
        line("best score by seconds", "score/score_best", x="seconds"),
        line("rank correlation of the surrogate", "search/surrogate_rank_correlation"),
        line(
            "proposals by origin",
            *(f"search/proposed_{origin}_total" for origin in ("design", "mutation", "policy", "random", "sampler")),
        ),
        line("front", "score/hypervolume"),
    ],
    "Sampler": [
        line("loss", "train/loss", "train/likelihood_loss", log_y=True),
        line("learned log Z and mean log-reward", "train/log_Z", "score/log_reward_mean"),
        line("mean predicted score", "score/predicted_score_mean"),
        line("rank correlation of log p and log R", "train/sampler_rank_correlation"),
        *scalars("certificate/has_converged", "certificate/total_variation", "certificate/flow_consistency"),
    ],
    "Final stage and random reference": [
        line("best of each", "final/final_score_best", "final/random_score_best"),
        line("trainings", "final/num_trainings", "final/num_random"),
    ],
    "Evaluation": [
        line("evaluated architectures", "evaluation/num_distinct", x="seconds"),
        line("known and failed", "evaluation/cached_share", "evaluation/failed_share"),
        line("use of the machine", "evaluation/busy_share"),
        line("failures", "evaluation/num_timeout", "evaluation/num_crashed", "evaluation/num_out_of_memory"),
    ],
    "Runs": [
        panels.ScatterPlot(
            title="test and validation score",
            x=panels.SummaryMetric("best/score"),
            y=panels.SummaryMetric("best/test_score"),
        )
    ],
}


def workspace(entity: str, project: str) -> Workspace:
    """Return the workspace, not saved."""
    sections = [Section(name=name, panels=list(contents), is_open=True) for name, contents in SECTIONS.items()]
    return Workspace(entity=entity, project=project, name="gflownet", sections=sections)


if __name__ == "__main__":
    print(workspace(*sys.argv[1:]).save().url)
