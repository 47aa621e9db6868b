"""Ask-and-tell: the proposals of a run, asynchronous use, loaded searches, and one line per mistake."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from gflownet import Search, to_pytorch_model
from gflownet.errors import UserError
from gflownet.search.config import SEARCH_METHODS
from tests.contracts.test_search_methods import OPTIONS, SHARED, STATUSES, searching
from tests.search.searches import PLACES, RIDGE, run_search, score_of

SPACE = [each for each in PLACES if not each.startswith(("task=", "env.name=", "search.batch_size="))]

FAST = ("evolution", "surrogate")


@pytest.fixture(
    params=[name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in SEARCH_METHODS]
)
def method(request) -> str:
    return request.param


def options_of(method: str) -> list[str]:
    """Return options of a method for a small space; a surrogate that is fitted in no time."""
    return [*OPTIONS.get(method, ()), *([RIDGE] if method == "surrogate" else ())]


def start(method: str = "surrogate", *, seed: int = 0, options: Any = (), **arguments: Any) -> Search:
    shared = [*SPACE, *SHARED, *options_of(method), *options]
    return Search(env="choices", method=method, seed=seed, options=shared, **arguments)


def tell_all(search: Search, graphs: list[Any]) -> None:
    """Tell scores as a run with `STATUSES` finds them: settings with a=0 fail."""
    for graph in graphs:
        if graph.values[0] == 0:
            search.tell(graph, error="RuntimeError: a is 0")
        else:
            search.tell(graph, score_of(graph), num_parameters=1)


def proposed(search: Search, num_rounds: int, num: int = 2) -> list[str]:
    """Return the hashes of several rounds."""
    hashes = []
    for _ in range(num_rounds):
        graphs = search.ask(num)
        tell_all(search, graphs)
        hashes += [graph.canonical_hash() for graph in graphs]
    return hashes


def all_proposals(search: Search) -> list[tuple[str, float]]:
    search._learn()
    return [(proposal.hash, proposal.score) for proposal in search._loop.history.proposals]


def test_ask_and_tell_equals_a_run(method):
    """The batch loop with the same task, seed and batch size: the same proposals in the same order."""
    num, budget = 9, "budget.evaluations=9"
    trainer = searching(method, *options_of(method), budget, "search.batch_size=2", *STATUSES)
    trainer.task.refusal = lambda graph: None  # type: ignore[method-assign]
    expected = [(each.hash, each.score) for each in run_search(trainer)[0].history.proposals]
    search = start(method, options=[budget])
    while len(search) < num:
        tell_all(search, search.ask(min(2, num - len(search))))
    assert all_proposals(search) == expected
    assert trainer.search.history.num_new == len(search) == num


def test_seed_decides_the_proposals(method):
    first, again, other = (proposed(start(method, seed=seed), 3) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_ask_uses_no_global_generator_and_leaves_it():
    searches = [start(), start()]
    hashes = []
    for number, search in enumerate(searches):
        torch.manual_seed(number)
        np.random.seed(number)
        before = torch.get_rng_state(), torch.get_num_threads()
        hashes.append(proposed(search, 4))
        assert torch.equal(torch.get_rng_state(), before[0])
        assert torch.get_num_threads() == before[1]
    assert hashes[0] == hashes[1]
    threads = torch.get_num_threads()
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    start()
    assert torch.rand(1) == expected
    assert torch.get_num_threads() == threads


def test_loaded_search_continues_with_its_results(method, tmp_path):
    search = start(method)
    hashes = proposed(search, 4)
    graphs = search.ask(3)
    tell_all(search, graphs[:1])
    search.save(tmp_path / "folder" / "search.json")
    loaded = Search.load(tmp_path / "folder" / "search.json")
    assert loaded.results() == search.results()
    assert [graph.to_dict() for graph in loaded.waiting()] == [graph.to_dict() for graph in graphs[1:]]
    tell_all(loaded, loaded.waiting())
    new = proposed(loaded, 3)
    assert len(new) >= 3
    assert not set(new) & {*hashes, *(graph.canonical_hash() for graph in graphs)}
    loaded._learn()
    assert loaded._loop.history.num_new == len(loaded) == len(search) + len(graphs[1:]) + len(new)


def test_loaded_search_has_its_objectives_and_limits(tmp_path):
    search = start(objectives=("accuracy", "speed"), options=["evaluation.constraints.latency=2"])
    first, second = search.ask(2)
    scores: Any = {"accuracy": 0.25, "speed": np.float32(0.5)}
    search.tell(first, scores, metrics={"latency": 3}, num_parameters=7)
    search.tell(second, error="out of memory")
    search.save(tmp_path / "search.json")
    loaded = Search.load(tmp_path / "search.json")
    assert loaded.results() == search.results()
    assert loaded.results()[0].metrics == {"accuracy": 0.25, "speed": 0.5, "latency": 3.0}
    assert loaded.results()[0].score == loaded.config.evaluation.floor_score
    measured = [[each.infeasible_score for _, each in one._results.values()] for one in (search, loaded)]
    assert measured == [[0.375, None]] * 2


def test_ask_again_before_telling(method):
    """No graph is asked for twice, and results may arrive in any order."""
    search = start(method)
    waiting: list[Any] = []
    seen: set[str] = set()
    for _ in range(6):
        graphs = search.ask(3)
        hashes = [graph.canonical_hash() for graph in graphs]
        assert len(set(hashes)) == len(hashes)
        assert not seen & set(hashes)
        seen |= set(hashes)
        waiting += graphs
        tell_all(search, [waiting.pop(), waiting.pop(0)])
    assert len(search.waiting()) == len(waiting)
    tell_all(search, waiting)
    assert not search.waiting()
    assert len(search) == len(seen)


def test_exhausted_space_ends_the_search():
    options = ["env.choices.places={c: [0, 1], d: [0]}", *SHARED]
    search = Search(env="choices", method="surrogate", options=options)
    graphs = search.ask(5)
    assert len(graphs) == 2
    assert search.ask(5) == []
    assert search.end == "", "results may lead to others"
    tell_all(search, graphs)
    assert search.ask(5) == []
    assert search.end == "the method has no further proposals"


def test_told_earlier_results_are_used(method):
    """Scores of graphs of another search: they count in the history, and are not proposed as new."""
    source, search = start("random", seed=9), start(method)
    earlier = source.ask(8)
    for graph in earlier:
        search.tell(graph.to_dict(), score_of(graph))
    hashes = set(proposed(search, 3))
    assert not hashes & {graph.canonical_hash() for graph in earlier}
    assert len(search) == 8 + len(hashes)
    assert search.best()[0].score == max(score_of(result.graph) for result in search.results() if not result.error)


def test_best_leaves_out_failures():
    search = start()
    first, second, third = search.ask(3)
    search.tell(first, error="out\nof memory")
    search.tell(second, 0.2, metrics={"latency": 3})
    search.tell(third, np.float32(0.5))
    assert [result.graph for result in search.best(5)] == [third, second]
    assert search.best()[0].score == 0.5
    assert search.results()[0].error == "out of memory"
    assert search.results()[1].metrics == {"latency": 3.0}


def test_several_objectives():
    search = start(objectives=("accuracy", "speed"))
    graphs = search.ask(6)
    for number, graph in enumerate(graphs):
        search.tell(graph, {"accuracy": number / 6, "speed": 1 - number / 6})
    assert len(search.ask(2)) == 2
    assert search._loop.history.utilities[1] == pytest.approx((1 / 6, 5 / 6))
    assert search.results()[0].metrics == {"accuracy": 0.0, "speed": 1.0}
    graph = search.waiting()[0]
    with pytest.raises(UserError, match=r"^tell: metrics: expected the objective speed, got accuracy$"):
        search.tell(graph, {"accuracy": 0.5})


def test_asked_networks_are_translated():
    options = ["env.max_hidden_nodes=2", "env.max_edges=5", "model.num_emb=8", "model.num_layers=1"]
    search = Search(env="computation_graph", method="random", input_sizes=[4], output_sizes=[2], options=options)
    (graph,) = search.ask()
    network = search.network(graph)
    assert network is not None
    assert to_pytorch_model(network)(torch.rand(3, 4)).shape == (3, 2)


def test_config_gives_sizes_and_space():
    search = Search("digits_small", method="random", seed=1)
    (graph,) = search.ask()
    assert to_pytorch_model(graph)(torch.rand(2, 64)).shape == (2, 10)


def test_config_gives_method_and_seed(tmp_path):
    config = tmp_path / "own.yaml"
    config.write_text("task: digits\nseed: 7\nsearch: {method: evolution}\n")
    search, other = Search(str(config)).config, Search(str(config), method="random", seed=1).config
    assert (search.search.method, search.seed) == ("evolution", 7)
    assert (other.search.method, other.seed) == ("random", 1)


MISTAKES = [
    (lambda search, graph: search.tell(graph, math.nan), r"tell: expected a finite score, got nan"),
    (lambda search, graph: search.tell(graph, -1.0), r"tell: expected a score in \[0, 1e\+06\], got -1.0"),
    (lambda search, graph: search.tell(graph, "good"), r"tell: score: expected a number, got 'good'"),
    (lambda search, graph: search.tell(graph), r"tell: expected a score or error=..., got none"),
    (lambda search, graph: search.tell(graph, 0.5, error="x"), r"tell: expected a score or .*, got both"),
    (lambda search, graph: search.tell(3, 0.5), r"tell: expected a Assignment or its to_dict, got int"),
    (
        lambda search, graph: search.tell(graph, {"accuracy": 1.0}),
        r"tell: expected one score of a search without objectives, got \{'accuracy': 1.0\}",
    ),
    (lambda search, graph: search.ask(0), r"ask: expected a number of graphs >= 1, got 0"),
    (lambda search, graph: Search.load("missing.pt"), r"Search.load: no such file: missing.pt"),
    (lambda search, graph: Search.load(__file__), r"Search.load: expected a file of Search.save, got .*"),
    (lambda search, graph: Search(), r"Search: expected a config or env=..., got none"),
    (lambda search, graph: Search("cells", env="cells"), r"Search: expected a config or .*, got both"),
    (lambda search, graph: Search(env="cell"), r"env.name: expected one of .*; did you mean cells\?"),
    (lambda search, graph: start("gflownet"), r"search.method: expected one of random, .*, got gflownet"),
]


def test_mistake_is_one_line():
    search = start("random")
    graph = search.ask()[0]
    for act, expected in MISTAKES:
        with pytest.raises(UserError, match=f"^{expected}$"):
            act(search, graph)
    assert len(search) == 0


def test_second_result_of_a_graph_is_refused():
    search = start("random")
    (graph,) = search.ask()
    search.tell(graph, 0.25)
    with pytest.raises(UserError, match=r"^tell: expected a graph without a result, got one with the score 0.25$"):
        search.tell(graph, 0.5)


def test_graph_of_another_space_is_refused():
    search, other = start("random"), start("random", options=["env.choices.places={a: [7, 8]}"])
    graph = other.ask()[0]
    with pytest.raises(UserError, match=r"^tell: expected a graph of this search space: "):
        search.tell(graph, 0.5)
    assert len(search) == 0
