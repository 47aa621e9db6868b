from .arguments import CommandLine as CommandLine
from .interrupts import StopRequest as StopRequest
from .parser import Command as Command
