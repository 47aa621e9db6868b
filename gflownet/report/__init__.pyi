from .architectures import write_top_architectures as write_top_architectures
from .closing import ParetoFront as ParetoFront
from .closing import report_run as report_run
from .closing import write_pareto_front as write_pareto_front
