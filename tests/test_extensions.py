"""User classes of every kind from a folder outside the repository: searches with them, and one line per mistake."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gflownet import train
from gflownet.graphs import ComputationGraph
from gflownet.translation import to_pytorch_model
from tests.tiny_run import TINY_RUN

_FILE = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_ERROR = re.compile(r"^error: (.*)$", re.MULTILINE)

TREES = ("env.name=trees:TreeContext", "task=trees:ColourfulTrees")
DIGITS = ("task=digits", "wandb.mode=disabled", "report.every=null")
GRAPHS = ("task=my_task:EdgesTask",)

# Broken classes, each one derived from a working example of the page.
BROKEN = {
    "my_task": """
class NoScore(GFNTask):
    pass

class NoSuper(EdgesTask):
    def __init__(self, config):
        pass

class NoDataclass(EdgesTask):
    Config = dict

class NoSizes(EdgesTask):
    input_sizes = ()

class NoLayout(EdgesTask):
    input_sizes = ((1, 48),)

class NoDirection(EdgesTask):
    objectives = ("edges", "error")

class Failing(EdgesTask):
    def evaluate(self, graph, *, seed):
        return 0.5
""",
    "trees": """
class NoConfig(GraphBuildingEnvContext):
    pass

class TextEnv(TreeEnv):
    terminal_type = str

class TextContext(TreeContext):
    @classmethod
    def build_env(cls, config, *, input_sizes, output_sizes):
        return TextEnv(3, 3)
""",
    "deep_sets": """
class NoFlow(PolicyNetwork):
    def encode(self, batch, conditioning): ...
    def action_logits(self, kinds, batch, encoding): ...

from gflownet.mdp import Policy

class OneWay(Policy):
    def forward(self, batch, conditioning): ...
""",
    "power_balance": """
from gflownet.objectives import Objective

class NoLoss(Objective):
    pass
""",
    "quartic": """
class Cosine(Regression):
    def __call__(self, imbalance):
        return imbalance.cos()

quartic = Quartic()
""",
    "my_activations": """
class Flat(Activation):
    @staticmethod
    def forward(z):
        return z.flatten()
""",
    "my_aggregations": """
class Narrow(Aggregation):
    @staticmethod
    def forward(messages):
        return messages.mean(1)[:, :3]

class Reserved(Aggregation):
    edge_parameter = "weight"

    @staticmethod
    def forward(messages, *, weight):
        return messages.mean(1)

class First(Aggregation):
    @staticmethod
    def forward(messages):
        return messages[:, 0]
