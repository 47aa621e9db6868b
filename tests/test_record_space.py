"""A recorded space is searched with the scores of its trainings, and a recording continues from its store."""

import csv
import gzip
from pathlib import Path

import pytest

from gflownet.certificate.exact import enumerate_states
from gflownet.config import load_config, with_task_options
from gflownet.envs.computation_graph import ComputationGraphEnvContext
from gflownet.evaluation.store.evaluations import EvaluationRecord
from gflownet.evaluation.store.rows import EvaluationStatus
from gflownet.training.random_states import candidate_seed
from scripts import record_space
from scripts.record_space import Row, main, table_text, with_shared_seconds
from tasks.digits import DigitsTask
from tasks.recorded import RecordedConfig, RecordedTask

SPACE = ("env.max_hidden_nodes=1", "env.max_edges=3", "env.aggregations=[sum]", "env.activations=[tanh]")
TRAINING = ("evaluation.num_epochs=1", "evaluation.executor=inline")
OPTIONS = (*SPACE, *TRAINING, "env.output_sizes=[2,3]")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the table of the networks of at most one hidden node, each trained with two seeds."""
    folder = tmp_path_factory.mktemp("recorded")
    assert main([str(folder / "table.csv.gz"), "--repeats", "2", f"log_dir={folder / 'run'}", *OPTIONS]) == 0
    return folder / "table.csv.gz"


def rows_of(table: Path) -> list[dict[str, str]]:
    with gzip.open(table, "rt", newline="") as file:
        return list(csv.DictReader(file))


def test_recorded_scores_are_those_of_the_trainings(recorded):
    config = load_config(None, OPTIONS)
    task = DigitsTask(config)
    table = (f"task_options.table={recorded}", "task_options.input_sizes=[64]", "task_options.output_sizes=[10]")
    searched = RecordedTask(with_task_options(load_config(None, ["task=recorded", *table, *OPTIONS]), RecordedConfig))
    env = ComputationGraphEnvContext.build_env(config.env, input_sizes=(64,), output_sizes=(10,))
    graph = enumerate_states(env)
    candidates = [env.terminal(graph.states, index) for index in graph.terminal.tolist()]
    assert len(rows_of(recorded)) == len(candidates) == 5
    for candidate in candidates:
        seeds = [candidate_seed(config.seed, candidate.canonical_hash(), repeat) for repeat in range(2)]
        scores = [task.evaluate(candidate, seed=seed).value for seed in seeds]
        tests = [task.test(candidate, seed=seed) for seed in seeds]
        assert searched.evaluate(candidate, seed=0).value == pytest.approx(sum(scores) / 2, abs=1e-5)
        assert searched.test(candidate, seed=0) == pytest.approx(sum(tests) / 2, abs=1e-5)
        assert searched.cost(candidate) == task.cost(candidate)


def test_recording_continues_from_the_store(recorded, monkeypatch):
    """The seconds of trainings are never the same twice."""
    again, run = recorded.with_name("again.csv.gz"), f"log_dir={recorded.parent / 'run'}"
    monkeypatch.setattr(DigitsTask, "train_many", lambda *_, **__: pytest.fail("expected rows of the store"))
    assert main([str(again), "--repeats", "2", run, *OPTIONS]) == 0
    assert again.read_bytes() == recorded.read_bytes()


def test_quick_recording_has_the_first_candidates(recorded, monkeypatch):
    monkeypatch.setattr(record_space, "NUM_QUICK", 2)
    quick, run = recorded.with_name("quick.csv.gz"), f"log_dir={recorded.parent / 'run'}"
    assert main([str(quick), "--quick", run, *OPTIONS]) == 0
    hashes = {row["hash"] for row in rows_of(recorded)}
    assert len(rows_of(quick)) == 2
    assert {row["hash"] for row in rows_of(quick)} < hashes


def test_existing_table_and_large_space_are_refused_in_one_line(recorded, tmp_path, capsys):
    before = recorded.read_bytes()
    assert main([str(recorded), *OPTIONS]) == 2
    assert f"error: {recorded}: expected the path of a new file, got an existing one\n" in capsys.readouterr().err
    assert recorded.read_bytes() == before
    assert main([str(tmp_path / "new.csv"), "--max-states", "3", f"log_dir={tmp_path / 'run'}", *OPTIONS]) == 2
    assert "error: env: expected at most 3 states, got at least 6; see --max-states" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--repeats", "--max-states"])
@pytest.mark.parametrize("value", ["0", "-1", "two"])
def test_invalid_counts_are_refused(option, value, capsys):
    with pytest.raises(SystemExit) as error:
        main(["table.csv", f"{option}={value}"])
    assert error.value.code == 2
    assert f"argument {option}: expected a number >= 1, got '{value}'" in capsys.readouterr().err


def record(
    hash_: str, score: float, *, seconds: float = 1.0, status=EvaluationStatus.OK, **metrics
) -> EvaluationRecord:
    return EvaluationRecord(
        hash=hash_, key=hash_, graph="{}", score=score, status=status, seconds=seconds, step=0, run="r", metrics=metrics
    )


def test_failed_evaluation_leaves_cells_empty():
    repeats = [record("g1-0123456789abcdef01", 0.5, test_score=0.25), record("g1-0123456789abcdef01", 0.05)]
    failed = [repeats[0], record("g1-1123456789abcdef01", 0.05, status=EvaluationStatus.FAILED)]
    lines = table_text([Row(None, [failed[1], failed[0]]), Row(None, repeats)]).splitlines()
    assert lines[1:] == ["g1-0123456789abcdef,0.275,,1.000,,,0.5,0.05", "g1-1123456789abcdef,,,1.000,,,,0.5"]


def test_candidates_with_one_hash_are_refused():
    rows = [Row(None, [record(f"g1-0123456789abcdef{end}", 0.5)]) for end in ("01", "02")]
    with pytest.raises(ValueError, match="expected candidates with different hashes in the first 19 characters"):
        table_text(rows)


def test_time_of_a_group_is_divided_evenly():
    seconds = [0.3, 0.001, 0.002, 0.2, 0.1, 0.0]
    records = [record(f"g1-{number}", 0.5, seconds=each) for number, each in enumerate(seconds)]
    shared = [each.seconds for each in with_shared_seconds(records)]
    assert shared == pytest.approx([0.101, 0.101, 0.101, 0.2, 0.05, 0.05])
