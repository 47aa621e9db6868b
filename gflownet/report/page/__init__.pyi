from .page import PAGE_NAME as PAGE_NAME
from .page import page_of as page_of
from .run_data import RunData as RunData
from .run_data import read_run as read_run
