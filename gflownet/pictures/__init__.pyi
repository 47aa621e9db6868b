from .bar_charts import bar_chart as bar_chart
from .bar_charts import interval_chart as interval_chart
from .chart import Chart as Chart
from .figure import Figure as Figure
from .figure import figure_dot as figure_dot
from .figure_layout import figure_svg as figure_svg
from .line_charts import line_chart as line_chart
