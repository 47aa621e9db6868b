from .app import Limits as Limits
from .app import create_app as create_app
from .messages import CompletionRequest as CompletionRequest
from .messages import RequestError as RequestError
from .origins import Origins as Origins
from .service import Service as Service
