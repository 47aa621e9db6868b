"""Measure the CPU seconds of imports, of --help, and of the default run to the end of its first training step.

    python scripts/bench_startup.py [--quick] [--json FILE]

All commands run in turn, several times; figures are medians of the user and system time of the process and its waited
children.

"To the end of its first step" is the time of the process itself until the metrics of step 1 exist: interpreter,
imports, config, data, task, policy, wandb (offline, as without an API key), sampling, the training of the step's
candidates, and the update. wandb's own process counts only in the row of the whole run, which includes the report, but
not the trainings of the final stage.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gflownet.cli.arguments import COMMANDS
from scripts.bench import at_most, cost_of, finish, parse_arguments

GOALS_FIRST_STEP = {"offline": 4.0, "disabled": 3.0}  # CPU seconds, by the mode of wandb
GOAL_HELP = 0.3

# Run the command line and write the CPU seconds after the first step to the file descriptor `sys.argv[1]`.
_RUN = """
import os, resource, sys
from gflownet import train

build = train._build

def watched(command):
    from gflownet.run.progress import Progress
    trainer, add = build(command), Progress.add

    def first_step(self, *arguments, **options):
        metrics, Progress.add = add(self, *arguments, **options), add
        usage = resource.getrusage(resource.RUSAGE_SELF)
        os.write(int(sys.argv[1]), str(usage.ru_utime + usage.ru_stime).encode())
        return metrics

    Progress.add = first_step
    return trainer

train._build = watched
sys.exit(train.main(sys.argv[2:]))
"""
PROGRAMS = {
    "import torch": ["-c", "import torch"],
    "import gflownet": ["-c", "import gflownet"],
    "import gflownet.run.trainer": ["-c", "import gflownet.run.trainer"],
    **{f"python -m gflownet {name} --help": ["-m", "gflownet", name, "--help"] for name in COMMANDS},
}


def main() -> int:
    """Run the benchmark and return the exit status."""
    arguments = parse_arguments(__doc__)
    seconds: dict[str, list[float]] = {}
    for _ in range(1 if arguments.quick else 7):
        for name, command in PROGRAMS.items():
            seconds.setdefault(name, []).append(cost_of([sys.executable, *command]).cpu)
        for mode in ("offline", "disabled"):
            first, whole = run_seconds(mode)
            seconds.setdefault(f"default run to the end of its first step, wandb {mode}", []).append(first)
            seconds.setdefault(f"default run of one step with its report, no final stage, wandb {mode}", []).append(
                whole
            )
    rows = []
    for name, values in seconds.items():
        goal = GOAL_HELP if "--help" in name else None
        if "first step" in name:
            goal = GOALS_FIRST_STEP[name.rpartition(" ")[2]]
        rows.append(at_most(name, statistics.median(values), "CPU s", goal))
    return finish(rows, json_path=arguments.json)


def run_seconds(wandb_mode: str) -> tuple[float, float]:
    """Return the CPU seconds of a default run of one step: to the end of the step, and of the whole run."""
    reader, writer = os.pipe()
    try:
        with tempfile.TemporaryDirectory() as folder:
            options = [
                f"log_dir={folder}/run",
                "budget.evaluations=2",
                "num_training_steps=1",
                "final.top=0",
                f"wandb.mode={wandb_mode}",
            ]
            whole = cost_of([sys.executable, "-c", _RUN, str(writer), *options], pass_fds=(writer,)).cpu
        return float(os.read(reader, 100)), whole
    finally:
        os.close(reader)
        os.close(writer)


if __name__ == "__main__":
    sys.exit(main())
