from .architectures import write_top_architectures as write_top_architectures
from .certificate import certificate_metrics as certificate_metrics
from .certificate import print_certificate as print_certificate
from .certificate import write_certificate as write_certificate
from .closing import report_run as report_run
from .pareto import ParetoFront as ParetoFront
from .pareto import write_pareto_front as write_pareto_front
