from .page import COMPARISON_NAME as COMPARISON_NAME
from .page import Comparison as Comparison
from .page import comparison_of as comparison_of
from .page import comparison_page as comparison_page
from .page import print_comparison as print_comparison
