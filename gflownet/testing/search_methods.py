"""Contract of search methods, on a space of 81 settings of four places."""

from __future__ import annotations

import zlib
from typing import Any

from gflownet.run.ask_and_tell import Search
from gflownet.search.method import Candidates
from gflownet.testing.contract import Contract, expect

_PLACES = "env.choices.places={a: [0, 1, 2], b: [0, 1, 2], c: [0, 1, 2], d: [0, 1, 2]}"
_SMALL = ("model.name=mlp", "model.num_layers=1", "model.num_emb=8", "search.num_initial=4")


def check_search_method(name: str, *options: str) -> None:
    """Check a search method with ask and tell.

    Args:
        name: module:Class or built-in name.
        options: `search.options.x=y` of the class.

    Raises:
        ContractError: the first rule that the method breaks, in one line.
    """
    SearchMethodContract(name, *options).run_all()


class SearchMethodContract(Contract):
    """Checks of one search method."""

    def __init__(self, name: str, *options: str) -> None:
        self.name, self.options, self.subject = name, options, name

    def start(self, *options: str) -> Search:
        """Return a new search."""
        return Search(env="choices", method=self.name, options=[_PLACES, *_SMALL, *self.options, *options])

    def check_seed_alone_decides_the_proposals(self) -> None:
        first, second = (_proposed(self.start(), 4) for _ in range(2))
        expect(first == second, "expected equal proposals with equal seeds, got different ones")
        expect(len(set(first)) == len(first), "expected a graph to be proposed as a new one at most once")

    def check_restored_state_continues_exactly(self) -> None:
        whole, stopped, restored = self.start(), self.start(), self.start()
        for search in (whole, stopped):
            _proposed(search, 3)
            search._learn()
        restored._loop.load_state_dict(stopped._loop.state_dict())
        same = _next_proposals(restored) == _next_proposals(whole)
        expect(same, "expected a restored search to continue exactly; compare state_dict and load_state_dict")

    def check_results_may_arrive_late_and_failed(self) -> None:
        search, waiting = self.start(), []
        for _ in range(4):
            waiting += search.ask(2)
            if waiting:
                search.tell(waiting.pop(), error="out of memory")
        for graph in waiting:
            search.tell(graph, _score(graph))
        expect(len(search) > 0 and not search.waiting(), "expected results of all proposals")
        expect(search.ask(1) or search.end, "expected proposals after failures, or an end with its reason")

    def check_small_space_is_exhausted(self) -> None:
        search = self.start("env.choices.places={c: [0], d: [0]}")
        for _ in range(8):
            for graph in search.ask(2):
                search.tell(graph, _score(graph))
        num = len(search)
        expect(1 <= num <= 9, f"expected at most the 9 settings of a space, got {num}")


def _proposed(search: Search, num_rounds: int) -> list[str]:
    """Return the hashes of rounds of two proposals."""
    hashes = []
    for _ in range(num_rounds):
        graphs = search.ask(2)
        for graph in graphs:
            search.tell(graph, _score(graph))
        hashes += [graph.canonical_hash() for graph in graphs]
    return hashes


def _next_proposals(search: Search) -> list[str]:
    """Return the hashes of the next call of the method, repeats included."""
    method = search._loop.method
    states = Candidates.of(method.propose(search._loop.num_calls, 8)).states
    return [method.env.terminal(states, index).canonical_hash() for index in range(len(states))]


def _score(graph: Any) -> float:
    return 0.05 + 0.9 * zlib.crc32(repr(graph.values).encode()) / 2**32
