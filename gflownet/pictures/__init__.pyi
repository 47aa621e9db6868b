from .bar_charts import bar_chart as bar_chart
from .bar_charts import interval_chart as interval_chart
from .chart import Chart as Chart
from .chart import svg_of as svg_of
from .figure import Figure as Figure
from .figure import figure_dot as figure_dot
from .line_charts import line_chart as line_chart
