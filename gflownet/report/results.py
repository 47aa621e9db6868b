"""results.json: figures of a run, to which each stage adds its part when it ends, and their reader. No torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, cast, get_args, get_origin, get_type_hints

from gflownet.errors import UserError, counted
from gflownet.files import json_text, parse_json, parse_sealed, sealed

RESULTS_NAME, RESULTS_FORMAT = "results.json", 1
_FOLDER = "{folder}/"


@dataclass(frozen=True)
class Side:
    """Mean score of an architecture, a front or a standard method on new seeds."""

    name: str
    mean: float
    low: float = math.nan  # ends of its 95 % interval within the range of scores; NaN for a single seed
    high: float = math.nan
    margin: float = math.nan  # half the interval before it was cut to that range
    metric: float = math.nan  # mean of Results.metric; NaN where there is none
    scores: tuple[float, ...] = ()  # of each seed; of a front none
    tests: tuple[float | None, ...] = ()
    num_parameters: int | None = None
    load: str = ""  # line of Python; empty: none
    measure: str = ""  # a cap, or the hypervolume; empty: of the best architectures without a cap

    @property
    def test_score(self) -> float | None:
        """Return the mean test score, None without one."""
        tests = [test for test in self.tests if test is not None]
        return math.fsum(tests) / len(tests) if tests else None


@dataclass(frozen=True)
class Comparison:
    """The run against a reference."""

    reference: Side
    own: Side | None = None  # of the run by this measure; None: it has no new seeds
    difference: float = math.nan
    margin: float = math.nan  # half the 95 % interval of the difference
    verdict: str = ""
    num_needed: int = 0  # trainings of each side that would give a verdict; 0: unknown, or there is one


@dataclass(frozen=True)
class Finalist:
    """One of the best architectures; those of the run are entries of top_architectures.json without their graphs."""

    rank: int | None  # None: not among the best
    score: float  # of the search
    num_parameters: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    test_score: float | None = None
    final: Side | None = None  # on new seeds
    errors: tuple[str, ...] = ()  # of failed trainings on new seeds
    test_error: str = ""  # of the first missing test score
    words: str = ""
    choices: str = ""  # as YAML
    load: str = ""  # line of Python
    picture: str = ""  # its name in the folder architectures; empty: none

    @property
    def shown(self) -> str:
        """Return the words for tables, of choices without a picture their YAML."""
        return self.words or ("" if self.picture else self.choices)


@dataclass(frozen=True)
class Front:
    """The evaluations of the search that no other one dominates, best in the first objective first."""

    objectives: tuple[str, ...]
    directions: tuple[str, ...]  # min or max
    values: tuple[tuple[float, ...], ...]  # measured objectives
    hypervolume: float  # of the utilities, above the origin
    num_evaluated: int


@dataclass(frozen=True)
class Spent:
    """Evaluations of a run for one purpose."""

    num: int  # whole evaluations, or those that were stopped early
    seconds: float  # of all parts, summed over processes


@dataclass(frozen=True)
class TakenOver:
    """What a search took over from an earlier run (search.prior)."""

    run: str
    num_evaluations: int  # of the earlier run
    num_in_space: int  # of them on graphs of today's space
    num_first: int  # of today's first design that the earlier run has evaluated
    num_shared: int  # architectures that both have evaluated
    correlation: float = math.nan  # rank correlation of the two scores of these; NaN for too few
    num_design: int = 0  # architectures of today's first design; 0: not known
    starts_sampler: bool | None = None  # whether the sampler began with its policy; None: there is no sampler

    @property
    def line(self) -> str:
        """Return the words of the closing line and of the page."""
        inside = "" if self.num_in_space == self.num_evaluations else f", {self.num_in_space} of them in this space"
        design = f"{self.num_first} of the first {counted(self.num_design or self.num_first, 'architecture')}"
        ranks = "" if math.isnan(self.correlation) else f", with a rank correlation of {self.correlation:.2f}"
        both = f"{counted(self.num_shared, 'architecture')} evaluated by both{ranks}"
        parts = [f"from {self.run}: {counted(self.num_evaluations, 'evaluation')}{inside}", design, both]
        if self.starts_sampler is not None:
            parts.append(f"the sampler began {'with' if self.starts_sampler else 'without'} its policy")
        return "; ".join(parts)


@dataclass(frozen=True)
class SearchResults:
    """The part of the search."""

    end: str  # why it has ended
    num_steps: int = 0
    first_mean: float = math.nan  # mean score of the first tenth of the steps
    last_mean: float = math.nan
    taken_over: tuple[TakenOver, ...] = ()
    start: str = ""  # line about the network of env.start


@dataclass(frozen=True)
class FinalResults:
    """The part of the final stage; without one, the best of the search."""

    finalists: tuple[Finalist, ...] = ()  # best first
    random: tuple[Finalist, ...] = ()  # of the random architectures
    comparisons: tuple[Comparison, ...] = ()
    front: Front | None = None
    cost: str = ""  # metric of the caps, with two objectives of which the second is a cost
    has_trainings: bool = False  # whether there was a final stage
    length: str = ""  # of a training, such as 4 epochs
    correlation: float | None = None  # of ranks in the search and here, where the trainings have another length
    is_stopped: bool = False  # by a signal
    is_complete: bool = True  # whether no signal has ended the race
    notes: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()  # lines of how to use the best
    num_successful: int = 0  # evaluations, those above a limit included
    has_limits: bool = False
    spent: Mapping[str, Spent] = field(default_factory=dict)
    failures: Mapping[str, int] = field(default_factory=dict)  # failed evaluations by kind


@dataclass(frozen=True)
class SamplerResults:
    """The part of the sampler after a search."""

    num_trained_on: int
    num_samples: int
    num_distinct: int
    num_known: int  # evaluated by the search before
    scores: tuple[float, ...]  # of its trained samples
    parameters: tuple[int | None, ...]
    random_scores: tuple[float, ...]  # of random architectures of their sizes
    chosen_scores: tuple[float, ...]  # of as many of these, chosen by prediction
    random_predicted: float
    rank_correlation: float | None  # of log p and log R
    flow_consistency: float
    is_converged: bool


@dataclass(frozen=True)
class Results:
    """All parts; None: the stage has not ended, or there is none."""

    score: str = "score"  # name of the score
    metric: str = ""  # measured figure behind it, such as bits per byte; empty: the score itself
    search: SearchResults | None = None
    final: FinalResults | None = None
    set: tuple[Mapping[str, Any], ...] = ()  # figures of the set of networks and of others, a row each
    sampler: SamplerResults | None = None
    certificate: Mapping[str, float] = field(default_factory=dict)  # figures of certificate.json

    @property
    def finalists(self) -> tuple[Finalist, ...]:
        """Return the best architectures, best first."""
        return self.final.finalists if self.final else ()

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """Return the comparisons with random architectures and standard methods."""
        return self.final.comparisons if self.final else ()

    def to_json(self, folder: Path) -> str:
        """Return the content of results.json; NaN is null, and the run folder, which may be moved, is {folder}."""
        content = parse_json(json_text(asdict(self)).replace(f"{_escaped(folder)}/", _FOLDER))
        return json_text(sealed({"format": RESULTS_FORMAT, **content}), indent=1)


def read_results(folder: Path) -> Results:
    """Return the results in a run folder, without parts where there is no file.

    Raises:
        UserError: the file is damaged or of another format.
    """
    path = folder / RESULTS_NAME
    try:
        content = parse_sealed(path.read_bytes())
        content = parse_json(json.dumps(content).replace(_FOLDER, f"{_escaped(folder)}/"))
        results = _read(Results, content, "results") if content["format"] == RESULTS_FORMAT else None
    except FileNotFoundError:
        return Results()
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error})") from None
    if results is None:
        raise UserError(f"{path}: expected results in format {RESULTS_FORMAT}, got {content['format']!r:.40}")
    return results


def _escaped(folder: Path) -> str:
    return json.dumps(str(folder))[1:-1]


def _read(kind: Any, value: Any, name: str) -> Any:
    """Return a parsed JSON value as an object of a type. Raises TypeError for another value."""
    arguments = get_args(kind)
    if type(None) in arguments:
        return None if value is None else _read(arguments[0], value, name)
    if is_dataclass(kind) and isinstance(value, dict):
        types = get_type_hints(kind)
        known = [each.name for each in fields(kind) if each.name in value]
        return cast(Any, kind)(**{key: _read(types[key], value[key], f"{name}.{key}") for key in known})
    if get_origin(kind) is tuple and isinstance(value, list):
        return tuple(_read(arguments[0], each, name) for each in value)
    if get_origin(kind) is Mapping and isinstance(value, dict):
        return {key: _read(arguments[1], each, f"{name}.{key}") for key, each in value.items()}
    if kind is float and (value is None or (isinstance(value, int | float) and not isinstance(value, bool))):
        return math.nan if value is None else float(value)
    if kind is Any or (isinstance(kind, type) and type(value) is kind):
        return value
    raise TypeError(f"{name}: expected {getattr(kind, '__name__', kind)}, got {value!r:.40}")
