from .composite import Composite as Composite
from .composite import GraphData as GraphData
