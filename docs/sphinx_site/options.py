"""Every option on its page: which page explains it, the row that links to it, and the table of all options."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from posixpath import dirname, relpath

from gflownet.config import OPTIONS
from gflownet.options import Option, find_options
from gflownet.run.extensions import EXTENSION_POINTS

DOCS = Path(__file__).parents[1]
ALL_OPTIONS = "reference/options"
# Option, or the start of several (with a full stop), -> the page that explains it. The longest one counts.
PAGES: Mapping[str, str] = {
    "log_dir": "run-folder",
    "seed": "run-folder",
    "num_training_steps": "run-folder",
    "print_every": "run-folder",
    "checkpoint_every": "run-folder",
    "overwrite_existing_exp": "run-folder",
    "resume": "run-folder",
    "device": "policies",
    "validate_every": "greedy-sampling",
    "task": "tasks/README",
    "task_options": "tasks/README",
    "trainer": "extending",
    "num_workers": "workers",
    "mp_buffer_size": "workers",
    "pickle_mp_messages": "workers",
    "num_threads": "workers",
    "workers.": "workers",
    "certify": "metrics",
    "certify_max_states": "metrics",
    "certify_samples": "metrics",
    "algo.": "objectives",
    "algo.options": "extending",
    "algo.subtb.": "objectives/subtb",
    "algo.relative.": "objectives/relative_tb",
    "algo.tb.": "objectives/tb",
    "algo.backward_policy": "backward-policies/README",
    "algo.num_from_policy": "exploration",
    "algo.num_updates": "exploration",
    "algo.merge_isomorphic": "exploration",
    "algo.train_random_action_prob": "exploration",
    "algo.sampling_temperature": "exploration",
    "algo.sampling_tau": "exploration",
    "algo.teacher.": "exploration-teacher",
    "algo.qgfn.": "greedy-sampling",
    "opt.": "objectives",
    "model.": "policies",
    "model.options": "extending",
    "replay.": "exploration",
    "local_search.": "exploration",
    "offline.": "exploration",
    "cond.": "conditioning",
    "env.": "environments/computation_graph",
    "env.name": "environments/README",
    "env.options": "extending",
    "env.coloured_graph.": "environments/coloured_graph",
    "env.labelled_dag.": "environments/labelled_dag",
    "env.hypergrid.": "environments/hypergrid",
    "env.bit_sequence.": "environments/bit_sequence",
    "env.cells.": "environments/cells",
    "env.choices.": "environments/choices",
    "env.tensor_graph.": "environments/tensor_graph",
    "env.recurrent_stack.": "environments/recurrent_stack",
    "env.catalogue.": "environments/catalogue",
    "env.operation_graph.": "environments/operation_graph",
    "evaluation.": "evaluation",
    "evaluation.num_epochs": "training-candidates",
    "evaluation.batch_size": "training-candidates",
    "evaluation.learning_rate": "training-candidates",
    "evaluation.projection": "extending",
    "evaluation.split_seed": "training-candidates",
    "evaluation.size_weight": "training-candidates",
    "evaluation.target_": "conditioning",
    "evaluation.floor_score": "conditioning",
    "evaluation.objectives": "conditioning",
    "evaluation.constraints": "search-signals",
    "evaluation.training.": "training-candidates",
    "evaluation.ray.": "cluster",
    "budget.": "evaluation",
    "asynchronous.": "evaluation",
    "search.": "search-methods",
    "search.options": "search-baselines",
    "search.train_sampler": "search-proposals",
    "search.random.": "search-baselines",
    "search.sampler.": "search-proposals",
    "search.width": "search-proposals",
    "search.surrogate.": "search-surrogate",
    "search.acquisition.": "search-surrogate",
    "search.proposals.": "search-proposals",
    "final.": "final-stage",
    "wandb.": "wandb",
    "tensorboard.": "wandb",
    "report.": "report",
    "console": "run-folder",
}
# Preferred pages, where they exist.
NEWER_PAGES: Mapping[str, str] = {"report.": "report", "print_every": "console", "console": "console"}
# Extension point -> page of the options of its built-in classes; {} is the name of the class.
CLASS_PAGES: Mapping[str, str] = {
    "task": "tasks/{}",
    "env.name": "environments/{}",
    "model.name": "policies",
    "algo.method": "objectives/{}",
    "algo.regression": "objectives",
    "search.method": "search-baselines",
    "search.surrogate.name": "search-surrogate",
}


@dataclass(frozen=True)
class DocumentedOption:
    """An option with its page."""

    option: Option
    page: str
    owner: str = ""  # task=table: the option exists with this class only

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", f"option-{self.owner}-{self.option.key}".lower()).replace("--", "-")


def page_of(key: str) -> str | None:
    """Return the page that explains an option, None for an option that PAGES does not cover."""
    newer = [NEWER_PAGES[start] for start in _starts(key, NEWER_PAGES)]
    pages = [page for page in newer if (DOCS / f"{page}.md").exists()]
    pages += [PAGES[start] for start in sorted(_starts(key, PAGES), key=len, reverse=True)]
    return pages[0] if pages else None


def _starts(key: str, pages: Mapping[str, str]) -> list[str]:
    return [start for start in pages if key == start or (start[-1] in "._" and key.startswith(start))]


@cache
def documented_options() -> tuple[DocumentedOption, ...]:
    """Return every option of a run, and of the built-in classes, with its page.

    Raises:
        LookupError: options without a page.
    """
    pages = {key: page_of(key) for key in OPTIONS}
    missing = [key for key, page in pages.items() if page is None]
    if missing:
        raise LookupError(f"no page for {', '.join(missing)}: add them to PAGES of docs/sphinx_site/options.py")
    general = [DocumentedOption(OPTIONS[key], page) for key, page in pages.items() if page is not None]
    return (*general, *_options_of_classes())


def _options_of_classes() -> Iterator[DocumentedOption]:
    for point in EXTENSION_POINTS:
        for name in point:
            schema = getattr(point.load(name), "Config", None)
            if schema is None:
                continue
            page = CLASS_PAGES[point.key].format(name)
            for item in find_options(schema, prefix=f"{point.options_key}."):
                yield DocumentedOption(item, page, owner=f"{point.key}={name}")


def with_options(docname: str, text: str) -> str:
    """Return the Markdown of a page with an anchor at every option that it explains, and a table of the others."""
    if docname == ALL_OPTIONS:
        return text + all_options()
    rows = []
    for item in documented_options():
        if item.page != docname:
            continue
        cell = re.compile(rf"^\| `{re.escape(item.option.key)}` \|", re.MULTILINE)
        if cell.search(text):
            text = cell.sub(f"| {_named(item)} |", text, count=1)
        else:
            rows.append(f"| {_named(item)} | {_default(item.option)} | {_escaped(item.option.help)} |")
    if rows:
        text += "\n".join(["", "", "## Options", "", "| option | default | meaning |", "|---|---|---|", *rows, ""])
    return text


def all_options() -> str:
    """Return the tables of all options, each linked to its page, as Markdown."""
    lines: list[str] = []
    for (owner, group), items in groupby(documented_options(), key=lambda item: (item.owner, item.option.group)):
        rows = list(items)
        title = f"`{owner}`" if owner else f"`{group}`" if group else "The run"
        lines += ["", "", f"## {title}", "", rows[0].option.group_help, ""]
        lines += ["| option | type, default | meaning |", "|---|---|---|"]
        lines += [_linked_row(item) for item in rows]
    return "\n".join([*lines, ""])


def _linked_row(item: DocumentedOption) -> str:
    option = item.option
    target = relpath(f"{item.page}.md", dirname(ALL_OPTIONS))
    cells = (f"[`{option.key}`]({target}#{item.anchor})", f"{_escaped(option.type_name)}: {_default(option)}")
    return f"| {' | '.join(cells)} | {_escaped(option.help)} |"


def _named(item: DocumentedOption) -> str:
    return f"[`{item.option.key}`]{{#{item.anchor}}}"


def _default(option: Option) -> str:
    default = option.default
    text = '""' if default == "" else str(default).lower() if isinstance(default, bool) else str(default)
    return "`null`" if default is None else f"`{_escaped(text)}`"


def _escaped(text: str) -> str:
    return text.replace("|", r"\|")
