from .page import advice as advice
from .page import page_of as page_of
from .page import render as render
from .run_data import RunData as RunData
from .run_data import read_run as read_run