""",
}

# Options of a run with a mistake; the start of its error, which the page shows.
MISTAKES = [
    (["task=digit"], "task: expected one of"),
    (["task=my_tsk:EdgesTask"], "task: expected an importable module"),
    (["task=my_task:NoScore"], "task: expected my_task:EdgesTask to define evaluate"),
    (["task=my_task:NoSuper"], "task: expected EdgesTask.__init__ to call"),
    (["task=my_task:NoDataclass"], "task: expected my_task:EdgesTask.Config to be a dataclass"),
    (["task=my_task:NoSizes"], "task: expected input_sizes"),
    ([*GRAPHS, "task_options.tarrget=5"], "task_options.tarrget: unknown option"),
    (["task=my_task:NoLayout"], "task: expected input_sizes with the layout of two axes"),
    (
        [*GRAPHS, "env.name=operation_graph", "env.operation_graph.operations=[conv1d,max_pool1d]"],
        "env: expected a search space of two or more, got 1",
    ),
    (
        ["task=my_task:NoDirection", "evaluation.objectives=[edges,error]"],
        "evaluation.objectives: error: expected its direction",
    ),
    ([*TINY_RUN, "env.max_edges=6", "task=my_task:Failing"], "every evaluation failed"),
    (["env.name=trees:TreeEnv", TREES[1]], "env.name: expected a subclass of GraphBuildingEnvContext"),
    (["env.name=trees:NoConfig", TREES[1]], "env.name: expected a context with a build_env class method"),
    (["env.name=trees:TextContext", TREES[1]], "env.name: expected TextEnv.terminal_type to be a class with"),
    ([*TREES, "env.options.max_nodes=200"], "env.options.max_nodes: expected a number"),
    ([*TREES, "env.options.max_node=5"], "env.options.max_node: unknown option"),
    ([*GRAPHS, "model.name=deep_sets:DeepSetsConfig"], "model.name: expected a subclass of Policy"),
    ([*GRAPHS, "model.name=deep_sets:NoFlow"], "model.name: expected deep_sets:NoFlow to define state_flow"),
    ([*GRAPHS, "model.name=deep_sets:OneWay", "algo.backward_policy=tlm"], "algo.backward_policy: expected uniform"),
    (
        [*GRAPHS, "model.name=deep_sets:DeepSetsPolicy", "model.options.num_layers=0"],
        "model.options.num_layers: expected a number",
    ),
    (
        [*GRAPHS, "algo.method=power_balance:PowerBalance", "algo.regression=huber"],
        "algo.regression: expected squared with",
    ),
    (
        [*GRAPHS, "algo.method=power_balance:PowerBalance", "algo.options.power=9"],
        "algo.options.power: expected a number",
    ),
    ([*GRAPHS, "algo.method=power_balance:NoLoss"], "algo.method: expected power_balance:NoLoss to define loss"),
    ([*GRAPHS, "algo.method=tbb"], "algo.method: expected one of"),
    ([*GRAPHS, "algo.regression=quartic:Cosine"], "algo.regression: expected quartic:Cosine to return"),
    ([*GRAPHS, "algo.regression=quartic:quartic"], "algo.regression: expected a subclass of Regression"),
    ([*GRAPHS, "env.activations=[rellu]"], "env.activations: expected one of"),
    ([*GRAPHS, "env.activations=['my_activation:Sine']"], "activation: expected an importable module"),
    ([*GRAPHS, "env.activations=['my_activations:Cosine']"], "activation: expected a subclass of Activation"),
    ([*GRAPHS, "env.activations=['my_activations:Flat']"], "my_activations:Flat.forward"),
    ([*GRAPHS, "env.aggregations=[summ]"], "env.aggregations: expected one of"),
    ([*GRAPHS, "env.aggregations=['my_aggregations:Mean']"], "aggregation: expected a subclass of Aggregation"),
    ([*GRAPHS, "env.aggregations=['my_aggregations:Narrow']"], "my_aggregations:Narrow.forward"),
    ([*GRAPHS, "env.aggregations=['my_aggregations:First']"], "my_aggregations:First.forward"),
]
# Names in the errors of the page that belong to a broken variant of the class shown there.
RENAMED = {
    "my_task:NoScore": "my_task:EdgesTask",
    "NoSuper": "EdgesTask",
    "NoDirection": "EdgesTask",
    "TextEnv": "TreeEnv",
    "Failing.evaluate": "EdgesTask.evaluate",
    "my_task:NoDataclass": "my_task:EdgesTask",
    "my_activations:Flat": "my_activations:Sine",
    "my_aggregations:Narrow": "my_aggregations:PowerMean",
}


@pytest.fixture(scope="module")
def page(checkout: Path) -> str:
    return (checkout / "docs" / "extending.md").read_text(encoding="utf-8")


@pytest.fixture
def user_folder(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder outside the repository with the files of the page and the broken classes, as working directory."""
    modules = []
    for name, text in _FILE.findall(page):
        if name.removesuffix(".py") not in BROKEN:
            continue
        modules.append(name.removesuffix(".py"))
        (tmp_path / name).write_text(text + BROKEN[modules[-1]])
    assert sorted(modules) == sorted(BROKEN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for module in modules:
        sys.modules.pop(module, None)


ALL_KINDS = {
    "an environment, a task, a policy and an objective": (
        *TREES,
        "env.options.max_nodes=4",
        "model.name=deep_sets:DeepSetsPolicy",
        "model.options.num_layers=2",
        "algo.method=power_balance:PowerBalance",
        "algo.options.power=2.5",
        "num_training_steps=3",
    ),
    "an activation, an aggregation and a regression loss": (
        "env.activations=['my_activations:Sine']",
        "env.aggregations=['my_aggregations:PowerMean',sum]",
        "algo.regression=quartic:Quartic",
        "num_training_steps=3",
        "algo.num_from_policy=2",
        "env.max_hidden_nodes=2",
        "env.max_edges=5",
    ),
}


@pytest.mark.parametrize("kinds", ALL_KINDS)
def test_search_with_user_classes_scores_every_candidate(kinds: str, user_folder: Path) -> None:
    assert (
        train.main(
            [*TINY_RUN, "task=digits", "search.method=gflownet", "final.top=0", *ALL_KINDS[kinds], "log_dir=run"]
        )
        == 0
    )
    rows = [json.loads(line) for line in (user_folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 3
    assert all(row["failed_share"] == 0 for row in rows)
    assert json.loads((user_folder / "run" / "top_architectures.json").read_text())


def test_help_lists_options_of_user_classes(user_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = [*TREES, "model.name=deep_sets:DeepSetsPolicy", "algo.method=power_balance:PowerBalance"]
    assert train.main([*chosen, "--help"]) == 0
    text = capsys.readouterr().out
    for key in ("env.options.max_neighbours", "model.options.num_layers", "algo.options.power"):
        assert re.search(rf"^  {re.escape(key)} +(int|float) = ", text, re.MULTILINE), key


@pytest.mark.parametrize(("options", "start"), MISTAKES, ids=lambda value: value if isinstance(value, str) else "")
def test_mistake_gives_one_line_as_documented(
    options: list[str], start: str, page: str, user_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main([*DIGITS, "env.max_edges=6", *options, "log_dir=run"]) == 2
    *_, line = capsys.readouterr().err.strip().splitlines()
    for broken, shown in RENAMED.items():
        line = line.replace(broken, shown)
        start = start.replace(broken, shown)
    line = line.removeprefix("error: ")
    assert line.startswith(start)
    documented = [text for text in _ERROR.findall(page) if text.startswith(start)]
    patterns = [re.escape(text).replace(re.escape("..."), ".*") for text in documented]
    assert not patterns or [pattern for pattern in patterns if re.fullmatch(pattern, line)], line


def test_every_documented_mistake_is_made(page: str) -> None:
    starts = [start for _, start in MISTAKES]
    for broken, shown in RENAMED.items():
        starts = [start.replace(broken, shown) for start in starts]
    undone = [text for text in _ERROR.findall(page) if not text.startswith(tuple(starts))]
    assert undone == []


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        ({"own.py": "from gflownet.translation import Aggregation\n" + BROKEN["my_aggregations"]},
         "env.aggregations=['own:Reserved']", "own:Reserved.edge_parameter: expected a free Python name, got 'weight'"),
        ({"own.py": "from gflownet.translation import Activation\nclass Empty(Activation):\n    pass\n"},
         "env.activations=['own:Empty']", "activation: expected own:Empty to define forward"),
        ({"own.py": "from gflownet.objectives import Regression\nclass R(Regression):\n    def __init__(self, x): ...\n"
                    "    def __call__(self, imbalance): ...\n"},
         "algo.regression=own:R", "algo.regression: calling own:R failed: TypeError"),
        ({"own.py": "from gflownet.mdp import GraphBuildingEnvContext\nclass C(GraphBuildingEnvContext):\n"
                    "    @classmethod\n    def build_env(cls, config, *, input_sizes, output_sizes): ...\n"},
         "env.name=own:C", "env.name: expected C.build_env to return an Environment, got None"),
    ],
)  # fmt: skip
def test_wrong_class_gives_one_line(
    files: dict[str, str],
    options: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own", raising=False)
    assert train.main([*DIGITS, options, "log_dir=run"]) == 2
    sys.modules.pop("own", None)
    assert capsys.readouterr().err.strip().splitlines()[-1].startswith(f"error: {message}")


def test_classes_with_similar_names_stay_apart_in_generated_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    activation = "from gflownet.translation import Activation\nimport torch\nclass {name}(Activation):\n"
    activation += "    @staticmethod\n    def forward(z):\n        return {code}\n"
    (tmp_path / "near_a.py").write_text(activation.format(name="b_Act", code="z + 1"))
    (tmp_path / "near_a_b.py").write_text(activation.format(name="Act", code="z * 0"))
    monkeypatch.syspath_prepend(tmp_path)
    graph = ComputationGraph()
    graph.add_node(0, "input", output_size=2)
    for node, name in ((1, "near_a:b_Act"), (2, "near_a_b:Act")):
        graph.add_node(node, "hidden", output_size=2, activation_function=name)
        graph.add_edge(0, node)
    graph.add_node(3, "output", output_size=2)
    graph.add_edge(1, 3)
    graph.add_edge(2, 3)
    assert to_pytorch_model(graph)(torch.ones(1, 2)).tolist() == [[2.0, 2.0]]
    for module in ("near_a", "near_a_b"):
        sys.modules.pop(module)


def test_objective_may_build_its_own_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_reader.py").write_text(
        "from gflownet.objectives import Loss, Objective, StepReader\n"
        "class OwnReader(Objective):\n"
        "    def __init__(self, context, config):\n"
        "        super().__init__()\n"
        "        self.reader = StepReader(context, config)\n"
        "    def loss(self, policy, trajectories):\n"
        "        return Loss(self.reader.read(policy, trajectories).log_ratio().square().mean(), {})\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    task = "task=tests.toy_tasks:RewardsHiddenNodes"
    assert train.main([*TINY_RUN, task, "algo.method=own_reader:OwnReader", "log_dir=run"]) == 0
    sys.modules.pop("own_reader")
