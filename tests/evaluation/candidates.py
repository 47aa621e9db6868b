"""Stand-ins for graphs and tasks, and small real graphs."""

from typing import Any, cast

from gflownet.config import Config, load_config
from gflownet.evaluation.dispatcher import Dispatcher
from gflownet.evaluation.executors.base import Executor
from gflownet.evaluation.executors.inline import InlineExecutor
from gflownet.evaluation.task import GFNTask, Score
from gflownet.graphs.computation_graph import ComputationGraph, NodeType
from tests.evaluation.stub_rows import StubCandidate as StubCandidate
from tests.evaluation.stub_rows import record as record


def config_with(*overrides: str) -> Config:
    return load_config(None, overrides)


def dispatcher_of(task: GFNTask, store: Any, executor: Executor | None = None, **options: Any) -> Dispatcher:
    """Return the dispatcher of the run "mine" with seed 0."""
    options = {"config": task.config.evaluation, "seed": 0, "run": "mine", **options}
    return Dispatcher(task, store, executor or InlineExecutor(task), **options)


class StubTask(GFNTask):
    """Scores by a table of outcomes: a number, or an exception to raise."""

    input_sizes = (1,)
    output_sizes = (1,)

    def __init__(self, outcomes: dict[str, Any], config: Config | None = None) -> None:
        super().__init__(cast(Any, config or config_with()))
        self.outcomes = outcomes
        self.calls: list[tuple[str, int]] = []

    def evaluate(self, graph: StubCandidate, *, seed: int) -> Score:
        self.calls.append((graph.key, seed))
        outcome = self.outcomes[graph.key]
        if isinstance(outcome, BaseException):
            raise outcome
        return Score(outcome, num_parameters=7, metrics={"validation_accuracy": outcome})


def classifier_graph(
    *hidden: tuple[int, str], input_size: int = 64, num_classes: int = 10, skip: bool = False
) -> ComputationGraph:
    graph = ComputationGraph()
    graph.add_node(0, NodeType.INPUT, output_size=input_size)
    graph.add_node(1, NodeType.OUTPUT, output_size=num_classes)
    previous = 0
    for node, (size, activation) in enumerate(hidden, start=2):
        graph.add_node(node, NodeType.HIDDEN, output_size=size, activation_function=activation)
        graph.add_edge(previous, node)
        previous = node
    graph.add_edge(previous, 1)
    if skip:
        graph.add_edge(0, 1)
    return graph
