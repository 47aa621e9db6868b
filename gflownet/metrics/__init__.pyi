from .statistics import Interval as Interval
from .statistics import bootstrap as bootstrap
from .statistics import find_modes as find_modes
from .statistics import hypervolume as hypervolume
from .statistics import non_dominated as non_dominated
from .statistics import pearson as pearson
from .statistics import spearman as spearman
from .statistics import top_k_mean as top_k_mean
