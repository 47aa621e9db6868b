"""Plants bugs in gflownet/translation, one at a time, and tells which the tests do not notice.

    python scripts/mutate_translation.py [--quick] [--json FILE] [--only WORD]

Works on a copy in a temporary folder. A quick run plants few bugs and runs the oracle's tests only.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.bench import equals, figure, finish, make_parser

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("gflownet", "tests/__init__.py", "tests/translation", "tests/oracles", "pyproject.toml")
# The oracle kills most, and fast; the slow tests of other tools come last.
TESTS = (
    "against_oracle",
    "model",
    "cache",
    "direct",
    "repairs",
    "architectures",
    "graph_summary",
    "source",
    "hostile_graphs",
    "export",
)


@dataclass(frozen=True)
class Mutant:
    """One planted bug: `old`, which stands exactly once in the file, becomes `new`."""

    name: str
    file: str  # relative to gflownet/translation, without .py
    old: str
    new: str


QUICK = ("sigmoid for tanh", "wrong mean", "max is min")

MUTANTS = (
    Mutant("leaky slope 0.2", "emit", 'F.leaky_relu({z})"', 'F.leaky_relu({z}, 0.2)"'),
    Mutant("softmax over the batch", "emit", "torch.softmax({z}, dim=-1)", "torch.softmax({z}, dim=0)"),
    Mutant("approximate gelu", "emit", 'F.gelu({z})"', "F.gelu({z}, approximate='tanh')\""),
    Mutant("elu with alpha 0.5", "emit", 'F.elu({z})"', 'F.elu({z}, 0.5)"'),
    Mutant("sigmoid for tanh", "emit", '"torch.tanh({z})"', '"torch.sigmoid({z})"'),
    Mutant("softplus for silu", "emit", "F.silu", "F.softplus"),
    Mutant("bias dropped", "emit", 'torch.addcmul({total}, {x}, {factor})" if total', '{x} * {factor}" if total'),
    Mutant("edge weight dropped", "emit", 'f"{matrix} * {factor}"', 'f"{matrix} * 1.0"'),
    Mutant("edge weight dropped where a layer is wide", "emit", 'product(f"{x} * {factor}"', 'product(f"{x} * 1.0"'),
    Mutant("recurrent edge reads this step", "emit", 'slot_name("output", edge.source) if edge.is_recurrent else ', ""),
    Mutant("gru without memory", "emit", '{layer}({z}, {hidden})"', '{layer}({z})"'),
    Mutant("lstm state swapped", "emit", "({hidden}, {cell}))", "({cell}, {hidden}))"),
    Mutant("wrong mean", "aggregations", 'alpha={1 / count!r})"', 'alpha={1 / (count + 1)!r})"'),
    Mutant("max is min", "aggregations", '"torch.maximum"', '"torch.minimum"'),
    Mutant("min is max", "aggregations", '_extremum("torch.minimum")', '_extremum("torch.maximum")'),
    Mutant("max forgets an input", "aggregations", "for message in rest:", "for message in rest[:1]:"),
    Mutant("concat reversed", "aggregations", "cat({group(messages)}", "cat({group(messages[::-1])}"),
    Mutant("uniform attention", "aggregations", "* {scale!r}", "* 0.0"),
    Mutant("attention not scaled", "aggregations", "1.0 / (sqrt(node.message_size) * ", "1.0 / ("),
    Mutant("attention temperature ignored", "aggregations", 'attributes.get("temperature", 1.0))',
           'attributes.get("", 1.0))'),
    Mutant("heads interleaved", "aggregations", "@ {messages}).flatten(1)", "@ {messages}).transpose(1, 2).flatten(1)"),
    Mutant("attn_eps ignored", "aggregations", 'get("attn_eps", 0.0)', 'get("", 0.0)'),
    Mutant("attn_eps outside", "aggregations", "keepdim=True) + {epsilon!r})", "keepdim=True)) + {epsilon!r}"),
    Mutant("dropout ignored", "aggregations", 'attributes.get("dropout_p", 0.0)', "attributes.get('', 0.0)"),
    Mutant("dropout in eval mode", "aggregations", "self.training", "True"),
    Mutant("one dropout mask for all rows", "aggregations", 'if node.attributes.get("dropout_p"):', "if False:"),
    Mutant("top_k takes the lowest", "aggregations", "argsort(dim=1, descending=True",
           "argsort(dim=1, descending=False"),
    Mutant(
        "ties go to the later input",
        "aggregations",
        "{score}.argsort(dim=1, descending=True, stable=True)[",
        "({score}.shape[1] - 1 - {score}.flip(1).argsort(dim=1, descending=True, stable=True))[",
    ),
    Mutant("top_k one too many", "aggregations", "stable=True)[:, :{top_k}]", "stable=True)[:, :{top_k + 1}]"),
    Mutant("topk always normalised", "aggregations", 'if node.attributes.get("normalize", True)', "if True"),
    Mutant("topk scores are sums", "aggregations", ".mean(dim=2)", ".sum(dim=2)"),
    Mutant("moe takes two by default", "aggregations", '.get("top_k") or 1', '.get("top_k") or 2'),
    Mutant("router temperature ignored", "aggregations", '"router_temperature"', '""'),
    Mutant("moe always normalised", "aggregations", 'if attributes.get("normalize", True)', "if True"),
    Mutant("tanh gate", "aggregations", "torch.sigmoid(torch.stack", "torch.tanh(torch.stack"),
    Mutant("gates never normalised", "aggregations", 'get("normalize", False)', 'get("", False)'),
    Mutant("mixing ignores edge weights", "aggregations", "({mix} * {weights}).unbind()",
           "({mix} + 0 * {weights}).unbind()"),
    Mutant("bias before post", "step_code", "product(total, post, emitter.bias, False)",
           "product(f'({total} + {emitter.bias})', post, '', False)"),
    Mutant("unfed node is zero", "step_code", '{emitter.bias}.expand(', '({emitter.bias} * 0).expand('),
    Mutant("inputs overlap", "step_code", "        start += size\n", "        start += size - 1\n"),
    Mutant("outputs reversed", "step_code", "for node_id in plan.outputs]", "for node_id in plan.outputs[::-1]]"),
    Mutant("state shares memory", "step_code", ".clone()", ""),
    Mutant("disabled edges count", "planning", "graph.in_edges(node.node_id) if edge.enabled",
           "graph.in_edges(node.node_id)"),
    Mutant("in-edges in reverse", "planning", "for edge in graph.in_edges(node.node_id)",
           "for edge in graph.in_edges(node.node_id)[::-1]"),
    Mutant("projection=always ignored", "../graphs/limits", 'projection == "always" or ', ""),
    Mutant("projection=never ignored", "../graphs/validation", 'if projection == "never":', "if False:"),
    Mutant("multigraph names by ends", "planning", 'if graph.config.get("multigraph") else', "if False else"),
    Mutant("post_projection ignored", "plan", ' or bool(self.attributes.get("post_projection"))', ""),
    Mutant("unmarked cycles not read late", "planning", "edge.is_recurrent or edge.edge_id in recurrent",
           "edge.is_recurrent"),
    Mutant("dead nodes computed", "planning", "recurrent, node_id in live)", "recurrent, True)"),
    Mutant("recurrent paths do not count as live", "planning", "        if edge.enabled:\n            sources.",
           "        if edge.enabled and not edge.is_recurrent:\n            sources."),
    Mutant("key without attributes", "planning", "node.activation_function, _frozen(node.attributes))",
           "node.activation_function)"),
    Mutant("head_dim ignored", "../graphs/limits", 'attributes.get("head_dim", output_size) if', "output_size if"),
    Mutant("pool_heads ignored", "plan", 'get("pool_heads", 1)', 'get("", 1)'),
    Mutant("gru has four gates", "plan", 'if kind == "lstm" else 3', 'if kind == "lstm" else 4'),
    Mutant("wrong bound of layers", "plan", "sqrt(3.0) * ", "sqrt(2.0) * "),
    Mutant("gates start at edge weight", "plan", 'f"gate_{edge.label}", (), Initial.ZERO)',
           'f"gate_{edge.label}", (), Initial.WEIGHT, owner=edge.edge_id)'),
    Mutant("reset ignored", "state",
           '        """Forget everything: the next step starts from zeros."""\n        self.tensors = None',
           '        """Forget everything: the next step starts from zeros."""'),
    Mutant("state not detached", "state", "tensor.detach() for", "tensor for"),
    Mutant("batch size not checked", "state", "if self.tensors and ", "if False and self.tensors and "),
    Mutant("first state of ones", "state", "x.new_zeros", "x.new_ones"),
    Mutant("width not checked", "model", "x.shape[1] != {plan.input_size}", "False"),
    Mutant("dtype not checked", "model", " or x.dtype != {dtype}:", ":"),
    Mutant("graphs not validated", "planning", "    if problems:", "    if False:"),
    Mutant("sequence keeps old state", "model",
           "        if reset_states:\n            self.state_manager.reset()\n        state",
           "        state"),
    Mutant("sequence cut between steps", "model", "            outputs.append(y)",
           "            outputs.append(y)\n            state = tuple(tensor.detach() for tensor in state)"),
    Mutant("queries start at one", "initial", "QUERY_STD = 0.01", "QUERY_STD = 1.0"),
    Mutant("cache never evicts", "cache", "while len(self._entries) > self.max_entries:", "while False:"),
    Mutant("hits not counted", "cache", "self._hits += 1", "self._hits += 0"),
    Mutant("wide layers forget the weight", "emit", 'product(f"{x} * {factor}"', 'product(f"{x}"'),
    Mutant("direct: matrix gradient not scaled", "direct", "self.gradients.mul_(self.scale)", "pass"),
    Mutant("direct: ties do not share", "direct", "values.new_tensor(0.5)", "values.new_tensor(1.0)"),
    Mutant("direct: mean not divided", "direct_code", "return 1 / len(node.edges) if", "return 1.0 if"),
    Mutant("direct: mean forgotten in dL/dw", "direct", "sums[1::2] * self.factors", "sums[1::2]"),
    Mutant("direct: filled rows in the loss", "direct", "[:, :num_rows].mean(1)", ".mean(1)"),
    Mutant("direct: gelu without its slope", "direct_code", "value=0.3989422804014327", "value=0.0"),
    Mutant(
        "direct: second use of a source lost",
        "direct_code",
        "{into}.addmm_({gradient}, ",
        "{into}.clone().addmm_({gradient}, ",
    ),
    Mutant("direct: loss summed", "direct", ".div_(num_rows)", ""),
    Mutant("direct: candidates not aligned", "direct", "ALIGNMENT = 64", "ALIGNMENT = 1"),
    Mutant("dead nodes cost flops", "graph_summary", "if self.is_live else 0", "if True else 0"),
    Mutant("flops of one head", "graph_summary", "2 * node.num_heads * count * d", "2 * count * d"),
    Mutant("repair keeps dangling edges", "repairs", "        if node_id not in graph.nodes:", "        if False:"),
    Mutant("rank ignored", "architectures", "entries[ranks.index(rank)]", "entries[0]"),
    Mutant("projection of an old entry ignored", "architectures", "if is_old else graph", "if False else graph"),
    Mutant("settings of the graph ignored", "config", 'or settings.get("projection")', ""),
    Mutant("settings of the graph win over arguments", "config", 'self.projection or settings.get("projection")',
           'settings.get("projection") or self.projection'),
    Mutant("structural key without node types", "planning", "(node.node_id, node.node_type.value, node.output_size",
           "(node.node_id, node.output_size"),
    Mutant("structural key without the multigraph flag", "planning",
           'return projection, bool(graph.config.get("multigraph")), ', "return projection, False, "),
    Mutant("disabled edges not validated", "../graphs/validation", "dict(graph.nodes), graph.edges.values()",
           "dict(graph.nodes), [edge for edge in graph.edges.values() if edge.enabled]"),
    Mutant("temperatures down to 1e-40", "../graphs/vocabulary", "MAX_TEMPERATURE = 1e-6", "MAX_TEMPERATURE = 1e-40"),
    Mutant("nesting not limited", "../graphs/elements", "MAX_NESTING = 32", "MAX_NESTING = 100_000"),
    Mutant("export in train mode", "export", "    model.eval()\n", ""),
    Mutant("export leaves eval mode", "export", "model.train(was_training)", "pass"),
    Mutant("to_source ignores reset_states", "source", "if reset_states or self.state is", "if self.state is"),
)  # fmt: skip


def main() -> int:
    """Runs the mutants and returns the exit status."""
    parser = make_parser(__doc__)
    parser.add_argument("--only", default="", help="run the mutants whose name contains this")
    options = parser.parse_args()
    tests = TESTS[:1] if options.quick else TESTS
    chosen = [mutant for mutant in MUTANTS if options.only in mutant.name]
    if options.quick:
        chosen = [mutant for mutant in chosen if mutant.name in QUICK]
    with tempfile.TemporaryDirectory() as folder:
        _copy_project(Path(folder))
        if _tests_fail(Path(folder), tests):
            raise RuntimeError("the tests fail without any mutant")
        survivors = [mutant.name for mutant in chosen if not _is_killed(mutant, Path(folder), tests)]
    rows = [figure("planted bugs", len(chosen)), equals("planted bugs that survive", len(survivors), 0)]
    return finish(rows, json_path=options.json)


def _copy_project(folder: Path) -> None:
    for name in COPIED:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)


def _is_killed(mutant: Mutant, folder: Path, tests: Sequence[str]) -> bool:
    path = folder / "gflownet" / "translation" / f"{mutant.file}.py"
    text = path.read_text()
    assert text.count(mutant.old) == 1, (
        f"{mutant.name}: {mutant.file}.py holds {mutant.old!r} {text.count(mutant.old)} times"
    )
    path.write_text(text.replace(mutant.old, mutant.new))
    try:
        killed = _tests_fail(folder, tests)
    finally:
        path.write_text(text)
    print(f"{'killed  ' if killed else 'SURVIVED'}  {mutant.file:14} {mutant.name}", flush=True)
    return killed


def _tests_fail(folder: Path, tests: Sequence[str]) -> bool:
    files = [f"tests/translation/test_{name}.py" for name in tests]
    command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *files]
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "GFLOWNET_ORACLE_GRAPHS": "160"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True).returncode != 0


if __name__ == "__main__":
    sys.exit(main())
