from .evaluation.task import GFNTask as GFNTask
from .evaluation.task import Score as Score
from .graphs.computation_graph import ComputationGraph as ComputationGraph
from .operations.tensor_shape import Shape as Shape
from .run.ask_and_tell import Search as Search
from .run.sampling import sample as sample
from .run.trainer import GFNTrainer as GFNTrainer
from .translation import load as load
from .translation import load_graph as load_graph
from .translation import to_pytorch_model as to_pytorch_model

__version__: str
