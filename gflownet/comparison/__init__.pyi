from .plan import Method as Method
from .plan import Plan as Plan
from .plan import read_methods as read_methods
