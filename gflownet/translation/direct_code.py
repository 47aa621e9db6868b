"""Straight-line forward and backward code of one plan, for training without autograd.

Letters: B batch, d message width, J in-edges. The code works on views into two flat buffers, values and gradients;
M is a persistent matrix w * P, and every matrix or scalar gradient is written to its place with out=.
"""

from dataclasses import dataclass, field

from gflownet.translation.emit import identifier
from gflownet.translation.plan import CONCATENATIONS, EdgePlan, ModelPlan, NodePlan

EXTREMA = {"max": ("torch.maximum", ">"), "min": ("torch.minimum", "<")}
DIRECT_AGGREGATIONS = frozenset({"sum", "mean", *EXTREMA, *CONCATENATIONS})
# activation -> (output from z, gradient of z from G and y or z)
DIRECT_ACTIVATIONS = {
    "relu": ("torch.relu({z})", "aten.threshold_backward({g}, {y}, 0)"),
    "sigmoid": ("torch.sigmoid({z})", "aten.sigmoid_backward({g}, {y})"),
    "tanh": ("torch.tanh({z})", "aten.tanh_backward({g}, {y})"),
    "softmax": ("torch.softmax({z}, dim=1)", "aten._softmax_backward_data({g}, {y}, 1, {y}.dtype)"),
    "leaky_relu": ("F.leaky_relu({z})", "aten.leaky_relu_backward({g}, {z}, 0.01, False)"),
    "elu": ("F.elu({z})", "aten.elu_backward({g}, 1.0, 1.0, 1.0, False, {z})"),
    "gelu": ("F.gelu({z})", "aten.gelu_backward({g}, {z})"),
    "silu": ("F.silu({z})", "aten.silu_backward({g}, {z})"),
    "linear": ("{z}", "{g}"),
    "identity": ("{z}", "{g}"),
}


def has_direct_code(plan: ModelPlan) -> bool:
    """Whether direct_source covers the plan: no state, no queries, gates or routers."""
    return not plan.slots and all(node.aggregation in DIRECT_AGGREGATIONS for node in plan.live_nodes)


def direct_source(plan: ModelPlan) -> str:
    """The text of make(v, g): from values and gradients by name to run(x, pull), which fills the gradients.

    run computes the output y [B, O] for x [B, F], calls pull(y) for the loss's gradient [B, O], and returns nothing.
    """
    code = _Code(plan)
    code.inputs()
    for node in plan.live_nodes:
        code.forward(node)
    code.outputs()
    for node in reversed(plan.live_nodes):
        code.backward(node)
    setup = "".join(f"    {line}\n" for line in code.setup)
    body = "".join(f"        {line}\n" for line in code.body)
    return f"def make(v, g):\n{setup}    def run(x, pull):\n{body}    return run\n"


def _id(word: str, key: object) -> str:
    return identifier(f"{word}{key}")


