"""Trust in run folders and graphs: those of another user import, resolve and connect to nothing without --trust.

A run folder that this user's commands wrote carries a mark in run.json: an HMAC over run id and config with a
key in the user's configuration folder. It stays valid when the folder is moved.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, cast

from gflownet.errors import UserError
from gflownet.files import parse_json, read_yaml, user_folder
from gflownet.plugins import foreign_names, is_available, is_module_class, refusal

MARKER_NAME = "run.json"
CONFIG_NAME = "config.yaml"  # options of the run
KEY_NAME = "run_key"  # in the folder gflownet of the user's configuration
HELP = "import, resolve and connect to what a run of another user names"
_KEY_BYTES = 32
_MARKED = ("format", "run", "config")
_NUM_SHOWN = 4
# ${a.b} names another option; any other interpolation calls a resolver such as oc.env.
_REFERENCE = re.compile(r"\$\{[\w.]+\}")
# Of wandb; none of its texts is imported.
_TEXTS = ("wandb",)
# Options with the address of a server, and the words before it.
_ADDRESSES = {"evaluation.store_url": "", "evaluation.ray.address": "Ray at "}
_trusting = ContextVar("_trusting", default=False)
_log = logging.getLogger(__name__)


@contextmanager
def trusting(is_trusted: bool) -> Iterator[None]:
    """Trust all folders and graphs inside of the block, if `is_trusted`."""
    token = _trusting.set(is_trusted or _trusting.get())
    try:
        yield
    finally:
        _trusting.reset(token)


def mark_of(content: Mapping[str, Any]) -> str:
    """Return the mark of the content of run.json; empty if the key cannot be read or created."""
    home = user_folder("XDG_CONFIG_HOME", "~/.config")
    key = b"" if home is None else _key(home / KEY_NAME)
    text = json.dumps([content.get(name) for name in _MARKED], sort_keys=True)
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest() if key else ""


def may_mark(folder: Path) -> bool:
    """Return whether a run that writes run.json may mark it: a new run, a marked one, or a trusted one."""
    return _trusting.get() or not (folder / MARKER_NAME).exists() or _marked_config(folder) is not None


def is_trusted(folder: Path) -> bool:
    """Return whether all folders are trusted, or this user's commands wrote this run folder and its config."""
    if _trusting.get():
        return True
    config = _marked_config(folder)
    return config is not None and _has_config(folder / CONFIG_NAME, config)


@contextmanager
def limited(folder: Path) -> Iterator[None]:
    """Inside of the block, import nothing that the files of another user's run name; without effect for a new run."""
    with nullcontext() if not (folder / MARKER_NAME).exists() or is_trusted(folder) else foreign_names(str(folder)):
        yield


def check_config(folder: Path, tree: Mapping[str, Any]) -> None:
    """Raise UserError for a run of another user whose config would import, resolve or connect to something."""
    if not is_trusted(folder):
        _check(folder, _actions(tree))


@contextmanager
def checked_names(path: Path, content: Any, *, folder: Path) -> Iterator[None]:
    """Check a graph, and import nothing that it names inside of the block unless its folder is trusted.

    Raises:
        UserError: it names a class or function that is neither built in, nor imported, nor of an installed package.
    """
    if is_trusted(folder):
        yield
        return
    _check(path, [f"import {name}" for name in _names(content)])
    with foreign_names(str(path)):
        yield


def _check(path: Path, actions: list[str]) -> None:
    if actions:
        others = f" and {len(actions) - _NUM_SHOWN} more" if len(actions) > _NUM_SHOWN else ""
        shown = ", ".join(actions[:_NUM_SHOWN])
        raise UserError(refusal(path, f"{shown}{others}"))


def _actions(tree: Mapping[str, Any]) -> list[str]:
    """Return what a config would import, connect to and resolve, each once."""
    actions = []
    for key, words in _ADDRESSES.items():
        value: Any = tree
        for name in key.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        if value:
            actions.append(f"connect to {words}{value}")
    resolved = [text for text in _strings(tree) if "${" in _REFERENCE.sub("", text)]
    if not resolved:  # references alone may be replaced
        tree = _with_references(tree)
    actions += [f"import {name}" for name in _names({key: tree[key] for key in tree if key not in _TEXTS})]
    return list(dict.fromkeys([*actions, *(f"resolve {text}" for text in resolved)]))


def _with_references(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        return cast(Mapping[str, Any], OmegaConf.to_container(OmegaConf.create(dict(tree)), resolve=True))
    except OmegaConfBaseException:
        return tree  # its reader reports the reference without a value


def _names(content: Any) -> list[str]:
    """Return each module:Class of a content that may not be imported."""
    return [name for name in dict.fromkeys(_strings(content)) if is_module_class(name) and not is_available(name)]


def _strings(content: Any) -> Iterator[str]:
    """Yield all texts of nested mappings and lists, keys included."""
    pending = [content]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            pending += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple):
            pending += value


def _marked_config(folder: Path) -> Mapping[str, Any] | None:
    """Return the config in a run.json with this user's mark, None without one."""
    try:
        content = parse_json((folder / MARKER_NAME).read_bytes())
    except (OSError, ValueError):
        return None
    mark = content.get("mark") if isinstance(content, dict) else None
    if not isinstance(mark, str) or not mark or not hmac.compare_digest(mark.encode(), mark_of(content).encode()):
        return None
    return content["config"]


def _has_config(path: Path, config: Mapping[str, Any]) -> bool:
    """Return whether a config.yaml has the options of run.json, or none, so that those of run.json are used."""
    try:
        tree = read_yaml(path)
    except UserError:
        return True
    with suppress(TypeError):
        return not tree or json.dumps(tree, sort_keys=True) == json.dumps(config, sort_keys=True)
    return False


@cache
def _key(path: Path) -> bytes:
    """Return the user's key, created on first use; empty, with a warning, if it cannot be used."""
    try:
        if not path.exists():
            _create_key(path)
        with path.open("rb") as file:
            state = os.fstat(file.fileno())
            key = file.read(_KEY_BYTES)
        if len(key) == _KEY_BYTES and state.st_uid == os.getuid() and not stat.S_IMODE(state.st_mode) & 0o077:
            return key
        reason = f"expected {_KEY_BYTES} bytes that only this user can read"
    except OSError as error:
        reason = str(error)
    _log.warning("%s: %s; run folders are not marked as this user's, and may need --trust later", path, reason)
    return b""


def _create_key(path: Path) -> None:
    """Write a new key, unless another process does so first."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{KEY_NAME}-{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink()
