"""Straight-line forward and backward code of one plan, for training without autograd.

Letters: B batch, d message width, J in-edges. The code works on views into flat buffers: values, gradients, and the
matrices M = w * P (mean: w / J * P) that direct.py makes for all models at once. It leaves dL/dM where dL/dP belongs
and dL/dw of such edges undone, which direct.py turns into dL/dP and dL/dw, again for all at once.
"""

import re
from dataclasses import dataclass, field

from gflownet.graphs.typed import TypedGraph, TypedNode
from gflownet.operations.activations import CodeActivation
from gflownet.operations.aggregations import Concat, Extremum, Mean, Sum
from gflownet.operations.code import identifier, outside_name
from gflownet.translation.code import columns

DIRECT_AGGREGATIONS = (Sum, Mean, Extremum, Concat)


def is_direct(plan: TypedGraph) -> bool:
    """Return whether DirectTraining can train models of this plan: no state, and operations with gradient code only."""
    return (
        plan.takes_columns
        and not plan.slots
        and all(
            issubclass(node.sizes.aggregation, DIRECT_AGGREGATIONS)
            and (issubclass(node.sizes.activation, CodeActivation) or node.sizes.activation.gradient is not None)
            for node in plan.live_neurons
        )
    )


def message_factor(node: TypedNode) -> float:
    """The factor of a message besides its weight: 1/J in a mean."""
    is_mean = issubclass(node.sizes.aggregation, Mean)
    return 1 / len(node.edges) if is_mean and len(node.edges) > 1 else 1.0


def direct_source(plan: TypedGraph) -> str:
    """The text of make(...), which takes the tensors by name (see _bound of direct.py) and returns two functions.

    forward(x [B, F]) returns the output [B, O] and tensors for backward(G [B, O], tensors), which takes the loss's
    gradient G, may overwrite it, and fills the gradients of the parameters.
    """
    code = _Code(plan)
    inputs = columns("x[:, {}]", [(node_id, shape) for _, node_id, shape in plan.inputs])
    code.body += [f"{_id('y', node_id)} = {text}" for node_id, text in inputs.items()]
    for node in plan.live_neurons:
        code.forward(node)
    before = code.body
    outputs = columns("G[:, {}]", plan.outputs)
    code.body = [f"{_id('G', node_id)} = {text}" for node_id, text in outputs.items()]
    code.started |= outputs.keys()
    for node in reversed(plan.live_neurons):
        code.backward(node)
    after = code.body
    words = set(re.findall(r"\w+", "\n".join(after)))
    assigned = dict.fromkeys(re.findall(r"^(\w+) = |\((\w+) := ", "\n".join(before), re.MULTILINE))
    needed = [name for name in ("x", *(one or other for one, other in assigned)) if name in words]
    saved = "".join(f"{name}, " for name in dict.fromkeys(needed))
    output = _joined([_id("y", node_id) for node_id, _ in plan.outputs])
    lines = [
        f"def make({', '.join(code.tensors)}, **_):",
        "    def forward(x):",
        *(f"        {line}" for line in before),
        f"        return {output}, ({saved})",
        "    def backward(G, saved):",
        *([f"        {saved}= saved"] if saved else []),
        *(f"        {line}" for line in after),
        "    return forward, backward",
    ]
    return "\n".join(lines) + "\n"


def _id(word: str, key: object) -> str:
    return identifier(f"{word}{key}")


def _label(node: TypedNode, place: int) -> str:
    """Return the end of the names of an in-edge's parameters."""
    return node.named("", node.edges[place])[1:]