def _joined(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"torch.cat(({', '.join(names)}), dim=1)"


@dataclass
class _Code:
    """Lines in the making; a gradient that has been started is in `started`."""

    plan: ModelPlan
    setup: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    started: set[int] = field(default_factory=set)

    def inputs(self) -> None:
        """The columns of every INPUT node."""
        start = 0
        for node_id, size in self.plan.inputs:
            columns = "x" if len(self.plan.inputs) == 1 else f"x[:, {start}:{start + size}]"
            self.body.append(f"{_id('y', node_id)} = {columns}")
            start += size

    def outputs(self) -> None:
        """The output, and its gradient handed to the OUTPUT nodes."""
        names = [_id("y", node_id) for node_id in self.plan.outputs]
        self.body.append(f"G = pull({_joined(names)})")
        start = 0
        for node_id in self.plan.outputs:
            size = self.plan.sizes[node_id]
            # A gradient is added to in place, so a slice must not be shared with the caller's tensor.
            self.body.append(f"{_id('G', node_id)} = G[:, {start}:{start + size}].clone()")
            self.started.add(node_id)
            start += size

    def forward(self, node: NodePlan) -> None:
        """From the sources' outputs to z and y of the node."""
        n = node.node_id
        self.setup.append(f'{_id("b", n)}, {_id("gb", n)} = v["bias_{n}"], g["bias_{n}"]')
        for edge in node.edges:
            self._edge_setup(edge)
        if node.has_post:
            self.setup.append(f'{_id("Q", n)}, {_id("gQ", n)} = v["post_{n}.weight"], g["post_{n}.weight"]')
            self.setup.append(f"{_id('Qt', n)} = {_id('Q', n)}.t()")
        z, bias = _id("z", n), _id("b", n)
        if not node.edges:
            self.body.append(f"{z} = {bias}.expand(x.shape[0], {node.output_size})")
        elif node.aggregation in EXTREMA or node.aggregation in CONCATENATIONS:
            self._messages(node)
        else:
            self._sum(node)
        if node.has_post and node.edges:
            self.body.append(f"{_id('a', n)} = {z}")
            self.body.append(f"{z} = torch.addmm({bias}, {_id('a', n)}, {_id('Qt', n)})")
        self.body.append(f"{_id('y', n)} = {DIRECT_ACTIVATIONS[node.activation][0].format(z=z)}")

    def backward(self, node: NodePlan) -> None:
        """From the gradient of y to those of the parameters and of the sources' outputs."""
        n = node.node_id
        z, y, gradient = _id("z", n), _id("y", n), _id("G", n)
        if n not in self.started:
            return
        self.body.append(f"{gradient} = {DIRECT_ACTIVATIONS[node.activation][1].format(g=gradient, y=y, z=z)}")
        self.body.append(f"torch.sum({gradient}, (0, 1), out={_id('gb', n)})")
        if not node.edges:
            return
        if node.has_post:
            self.body.append(f"torch.mm({gradient}.t(), {_id('a', n)}, out={_id('gQ', n)})")
            self.body.append(f"{gradient} = torch.mm({gradient}, {_id('Q', n)})")
        for edge, message_gradient in zip(node.edges, self._message_gradients(node), strict=True):
            self._edge_backward(edge, message_gradient)

    def _edge_setup(self, edge: EdgePlan) -> None:
        e = edge.label
        self.setup.append(f'{_id("w", e)}, {_id("gw", e)} = v["weight_{e}"], g["weight_{e}"]')
        if edge.is_projected:
            self.setup.append(f'{_id("P", e)}, {_id("gP", e)} = v["proj_{e}.weight"], g["proj_{e}.weight"]')
            self.setup.append(f"{_id('M', e)} = torch.empty_like({_id('P', e)})")
            self.setup.append(f"{_id('Mt', e)} = {_id('M', e)}.t()")
            self.setup.append(f"{_id('fP', e)}, {_id('fgP', e)} = {_id('P', e)}.view(-1), {_id('gP', e)}.view(-1)")

    def _scaled(self, edge: EdgePlan) -> None:
        if edge.is_projected:
            e = edge.label
            self.body.append(f"torch.mul({_id('P', e)}, {_id('w', e)}, out={_id('M', e)})")

    def _sum(self, node: NodePlan) -> None:
        """z = sum of the messages (mean: over J) plus the bias, unless post comes first."""
        n, count = node.node_id, len(node.edges)
        z, is_mean = _id("z", n), node.aggregation == "mean" and count > 1
        total = "" if node.has_post or is_mean else _id("b", n)
        for edge in node.edges:
            self._scaled(edge)
            x, w, matrix = _id("y", edge.source), _id("w", edge.label), _id("Mt", edge.label)
            if total == z:
                added = f"{z}.addmm_({x}, {matrix})" if edge.is_projected else f"{z}.addcmul_({x}, {w})"
                self.body.append(added)
                continue
            if total:
                first = f"addmm({total}, {x}, {matrix})" if edge.is_projected else f"addcmul({total}, {x}, {w})"
            else:
                first = f"mm({x}, {matrix})" if edge.is_projected else f"mul({x}, {w})"
            self.body.append(f"{z} = torch.{first}")
            total = z
        if is_mean:
            self.body.append(f"{z}.mul_({1 / count!r})" + ("" if node.has_post else f".add_({_id('b', n)})"))

    def _messages(self, node: NodePlan) -> None:
        """z from the messages one by one: their extremum, or side by side."""
        n, names = node.node_id, []
        for edge in node.edges:
            self._scaled(edge)
            x, e = _id("y", edge.source), edge.label
            product = f"torch.mm({x}, {_id('Mt', e)})" if edge.is_projected else f"{x} * {_id('w', e)}"
            names.append(_id("m", e))
            self.body.append(f"{names[-1]} = {product}")
        z = _id("z", n)
        if node.aggregation in CONCATENATIONS:
            self.body.append(f"{z} = {_joined(names)}")
        else:
            best = names[0]
            for step, name in enumerate(names[1:]):
                self.body.append(f"{_id(f't{step}_', n)} = {EXTREMA[node.aggregation][0]}({best}, {name})")
                best = _id(f"t{step}_", n)
            self.body.append(f"{z} = {best}")
        if not node.has_post:
            self.body.append(f"{z} = {z} + {_id('b', n)}")

    def _message_gradients(self, node: NodePlan) -> list[str]:
        """Statements and names of the gradients of the messages [B, d], from that of the aggregate."""
        n, count, gradient = node.node_id, len(node.edges), _id("G", node.node_id)
        if count == 1 or node.aggregation == "sum":
            return [gradient] * count
        if node.aggregation == "mean":
            self.body.append(f"{gradient} = {gradient} * {1 / count!r}")
            return [gradient] * count
        names = [_id("gm", edge.label) for edge in node.edges]
        if node.aggregation in CONCATENATIONS:
            self.body.append(f"{', '.join(names)} = {gradient}.split({node.message_size}, dim=1)")
            return names
        sign = EXTREMA[node.aggregation][1]
        for step in range(count - 2, -1, -1):
            before = _id("m", node.edges[0].label) if step == 0 else _id(f"t{step - 1}_", n)
            message = _id("m", node.edges[step + 1].label)
            # As autograd does: a tie shares the gradient.
            self.body.append(f"k = ({before} {sign} {message}).to(x.dtype).add_({before} == {message}, alpha=0.5)")
            self.body.append(f"{names[step + 1]} = {gradient} - {gradient} * k")
            self.body.append(f"{gradient} = {gradient} * k")
        return [gradient, *names[1:]]

    def _edge_backward(self, edge: EdgePlan, gradient: str) -> None:
        e, source = edge.label, edge.source
        x, w, gw = _id("y", source), _id("w", e), _id("gw", e)
        if edge.is_projected:
            # dL/dP = w dL/dM and dL/dw = <dL/dM, P>: one product serves both.
            self.body.append(f"torch.mm({gradient}.t(), {x}, out={_id('gP', e)})")
            self.body.append(f"torch.dot({_id('fgP', e)}, {_id('fP', e)}, out={gw})")
            self.body.append(f"{_id('gP', e)}.mul_({w})")
        else:
            self.body.append(f"torch.sum({gradient} * {x}, (0, 1), out={gw})")
        if source in dict(self.plan.inputs):
            return
        into, matrix = _id("G", source), _id("M", e)
        if source in self.started:
            added = f"addmm_({gradient}, {matrix})" if edge.is_projected else f"addcmul_({gradient}, {w})"
            self.body.append(f"{into}.{added}")
        else:
            product = f"torch.mm({gradient}, {matrix})" if edge.is_projected else f"{gradient} * {w}"
            self.body.append(f"{into} = {product}")
            self.started.add(source)
