from .operation import Category as Category
from .operation import Example as Example
from .operation import Operation as Operation
from .operation import Setting as Setting
from .operation import single_input as single_input
from .tensor_shape import Layout as Layout
from .tensor_shape import Shape as Shape
