from .arguments import CommandLine as CommandLine
from .interrupts import StopRequest as StopRequest
