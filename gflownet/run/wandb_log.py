"""A run on Weights & Biases: metrics, histograms, best architectures, artifacts, summary (docs/wandb.md)."""

from __future__ import annotations

import math
import netrc
import os
import shlex
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gflownet.files import write_whole
from gflownet.report.architectures import Leader
from gflownet.report.page.secrets import masked_options
from gflownet.report.results import Side
from gflownet.report.verdict import summary_figures
from gflownet.run.run_log import AXES, RunLog, RunResults, StepSamples, axes_of, first_line, grouped

if TYPE_CHECKING:
    from gflownet.config import WandbConfig

WANDB_NAME = "wandb"
WANDB_ID_NAME = "run_id"  # in the folder of wandb
# Set by the agent of a sweep for each of its runs.
RUN_ID_VARIABLE = "WANDB_RUN_ID"
_DATA_VARIABLE = "WANDB_DATA_DIR"

# Timeouts in seconds for an unreachable wandb server, at the start and at the end of a run.
INIT_TIMEOUT = 15.0
FINISH_TIMEOUT = 30.0
WANDB_SERVER = "https://api.wandb.ai"
NUM_DRAWINGS = 3  # with a panel of their own; the table has all
_COLUMNS = (
    *("rank", "search_score", "score", "low", "high", "test_score", "num_parameters", "origin", "seconds"),
    *("words", "drawing", "load"),
)
# Difference between wandb's own step and that of the run: trainings after the search of earlier sessions.
_SHIFT_NAME = "shift"


class WandbLog(RunLog):
    """A run on Weights & Biases."""

    _name = "wandb"

    def __init__(
        self,
        log_dir: Path,
        options: WandbConfig,
        *,
        config: Mapping[str, Any],
        print_line: Callable[[str], None],
        logged_step: int = 0,
    ) -> None:
        """Start the wandb run, or continue it if the folder has one.

        `config` is nested and unresolved. Steps up to `logged_step`, which an earlier session logged, are skipped.
        """
        super().__init__(print_line)
        self._options, self._folder = options, log_dir
        mode = options.mode
        if mode == "online" and not has_wandb_key():
            print_line(
                "wandb: no API key, so metrics are saved offline in the run folder; set wandb.mode=disabled to turn "
                "wandb off"
            )
            mode = "offline"
        is_continued = (log_dir / WANDB_NAME / WANDB_ID_NAME).exists()
        shift = log_dir / WANDB_NAME / _SHIFT_NAME
        self._shift = int(shift.read_text()) if shift.exists() else 0
        self._logged_step = logged_step if is_continued else 0
        self._last_step, self._search_step = self._logged_step + self._shift, self._logged_step
        self._open = self._start(log_dir, mode=mode, config=config)
        if self._open is None and mode == "online":
            mode = "offline"
            self._open = self._start(log_dir, mode=mode, config=config)
        self._is_offline = mode == "offline"

    def write(self, step: int, values: Mapping[str, float]) -> None:
        if step > self._logged_step:
            self._log(step, lambda: axes_of(step, values) | grouped(values))
            if "num_trainings" not in values:  # not of the final stage
                self._search_step = step

    def write_samples(self, step: int, samples: StepSamples) -> None:
        def histograms() -> dict[str, Any]:
            import wandb

            return {key: wandb.Histogram(list(values)) for key, values in samples.histograms().items()}

        if step > self._logged_step:
            self._log(step, histograms)

    def write_leaders(self, step: int, leaders: Sequence[Leader]) -> None:
        """Log a table of candidates, and drawings of the first ones."""
        self._log(step, lambda: _media_of(leaders))

    def summarise(self, values: Mapping[str, Any]) -> None:
        with self._reporting("the run has no summary", is_end=False):
            if self._open is not None:
                self._open.summary.update(dict(values))

    def close(self, results: RunResults | None = None) -> None:
        """Log the results, and end the run on wandb, waiting at most FINISH_TIMEOUT for the upload."""
        if results is not None:
            self._log_results(results)
        run, self._open = self._open, None
        if run is None:
            return
        with self._reporting("the run was not finished, metrics.jsonl is complete"):
            run.finish(exit_code=1) if results is not None and results.state == "failed" else run.finish()
            shift = max(self._last_step - self._search_step, 0)
            write_whole(self._folder / WANDB_NAME / _SHIFT_NAME, str(shift))
            if self._is_offline:
                folder = shlex.quote(str(self._folder / WANDB_NAME))
                self.closing_line = f"wandb: metrics are offline; to upload: wandb sync {folder}/offline-run-*"

    def _log_results(self, results: RunResults) -> None:
        if results.report is not None:
            report = results.report
            self._log(0, lambda: {"report/page": _html(report.read_text(encoding="utf-8"))})
            self._add_artifact("report", "report", [report], root=report.parent)
        if results.checkpoint is not None:
            path = results.checkpoint
            aliases = ["final", f"step-{self._search_step}"]
            self._add_artifact("checkpoint", "model", [path], root=path.parent, aliases=aliases)
        if results.architectures:
            root = results.architectures[0].parent
            self._add_artifact("architectures", "model", results.architectures, root=root, aliases=["final"])
        state = {"state": str(results.state), "total_seconds": results.seconds}
        figures = {name: value for name, value in state.items() if value is not None}
        self.summarise(figures | summary_figures(results.results))

    def _log(self, step: int, values: Callable[[], Mapping[str, Any]]) -> None:
        """Log values at a step, or at the last one of an earlier session if that is later."""
        if self._open is None:
            return
        step = self._last_step = max(step + self._shift, self._last_step)
        with self._reporting(f"logging stopped at step {step}, metrics.jsonl continues"), self._staging():
            self._open.log(dict(values()), step=step)

    def _add_artifact(
        self, name: str, kind: str, paths: Sequence[Path], *, root: Path, aliases: Sequence[str] = ()
    ) -> None:
        """Log files as an artifact, with their paths relative to `root`."""
        if self._open is None or not self._options.artifacts:
            return
        with self._reporting(f"no artifact {name}", is_end=False), self._staging():
            import wandb

            artifact = wandb.Artifact(f"{name}-{self._open.id}", type=kind, metadata={"step": self._search_step})
            copies = Path(self._open.dir).parent / "artifacts" / f"{name}_{self._search_step}"
            for path in paths:
                relative = path.relative_to(root)
                copy = _linked(path, copies / relative)
                artifact.add_file(str(copy), name=relative.as_posix(), policy="immutable", skip_cache=True)
            self._open.log_artifact(artifact, aliases=["latest", *aliases])

    @contextmanager
    def _staging(self) -> Iterator[None]:
        """Let wandb keep copies of logged files in the folder of its run, not in the home directory."""
        if _DATA_VARIABLE in os.environ:
            yield
            return
        os.environ[_DATA_VARIABLE] = str(Path(self._open.dir).parent / "data")
        try:
            yield
        finally:
            os.environ.pop(_DATA_VARIABLE, None)

    def _start(self, log_dir: Path, *, mode: str, config: Mapping[str, Any]) -> Any:
        """Start a wandb run; return None after printing the reason of a failure."""
        os.environ.setdefault("WANDB_SILENT", "true")  # read on import, before the settings of a run
        folder, options = log_dir.resolve(), self._options
        try:
            import wandb  # takes half a second; not needed with wandb.mode=disabled

            run_id = folder / WANDB_NAME / WANDB_ID_NAME  # the same when the run is resumed; in a sweep, its agent's
            if not run_id.exists():
                run_id.parent.mkdir(exist_ok=True)
                write_whole(run_id, os.environ.get(RUN_ID_VARIABLE) or uuid.uuid4().hex[:8])
            run = wandb.init(
                project=options.project,
                name=os.environ.get("WANDB_NAME") or f"{folder.name}-seed{config.get('seed', 0)}",
                id=run_id.read_text(encoding="utf-8"),
                resume="allow",
                dir=folder,
                config=masked_options(config),
                mode="online" if mode == "online" else "offline",
                settings=wandb.Settings(
                    silent=True,
                    console="wrap",
                    init_timeout=INIT_TIMEOUT,
                    finish_timeout=FINISH_TIMEOUT,
                    disable_git=True,
                    disable_code=True,
                ),
            )
            for axis in AXES:
                run.define_metric(axis)
            run.define_metric("*", step_metric=AXES[0])
            return run
        except Exception as error:
            instead = "continuing offline" if mode == "online" else "metrics.jsonl is complete"
            self._print(f"wandb: {mode} logging failed, {instead}: {first_line(error)}")
            return None


