from .auxiliary import ActionValues as ActionValues
from .auxiliary import AuxiliaryNetworks as AuxiliaryNetworks
from .auxiliary import Teacher as Teacher
from .learner import Learner as Learner
from .learner import LearnerOptions as LearnerOptions
from .learner import TrajectoryMemory as TrajectoryMemory
from .learner import merge_isomorphic as merge_isomorphic
