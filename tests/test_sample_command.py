"""gflownet sample, against the exact distribution of a small space of graphs with symmetries."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import gflownet
from gflownet.certificate.exact import enumerate_states, forward_scores, policy_log_prob, terminating_distribution
from gflownet.cli.sample import main
from gflownet.run.sampling import restore
from gflownet.train import main as train

# Connected graphs of up to three nodes in two colours; several have automorphisms.
SPACE = ("--config", "exact", "env.coloured_graph.max_nodes=3", "certify=false", "wandb.mode=disabled")
SHORT = ("num_training_steps=2", "algo.num_from_policy=8", "report.every=null", "model.num_layers=1")


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample") / "run"
    assert train([*SPACE, *SHORT, "algo.backward_policy=learned", f"log_dir={folder}"]) == 0
    return folder


def records(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main([str(argument) for argument in (*arguments, "--json")]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def exact_probabilities(folder: Path) -> dict[str, float]:
    """Return p(x) of every terminal graph by hash, as a certificate computes it."""
    restored = restore(folder)
    context = restored.trainer.context
    graph = enumerate_states(context.env)
    encoding = restored.trainer.task.sample_conditioning(1, generator=torch.Generator()).encoding[0]
    log_prob = policy_log_prob(graph, forward_scores(context, restored.policy, encoding))
    probability = terminating_distribution(graph, log_prob)
    states = graph.terminal.tolist()
    return {context.env.terminal(graph.states, state).canonical_hash(): float(probability[state]) for state in states}


def test_exact_probabilities_match_the_certificate_and_balance(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = records(capsys, run_folder, "--num", "600", "--exact")
    ours = {row["hash"]: math.exp(row["log_prob"]) for row in rows}
    theirs = exact_probabilities(run_folder)
    assert {row["log_prob_method"] for row in rows} == {"exact"}
    assert sum(ours.values()) == pytest.approx(1.0, abs=1e-6), "600 samples contain all 15 graphs"
    assert ours == pytest.approx(theirs, rel=1e-5)
    counts = Counter(row["hash"] for row in rows)
    for name, probability in theirs.items():
        deviation = math.sqrt(600 * probability * (1 - probability))
        assert abs(counts[name] - 600 * probability) < 5 * deviation
    # E[P_B / P_F] over the policy's trajectories is the sum of 1 / |Aut(x)| over all graphs (orbit identity).
    total = sum(math.exp(row["log_backward"] - row["log_forward"]) for row in rows) / len(rows)
    automorphisms = [_automorphisms(row["graph"]) for row in {row["hash"]: row for row in rows}.values()]
    assert total == pytest.approx(sum(1 / number for number in automorphisms), rel=0.15)
    assert max(automorphisms) == 6


def test_estimates_agree_with_exact_probabilities(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs = exact_probabilities(run_folder)
    rows = records(capsys, run_folder, "--num", "64", "--trajectories", "400")
    for row in rows:
        assert (row["log_prob_method"], row["log_prob_trajectories"]) == ("estimate", 400)
        assert 1 <= row["log_prob_effective"] <= 400
        assert math.exp(row["log_prob"]) == pytest.approx(theirs[row["hash"]], rel=0.2)


def test_records_have_the_graphs_of_the_python_function(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = records(capsys, run_folder, "--num", "5", "--seed", "3", "--trajectories", "0")
    graphs = gflownet.sample(run_folder, 5, seed=3)
    assert [row["graph"] for row in rows] == [graph.to_dict() for graph in graphs]
    assert [row["hash"] for row in rows] == [graph.canonical_hash() for graph in graphs]
    assert {row["log_prob"] for row in rows} == {None}


def test_score_and_log_reward_of_evaluated_graphs(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = records(capsys, run_folder, "--num", "300")
    scored = [row for row in rows if row["score"] is not None]
    task = restore(run_folder).trainer.task
    graphs = {graph.canonical_hash(): graph for graph in gflownet.sample(run_folder, 300)}
    assert 0 < len(scored) < len(rows), "16 evaluations do not cover the space"
    for row in scored:
        assert row["score"] == pytest.approx(task.evaluate(graphs[row["hash"]], seed=0).value)
        assert row["log_reward"] == pytest.approx(math.log(max(row["score"], 1e-6)), rel=1e-5)
        assert row["status"] == "ok"
    assert all(row["log_reward"] is None and row["status"] is None for row in rows if row["score"] is None)


def _automorphisms(graph: dict[str, Any]) -> int:
    import networkx
    from networkx.algorithms.isomorphism import GraphMatcher, categorical_edge_match, categorical_node_match

    nodes = networkx.node_link_graph(graph, edges="edges")
    same = categorical_node_match("colour", None), categorical_edge_match("colour", None)
    return sum(1 for _ in GraphMatcher(nodes, nodes, node_match=same[0], edge_match=same[1]).isomorphisms_iter())


def test_table(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run_folder), "--num", "4"]) == 0
    header, *rows, last = capsys.readouterr().out.splitlines()
    assert header.split() == ["hash", "score", "predicted", "log", "R(x)", "log", "p(x)", "log", "P_F", "log", "P_B"]
    assert len(rows) == 4
    assert last.startswith("4 graphs, ")
    assert max(map(len, [header, *rows, last])) <= 80


def test_output_is_a_new_file(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "graphs.jsonl"
    assert main([str(run_folder), "--num", "3", "--output", str(file)]) == 0
    assert f"written to {file}" in capsys.readouterr().out
    content = file.read_text()
    assert [len(json.loads(line)["graph"]["nodes"]) for line in content.splitlines()]
    assert main([str(run_folder), "--output", str(file)]) == 2
    assert "expected a new file, got an existing one" in capsys.readouterr().err
    assert file.read_text() == content
    assert main([str(run_folder), "--beta", "3", "--output", str(tmp_path / "none.jsonl")]) == 2
    assert not (tmp_path / "none.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--num", "0"], "--num: expected a number >= 1, got '0'"),
        (["--greediness", "2"], "--greediness: expected a number in [0, 1], got 2.0"),
        (["--greediness", "1"], "greediness: expected 0 of a run without algo.qgfn.use=true"),
        (["--beta", "9"], "beta: expected 1, by cond.temperature, got 9.0"),
        (["--exact", "--max-states", "3"], "--exact: expected at most 3 states"),
        (["--preferences", "a"], "--preferences: expected numbers separated by commas, got 'a'"),
        (["--jsno"], "--jsno: unknown option; did you mean --json?"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], words: str, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run_folder), *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert words in printed.err
    assert printed.err.count("\n") == 1


def test_folder_without_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none")]) == 2
    assert "expected the log_dir of a run with a checkpoint" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_interrupt_keeps_whole_lines(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import gflownet.cli.sample_records

    def interrupted(*arguments: Any, **options: Any) -> Iterator[Any]:
        records = original(*arguments, **options)
        yield next(records)
        raise KeyboardInterrupt

    original = gflownet.cli.sample_records.sample_records
    monkeypatch.setattr(gflownet.cli.sample_records, "sample_records", interrupted)
    file = tmp_path / "graphs.jsonl"
    assert main([str(run_folder), "--output", str(file), "--trajectories", "0"]) == 130
    assert len(file.read_text().splitlines()) == 1
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_interrupt_and_closed_pipe(run_folder: Path, checkout: Path) -> None:
    command = [sys.executable, "-m", "gflownet", "sample", str(run_folder), "--num", "1000000", "--json"]
    with subprocess.Popen(command, cwd=checkout, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["hash"], "records are written while others are sampled"
        process.send_signal(signal.SIGINT)
        lines = process.stdout.read().splitlines()
        assert process.stderr.read() == ""
    assert process.returncode == 130
    assert all(json.loads(line) for line in lines)
    with subprocess.Popen(command, cwd=checkout, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141