def has_wandb_key() -> bool:
    """Return whether wandb has credentials: in the environment, or in the netrc file of `wandb login`."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = os.environ.get("WANDB_BASE_URL", WANDB_SERVER).partition("://")[2].partition("/")[0].partition(":")[0]
    try:
        path = os.environ.get("NETRC")
        return netrc.netrc(path).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _media_of(leaders: Sequence[Leader]) -> dict[str, Any]:
    """Return a table of all leaders, and the first drawings."""
    import wandb

    table = wandb.Table(columns=list(_COLUMNS))
    media: dict[str, Any] = {"top/architectures": table}
    for place, leader in enumerate(leaders):
        each, drawing = leader.finalist, None if leader.drawing is None else _html(leader.drawing)
        side = each.final or Side("", each.score)
        score = None if each.rank is None else side.mean
        numbers = [each.score, score, side.low, side.high, each.test_score]  # floats: a column has one type
        sizes = each.num_parameters, leader.origin, _float(leader.seconds)
        table.add_data(each.rank, *map(_float, numbers), *sizes, each.shown, drawing, each.load)
        if leader.drawing is not None and place < NUM_DRAWINGS:
            media[f"top/drawing_{leader.finalist.rank}"] = _html(leader.drawing)
    return media


def _html(text: str) -> Any:
    import wandb

    return wandb.Html(text, inject=False)


def _float(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else float(value)


def _linked(path: Path, link: Path) -> Path:
    """Return a hard link to a file, or a copy: later versions of the file replace the original only."""
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    with suppress(OSError):
        os.link(path, link)
        return link
    return Path(shutil.copyfile(path, link))
