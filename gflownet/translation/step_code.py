"""Straight-line Python for a whole model: one time step, or all of a sequence, node by node."""

from gflownet.translation.aggregations import AGGREGATIONS
from gflownet.translation.emit import SEQUENCE, Dialect, NodeEmitter, product, slot_name, variable
from gflownet.translation.plan import ModelPlan, NodePlan, StateSlot


def step_lines(plan: ModelPlan, dialect: Dialect) -> list[str]:
    """Statements from `x` [B, F] and the slot variables to `y` [B, O] and, in stateful models, `state`."""
    lines = _input_lines(plan)
    for node in plan.live_nodes:
        lines += _node_lines(node, dialect)
    lines.append(_output_line(plan))
    if plan.slots:
        lines.append(f"state = ({', '.join(_new_state(plan, slot) for slot in plan.slots)},)")
    return lines


def sequence_lines(plan: ModelPlan) -> list[str]:
    """Statements from `x` [T B, F], time by time, `batch` and the slot variables to `y` [T B, O] and `state`.

    For plans in which nothing is read one step late: every node then sees all time steps before the next node begins.
    """
    lines = _input_lines(plan)
    for node in plan.live_nodes:
        lines += _node_lines(node, SEQUENCE)
    lines.append(_output_line(plan))
    kept = [_last_state(slot) for slot in plan.slots]
    return [*lines, f"state = ({', '.join(kept)},)"]


def _last_state(slot: StateSlot) -> str:
    """What a slot holds after a sequence; none shares memory with the output, which is the caller's."""
    if slot.kind == "token":
        return f"torch.ones_like({slot_name('token', slot.node_id)})"
    if slot.kind == "cell":
        return slot_name("new_cell", slot.node_id)
    return f"torch.clone({variable(slot.node_id)}[-batch:])"


def _output_line(plan: ModelPlan) -> str:
    outputs = [variable(node_id) for node_id in plan.outputs]
    return f"y = {outputs[0]}" if len(outputs) == 1 else f"y = torch.cat(({', '.join(outputs)}), dim=-1)"


def _input_lines(plan: ModelPlan) -> list[str]:
    read = {edge.source for node in plan.live_nodes for edge in node.edges}  # a recurrent edge reads it later
    if len(plan.inputs) == 1:
        return [f"{variable(plan.inputs[0][0])} = x"] if plan.inputs[0][0] in read else []
    lines, start = [], 0
    for node_id, size in plan.inputs:
        if node_id in read:
            lines.append(f"{variable(node_id)} = x[..., {start}:{start + size}]")
        start += size
    return lines


def _new_state(plan: ModelPlan, slot: StateSlot) -> str:
    if slot.kind == "cell":
        return slot_name("new_cell", slot.node_id)
    if slot.kind == "token":
        return f"torch.ones_like({slot_name('token', slot.node_id)})"
    # The caller may write into its own input or into the output it gets: the state must not share their memory.
    is_shared = (slot.node_id,) == plan.outputs or slot.node_id in dict(plan.inputs)
    return f"{variable(slot.node_id)}.clone()" if is_shared else variable(slot.node_id)


def _node_lines(node: NodePlan, dialect: Dialect) -> list[str]:
    """From the sources' variables to the node's own: act(post(aggregate) + bias)."""
    emitter = NodeEmitter(node, dialect)
    if not node.edges:
        # An unfed node outputs act(bias).
        return [emitter.activated(f"{emitter.bias}.expand(x.shape[0], {node.output_size})")]
    lines, total, has_bias = AGGREGATIONS[node.aggregation](emitter)
    if node.has_post:
        assert not has_bias, "the bias comes after post"
        post = dialect.weight(f"post_{node.node_id}")
        return [*lines, emitter.activated(product(total, post, emitter.bias, False))]
    return [*lines, emitter.activated(total if has_bias else f"{total} + {emitter.bias}")]
