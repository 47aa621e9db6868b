"""Straight-line Python for one time step of a whole model."""

from gflownet.translation.aggregations import AGGREGATIONS
from gflownet.translation.emit import Dialect, NodeEmitter, slot_name, variable
from gflownet.translation.plan import ModelPlan, NodePlan, StateSlot


def step_lines(plan: ModelPlan, dialect: Dialect) -> list[str]:
    """Statements from `x` [B, F] and the slot variables to `y` [B, O] and, in stateful models, `state`."""
    lines = _input_lines(plan)
    for node in plan.live_nodes:
        lines += _node_lines(node, dialect)
    outputs = [variable(node_id) for node_id in plan.outputs]
    joined = outputs[0] if len(outputs) == 1 else f"torch.cat(({', '.join(outputs)}), dim=-1)"
    lines.append(f"y = {joined}")
    if plan.slots:
        lines.append(f"state = ({', '.join(_new_state(plan, slot) for slot in plan.slots)},)")
    return lines


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
    # The caller may write into its own input or into the output it gets: the state must not share their memory.
    is_shared = (slot.node_id,) == plan.outputs or slot.node_id in dict(plan.inputs)
    return f"{variable(slot.node_id)}.clone()" if is_shared else variable(slot.node_id)


def _node_lines(node: NodePlan, dialect: Dialect) -> list[str]:
    """From the sources' variables to the node's own: act(post(aggregate) + bias)."""
    emitter = NodeEmitter(node, dialect)
    if not node.edges:
        # An unfed node outputs act(bias).
        return [emitter.activated(f"{emitter.bias}.expand({dialect.batch_shape}, {node.output_size})")]
    lines, total, has_bias = AGGREGATIONS[node.aggregation](emitter)
    if node.has_post:
        assert not has_bias, "the bias comes after post"
        post = dialect.weight(f"post_{node.node_id}")
        return [*lines, emitter.activated(dialect.product(total, post, emitter.bias, False))]
    return [*lines, emitter.activated(total if has_bias else f"{total} + {emitter.bias}")]