def _joined(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"torch.cat(({', '.join(names)}), dim=1)"


@dataclass
class _Code:
    """The lines of code so far. `started`: nodes with a partial gradient."""

    plan: TypedGraph
    tensors: dict[str, None] = field(default_factory=dict)  # an ordered set
    body: list[str] = field(default_factory=list)
    started: set[int] = field(default_factory=set)

    def tensor(self, word: str, key: object) -> str:
        """Return the name of a tensor argument of make()."""
        name = _id(word, key)
        self.tensors[name] = None
        return name

    def forward(self, node: TypedNode) -> None:
        """Emit z and y of the node from the outputs of its sources."""
        n, sizes, kind = node.node_id, node.sizes, node.sizes.activation
        z, bias = _id("z", n), self.tensor("b", n)
        if not node.edges:
            self.body.append(f"{z} = {bias}.expand(x.shape[0], {node.output.channels})")
        elif issubclass(sizes.aggregation, Extremum | Concat):
            self._messages(node)
        else:
            self._sum(node)
        if sizes.has_post and node.edges:
            self.body.append(f"{_id('a', n)} = {z}")
            self.body.append(f"{z} = torch.addmm({bias}, {_id('a', n)}, {self.tensor('Qt', n)})")
        if issubclass(kind, CodeActivation):
            activated = (kind.direct_code or kind.code).format(z=z, c=_id("c", n))
        else:
            activated = f"{outside_name(node.node.activation_function)}.forward({z})"
        self.body.append(f"{_id('y', n)} = {activated}")

    def backward(self, node: TypedNode) -> None:
        """Emit the gradients of the parameters and of the sources' outputs from the gradient of y."""
        n, kind = node.node_id, node.sizes.activation
        z, y, gradient = _id("z", n), _id("y", n), _id("G", n)
        if n not in self.started:
            return
        if issubclass(kind, CodeActivation):
            before = kind.gradient_code.format(g=gradient, y=y, z=z, c=_id("c", n))
        else:
            before = f"{outside_name(node.node.activation_function)}.gradient({gradient}, {z}, {y})"
        if before != gradient:
            self.body.append(f"{gradient} = {before}")
        self.body.append(f"torch.sum({gradient}, (0, 1), out={self.tensor('gb', n)})")
        if not node.edges:
            return
        if node.sizes.has_post:
            self.body.append(f"torch.mm({gradient}.t(), {_id('a', n)}, out={self.tensor('gQ', n)})")
            self.body.append(f"{gradient} = torch.mm({gradient}, {self.tensor('Q', n)})")
        transposed: set[str] = set()
        for place, message_gradient in enumerate(self._message_gradients(node)):
            if node.sizes.projected[place] and message_gradient not in transposed:
                self.body.append(f"{message_gradient}t = {message_gradient}.t()")
                transposed.add(message_gradient)
            self._edge_backward(node, place, message_gradient)

    def _sum(self, node: TypedNode) -> None:
        """z = sum of the messages plus the bias, unless post comes first."""
        sizes, factor = node.sizes, message_factor(node)
        z, total = _id("z", node.node_id), "" if sizes.has_post else self.tensor("b", node.node_id)
        for place, edge in enumerate(node.edges):
            x, label, is_projected = _id("y", edge.source), _label(node, place), sizes.projected[place]
            if total == z and is_projected:
                self.body.append(f"{z}.addmm_({x}, {self.tensor('Mt', label)})")
            elif total == z:
                self.body.append(f"{z}.addcmul_({x}, {self.tensor('w', label)}, value={factor!r})")
            elif total and not is_projected:
                self.body.append(f"{z} = torch.addcmul({total}, {x}, {self.tensor('w', label)}, value={factor!r})")
            elif total:
                self.body.append(f"{z} = torch.addmm({total}, {x}, {self.tensor('Mt', label)})")
            else:
                scale = "" if factor == 1.0 or is_projected else f".mul_({factor!r})"
                self.body.append(f"{z} = {self._message(node, place)}{scale}")
            total = z

    def _message(self, node: TypedNode, place: int) -> str:
        x, label = _id("y", node.edges[place].source), _label(node, place)
        if node.sizes.projected[place]:
            return f"torch.mm({x}, {self.tensor('Mt', label)})"
        return f"torch.mul({x}, {self.tensor('w', label)})"

    def _messages(self, node: TypedNode) -> None:
        """z from the messages one by one: their extremum, or side by side."""
        n, names, kind = node.node_id, [], node.sizes.aggregation
        for place in range(len(node.edges)):
            names.append(_id("m", _label(node, place)))
            self.body.append(f"{names[-1]} = {self._message(node, place)}")
        z = _id("z", n)
        if not issubclass(kind, Extremum):
            self.body.append(f"{z} = {_joined(names)}")
        else:
            best = names[0]
            for step, name in enumerate(names[1:]):
                self.body.append(f"{_id(f't{step}_', n)} = {kind.function}({best}, {name})")
                best = _id(f"t{step}_", n)
            self.body.append(f"{z} = {best}")
        if not node.sizes.has_post:
            self.body.append(f"{z} = {z} + {self.tensor('b', n)}")

    def _message_gradients(self, node: TypedNode) -> list[str]:
        """Emit the gradients of the messages [B, d] from the gradient of the aggregate; return their names."""
        n, count, gradient = node.node_id, len(node.edges), _id("G", node.node_id)
        kind = node.sizes.aggregation
        if count == 1 or issubclass(kind, Sum | Mean):
            return [gradient] * count
        labels = [_label(node, place) for place in range(count)]
        names = [_id("gm", label) for label in labels]
        if not issubclass(kind, Extremum):
            self.body.append(f"{', '.join(names)} = {gradient}.split({node.sizes.message}, dim=1)")
            return names
        for step in range(count - 2, -1, -1):
            before = _id("m", labels[0]) if step == 0 else _id(f"t{step - 1}_", n)
            lead = kind.difference.format(a=before, b=_id("m", labels[step + 1]))
            # A tie shares the gradient, as in autograd.
            self.body.append(f"k = torch.heaviside({lead}, {self.tensor('half', '')}).mul_({gradient})")
            self.body.append(f"{names[step + 1]} = {gradient} - k")
            self.body.append(f"{gradient} = k")
        return [gradient, *names[1:]]

    def _edge_backward(self, node: TypedNode, place: int, gradient: str) -> None:
        """Emit the gradient of the source's output and dL/dM or dL/dw from the gradient of a message."""
        label, source, factor = _label(node, place), node.edges[place].source, message_factor(node)
        x, is_projected = _id("y", source), node.sizes.projected[place]
        if is_projected:
            self.body.append(f"torch.mm({gradient}t, {x}, out={self.tensor('gP', label)})")
        else:
            self.body.append(f"torch.sum({gradient} * {x}, (0, 1), out={self.tensor('gw', label)})")
            if factor != 1.0:
                self.body.append(f"{_id('gw', label)}.mul_({factor!r})")
        if node.inputs[f"{place}"].reads_input:
            return
        into = _id("G", source)
        if source in self.started and is_projected:
            self.body.append(f"{into}.addmm_({gradient}, {self.tensor('M', label)})")
        elif source in self.started:
            self.body.append(f"{into}.addcmul_({gradient}, {self.tensor('w', label)}, value={factor!r})")
        elif is_projected:
            self.body.append(f"{into} = torch.mm({gradient}, {self.tensor('M', label)})")
        else:
            scale = "" if factor == 1.0 else f".mul_({factor!r})"
            self.body.append(f"{into} = torch.mul({gradient}, {self.tensor('w', label)}){scale}")
        self.started.add(source)
