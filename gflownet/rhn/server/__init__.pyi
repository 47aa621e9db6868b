from .app import Access as Access
from .app import create_app as create_app
from .errors import RequestError as RequestError
from .limits import Limits as Limits
from .requests import ChatRequest as ChatRequest
from .requests import CompletionRequest as CompletionRequest
from .service import Service as Service
