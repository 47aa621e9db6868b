from .app import Access as Access
from .app import create_app as create_app
from .limits import ServerLimits as ServerLimits
from .requests import ChatRequest as ChatRequest
from .requests import CompletionRequest as CompletionRequest
from .requests import RequestError as RequestError
from .service import Service as Service
