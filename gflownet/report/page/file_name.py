"""Name of the report page in a run folder, in a module that imports nothing."""

PAGE_NAME = "report.html"
