from .config import LanguageConfig as LanguageConfig
from .config import load_config as load_config
from .run import train_on_text as train_on_text
