from .checks import validate as validate
from .parser import Command as Command
