from .access import Access as Access
from .access import Origins as Origins
from .app import create_app as create_app
from .chat_request import ChatRequest as ChatRequest
from .completion_request import CompletionRequest as CompletionRequest
from .errors import RequestError as RequestError
from .limits import Limits as Limits
from .service import Service as Service
