from .base import Executor as Executor
from .base import Handle as Handle
from .inline import InlineExecutor as InlineExecutor
