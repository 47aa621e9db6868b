from .comparison import Method as Method
from .comparison import Plan as Plan
from .comparison import read_methods as read_methods
