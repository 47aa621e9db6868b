"""Inherited weights: matching, copies that keep functions, shorter trainings, pairs that end them, and whole runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gflownet.config import load_config
from gflownet.evaluation.candidates.sets import PARENTS_NAME, ParentWeights
from gflownet.evaluation.candidates.tensor_task import EPOCHS, INHERITED, PARENT, WEIGHTS
from gflownet.evaluation.inheritance import Inheritance, is_other_training
from gflownet.files import write_whole
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.report.results import read_results
from gflownet.train import main
from gflownet.translation import GraphOutline, inherit_weights, inherited_share, to_pytorch_model
from tasks.digits import DigitsTask
from tests.evaluation.stub_rows import open_store, record
from tests.tiny_run import TINY_RUN

_RUN = (
    *TINY_RUN,
    *("task=digits", "evaluation.num_epochs=2", "evaluation.inherit=true", "search.method=surrogate", "final.top=0"),
    *("search.surrogate.name=tests.search.toy_surrogates:RidgeRegression", "search.num_initial=5"),
    *("search.train_sampler=false", "search.batch_size=1", "search.width=2", "budget.evaluations=8"),
)


def convolutions(*widths: int, kernel: int = 3) -> ComputationGraph:
    """Return a chain of convolutions of signals with a batch norm each, and a head."""
    graph, sources = ComputationGraph(), [0]
    graph.add_node(0, "input", output_size=None, attributes={"shape": [1, 12], "layout": "signal"})
    graph.add_node(1, "output", output_size=None, attributes={"operation": {"name": "head", "features": 4}})
    for node, width in enumerate(widths, 2):
        settings = {"name": "conv_bn_relu", "features": width, "kernel_size": kernel, "stride": 1, "dilation": 1}
        graph.add_node(node, "hidden", output_size=None, attributes={"operation": settings})
        graph.add_edge(sources[-1], node)
        sources.append(node)
    graph.add_edge(sources[-1], 1)
    return graph


@pytest.mark.parametrize("child", [convolutions(6, 8), convolutions(9, 8), convolutions(6, 8, kernel=5)], ids=str)
def test_wider_network_keeps_the_function(child: ComputationGraph) -> None:
    parent = convolutions(6, 8)
    models = [to_pytorch_model(each) for each in (parent, child)]
    x = torch.randn(5, 1, 12)
    models[0].train()(x)  # moves the running means
    nodes, likeness = GraphOutline(child).matches(GraphOutline(parent))
    assert nodes == {0: 0, 1: 1, 2: 2, 3: 3}
    weights = models[0].state_dict()
    share = inherit_weights(models[1], weights, nodes)
    own, other = ({name: value.shape for name, value in model.state_dict().items()} for model in reversed(models))
    assert share == inherited_share(own, other, nodes)
    assert (share == 1) == (likeness == 1) == (parent == child)
    torch.testing.assert_close(models[1].eval()(x), models[0].eval()(x))


def test_new_layers_begin_afresh_and_the_others_match() -> None:
    parent, child = convolutions(6, 8), convolutions(6, 7, 8)
    nodes, likeness = GraphOutline(child).matches(GraphOutline(parent))
    assert nodes == {0: 0, 1: 1, 2: 2, 4: 3}
    assert 0.5 < likeness < 1
    model, weights = to_pytorch_model(child), to_pytorch_model(parent).state_dict()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    inherit_weights(model, weights, nodes)
    after = model.state_dict()
    assert torch.equal(after["conv_bn_relu_3.conv1d_1.weight"], before["conv_bn_relu_3.conv1d_1.weight"])
    for name, other in (("conv_bn_relu_2", "conv_bn_relu_2"), ("head_1", "head_1")):
        assert all(torch.equal(after[key], weights[key.replace(name, other)]) for key in after if key.startswith(name))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run with inherited weights."""
    folder = tmp_path_factory.mktemp("inherited") / "run"
    assert main([*_RUN, f"log_dir={folder}"]) == 0
    return folder


def test_rows_of_a_run(run: Path) -> None:
    with open_store(run / "evaluations.sqlite") as store:
        rows = list(store)
    others = [row for row in rows if is_other_training(row)]
    candidates = [row for row in rows if not row.seed and row not in others and not row.fidelity]
    inherited = [row for row in candidates if INHERITED in row.metrics]
    assert len(candidates) == 8
    assert len(others) >= 3
    assert all(INHERITED not in row.metrics for row in candidates[:5])
    assert all(row.metrics[EPOCHS] == len(row.curve) == 1 for row in (*inherited, *others))
    assert {row.key for row in others} <= {row.key for row in candidates}
    assert len(list((run / PARENTS_NAME).iterdir())) == 8
    search = read_results(run).search
    assert search is not None
    assert search.inherited.startswith(f"inherited weights: {len(inherited)} of 8 candidates, with ")


def test_pool_gives_the_same_rows(run: Path, tmp_path: Path) -> None:
    options = ("evaluation.executor=pool", "evaluation.capacity=2")
    assert main([*_RUN, *options, f"log_dir={tmp_path / 'run'}"]) == 0
    found = []
    for folder in (run, tmp_path / "run"):
        with open_store(folder / "evaluations.sqlite") as store:
            found.append(sorted((row.key, row.fidelity, row.score, str(row.metrics)) for row in store if not row.seed))
    assert found[0] == found[1]


