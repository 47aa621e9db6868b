"""First values of the parameters of a plan as Python expressions."""

from collections.abc import Mapping

from gflownet.operations.activations import Cell
from gflownet.operations.parameters import QUERY_STD, Initial, ParameterPlan
from gflownet.operations.vocabulary import activation


def initial_code(parameter: ParameterPlan, values: Mapping[str, float], option: str = "") -> str:
    """Return the expression of a parameter, or of the layer that holds it.

    Args:
        parameter: of a plan.
        values: first values of 0-d parameters by name, 0 by default.
        option: keyword arguments of every constructor, after a comma.
    """
    if parameter.initial is Initial.QUERY:
        return f"nn.Parameter({QUERY_STD} * torch.randn({', '.join(map(str, parameter.shape))}{option}))"
    if not parameter.module:
        return f"nn.Parameter(torch.tensor({values.get(parameter.name, 0.0)!r}{option}))"
    rows, columns = parameter.shape
    kind = parameter.module.partition("_")[0]
    if kind not in ("proj", "post"):
        cell_class = activation(kind)
        assert issubclass(cell_class, Cell)
        return f"nn.{cell_class.module.partition(':')[2]}({columns}, {columns}, bias=False{option})"
    return f"nn.Linear({columns}, {rows}, bias=False{option})"
