from .chart import Chart as Chart
from .chart import svg_of as svg_of
from .figure import Figure as Figure
from .figure import figure_dot as figure_dot
from .figure_layout import figure_svg as figure_svg
