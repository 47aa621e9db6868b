"""Masks for credentials, so that a page can be shared."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

MASK = "***"
_SECRET = r"passw(?:or)?d|passphrase|secret|credential|token(?!iz)|(?:api|access|private|auth)[_-]?key"
_SECRET_KEY = re.compile(rf"(?i){_SECRET}|(?:^|[^a-z])pwd(?:$|[^a-z])")
# A value from elsewhere, ${oc.env:NAME}, which holds no secret; with a default it may.
_REFERENCE = r"\$\{[^},]*\}"
# User and password up to the last @ of a word, since a password may have some itself; a user alone may be a token.
_URL = r"(\w[\w+.-]*://)([^\s/:@\"']*:{0}|[^\s/:@\"']+)(?=@)"
_URL_IN_TEXT = re.compile(_URL.replace("{0}", r"[^\s\"']*"))
_URL_ALONE = re.compile(_URL.replace("{0}", ".*"), re.DOTALL)
_PARAMETER = re.compile(rf"(?i)([\w.-]*(?:{_SECRET})[\w.-]*=)(?!\$\{{)(\"[^\"]*\"|'[^']*'|[^\s&\"']+)")


def masked(text: str) -> str:
    """Return the text without passwords of URLs and values of parameters such as token=."""
    return _PARAMETER.sub(rf"\1{MASK}", _URL_IN_TEXT.sub(_masked_url, text))


def masked_options(tree: Any, key: str = "") -> Any:
    """Return nested options without passwords: in texts, and all values below keys such as api_key or credentials."""
    if isinstance(tree, Mapping):
        return {name: masked_options(value, f"{key}.{name}") for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [masked_options(value, key) for value in tree]
    if isinstance(tree, bool) or tree is None:
        return tree
    if _SECRET_KEY.search(key) and not (isinstance(tree, str) and re.fullmatch(f"(?:{_REFERENCE})?", tree)):
        return MASK
    if not isinstance(tree, str):
        return tree
    return masked(_URL_ALONE.sub(_masked_url, tree) if _URL_ALONE.match(tree) else tree)


def masked_command(words: Sequence[str]) -> str:
    """Return a command line without the values of KEY=VALUE, --KEY=VALUE and --KEY VALUE whose keys name secrets."""
    return shlex.join(_masked_words(words)).replace(f"'{MASK}'", MASK)


def _masked_words(words: Sequence[str]) -> Iterator[str]:
    option = ""  # the word before, if it is an option without a value
    for word in words:
        key, equals, value = word.partition("=")
        if _SECRET_KEY.search(option) or not equals:
            yield _masked_value(option, word)
        else:
            yield f"{key}={_masked_value(key, value)}"
        option = word if word.startswith("--") and not equals else ""


def _masked_value(key: str, text: str) -> str:
    """Return the value of an option without passwords; it may be a list or a mapping as YAML."""
    if not text.startswith(("{", "[")):
        return masked_options(text, key)
    try:
        tree = yaml.safe_load(text)
    except (ValueError, yaml.YAMLError):
        return MASK if _SECRET_KEY.search(f"{key} {text}") else masked(text)
    without = masked_options(tree, key)
    return text if without == tree else json.dumps(without, default=str)


def _masked_url(match: re.Match[str]) -> str:
    """Return the start of a URL without its password; over HTTP, also without its user."""
    scheme, credentials = match.groups()
    user, colon, password = credentials.partition(":")
    if scheme.lower().startswith("http"):
        return f"{scheme}{MASK}"
    if not colon or re.fullmatch(_REFERENCE, password):
        return match[0]
    return f"{scheme}{user}:{MASK}"
