from .comparison import Comparison as Comparison
from .comparison import comparison_of as comparison_of
from .page import COMPARISON_NAME as COMPARISON_NAME
from .page import comparison_page as comparison_page
