from .marker import read_marker as read_marker
from .status import read_status as read_status
