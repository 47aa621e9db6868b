from .history import History as History
from .loop import SearchLoop as SearchLoop
from .method import SearchMethod as SearchMethod
from .method import SearchSetup as SearchSetup
from .surrogate import Prediction as Prediction
from .surrogate import Surrogate as Surrogate
