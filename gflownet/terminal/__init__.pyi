from .arguments import Parser as Parser
from .interrupts import StopRequest as StopRequest