@pytest.mark.slow
def test_results_in_any_order_are_all_learned(tmp_path: Path) -> None:
    """Evaluations that finish while a pair is awaited are learned later."""
    assert main([*_RUN, "asynchronous.max_in_flight=3", f"log_dir={tmp_path / 'run'}"]) == 0
    search = read_results(tmp_path / "run").search
    assert search is not None
    assert "8 evaluations are done" in search.end


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("task=hypergrid", "env.name=hypergrid"), "with task=hypergrid, whose candidates are no networks"),
        (("task=digits", "evaluation.num_epochs=1"), "with evaluation.num_epochs=1, of which no part is left out"),
        (("task=digits", "evaluation.num_epochs=2", "search.method=gflownet"), "with a search method that has no surr"),
        (
            ("task=digits", "evaluation.num_epochs=4", "evaluation.halving.min_fidelity=1", "search.method=surrogate"),
            "with evaluation.halving.min_fidelity, which shortens trainings too",
        ),
    ],
)
def test_refusals(options: tuple[str, ...], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY_RUN, "evaluation.inherit=true", *options, f"log_dir={tmp_path / 'run'}"]) == 2
    printed = " ".join(capsys.readouterr().err.split())
    assert f"evaluation.inherit: expected false {expected}" in printed
    assert not (tmp_path / "run").exists()


def inheritance() -> Inheritance:
    return Inheritance(DigitsTask(load_config("digits")), from_dict=ComputationGraph.from_dict)


@pytest.mark.parametrize(
    ("others", "is_over"),
    [((0.2, 0.4, 0.6, 0.7, 0.9), False), ((0.9, 0.2, 0.7, 0.3, 0.6), True), ((0.5,) * 5, False)],  # NaN decides nothing
)
def test_inheritance_ends_where_ranks_differ(others: tuple[float, ...], is_over: bool) -> None:
    found, lines = inheritance(), []
    for score, other in zip((0.1, 0.3, 0.5, 0.6, 0.8), others, strict=True):
        row = record("a", score=score, metrics={INHERITED: 0.8, EPOCHS: 2.0})
        lines.append(found.add_pair(row, (other,)))
    assert lines[:4] == [""] * 4
    assert ("further ones are trained from first values" in lines[4]) == is_over
    assert found.add_pair(record("a", score=0.5, metrics={}), (0.5,)) == "", "a pair that has begun again"
    state = found.state_dict()
    again = inheritance()
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert str(again) == str(found)


def test_estimates_raise_what_is_not_inherited() -> None:
    found = inheritance()
    values, metrics = torch.tensor([[0.5], [0.6], [0.9]], dtype=torch.float64), [{INHERITED: 0.5}, {INHERITED: 1.0}, {}]
    assert torch.equal(found.estimates(values, metrics), values)
    found.add_pair(record("a", score=0.4, metrics={INHERITED: 0.5, EPOCHS: 2.0}), (0.6,))
    # By hand: the slope is .5 * .2 / (.5^2 + .25) = .2, of which the first row lacks half.
    torch.testing.assert_close(
        found.estimates(values, metrics), torch.tensor([[0.6], [0.6], [0.9]], dtype=torch.float64)
    )
    metrics[0][INHERITED] = -5.0
    assert float(found.estimates(values, metrics)[0, 0]) == 0.9, "at most the best measured one"


def test_training_that_diverges_begins_again() -> None:
    task = DigitsTask(load_config("digits", ["evaluation.num_epochs=4"]))
    graph = ComputationGraph()
    graph.add_node(0, "input", output_size=64)
    graph.add_node(1, "output", output_size=10)
    graph.add_edge(0, 1)
    weights = task.build_model(graph).state_dict()
    options: dict[str, Any] = {"seeds": [1], "fidelity": 4, "schedule": 4}

    def trained(state: Any) -> Any:
        (training,) = task.train_many([graph], states=[state], **options)
        assert not isinstance(training, Exception)
        return training.score()

    parent = {PARENT: graph.to_dict(), WEIGHTS: weights}
    first, inherited = trained(None), trained(parent)
    assert inherited.metrics[INHERITED] == 1
    assert inherited.metrics[EPOCHS] == 1
    broken = {**parent, WEIGHTS: {name: value * torch.nan for name, value in weights.items()}}
    again = trained(broken)
    assert INHERITED not in again.metrics
    assert again.value == first.value


def test_weights_stay_until_no_checkpoint_needs_them(tmp_path: Path) -> None:
    weights = ParentWeights(tmp_path, write=write_whole)
    weights.begin_with("start", b"0")
    for key in ("start", "a", "b", "c"):
        weights.add(record(key), b"1")
    assert weights.path("start").read_bytes() == b"0"
    weights.change([], ["a", "b"])
    weights.change(["b"], [])  # it is a parent again
    for is_there in (True, True, False):
        assert weights.path("a").exists() == is_there
        weights.checkpoint()
    assert weights.path("b").exists()
    weights.end(["c"])
    assert [path.name for path in tmp_path.iterdir()] == [weights.path("c").name]
    assert (weights.keeps(0), weights.keeps(1)) == (True, False)
