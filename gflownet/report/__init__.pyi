from .architectures import write_top_architectures as write_top_architectures
from .closing import print_results as print_results
from .closing import write_final as write_final
from .closing import write_pareto_front as write_pareto_front
from .results import Results as Results
from .results import read_results as read_results
