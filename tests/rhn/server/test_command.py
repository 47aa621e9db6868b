"""Command line of the server: errors before it serves."""

from __future__ import annotations

import socket
import sys
from contextlib import closing
from pathlib import Path

import pytest

from gflownet.rhn.checkpoint import save_language_model
from gflownet.rhn.config import RHNConfig
from gflownet.rhn.server.__main__ import main, parse
from tests.rhn.random_networks import random_network
from tests.rhn.server.clients import save_tiny


def refusal(arguments: list[object], capsys: pytest.CaptureFixture[str]) -> str:
    assert main([str(argument) for argument in arguments]) == 2
    out, errors = capsys.readouterr()
    assert out == ""
    assert errors.count("\n") == 1
    return errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "error: expected FOLDER, got nothing; see "),
        (["m", "--prot", "1"], "error: --prot: unknown option; did you mean --port?"),
        (["m", "--port", "x"], "error: --port: expected an integer, got 'x'"),
        (["m", "--max-slots", "0"], "error: --max-slots: expected at least 1, got 0"),
        (["m", "--timeout", "nan"], "error: --timeout: expected at least 1, got nan"),
        (["m", "--grace", "-1"], "error: --grace: expected at least 0, got -1.0"),
        (["m", "--read-timeout", "9"], "error: --read-timeout: unknown option; did you mean "),
        (["m", "--api-key", "a b"], "error: --api-key, GFLOWNET_API_KEY: expected printable ASCII"),
        *(
            (["m", "--host", host], f"error: --host: expected a key for '{host}', which other machines may reach, got")
            for host in ("0.0.0.0", "::", "192.168.1.4", "example.com", "")
        ),
        (["m", "--chat-stop", ""], "error: --chat-stop: expected a text, got nothing"),
        (["none"], "error: none: expected a folder with model.json and model.safetensors, got a name that does not"),
    ],
)
def test_user_error_is_one_line_and_status_2(
    arguments: list[object], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refusal(arguments, capsys).startswith(message)


def test_model_with_other_vocabulary_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = RHNConfig(vocabulary_size=5, hidden_size=4, intermediate_size=6, depth=2, rank=2)
    save_language_model(tmp_path / "model", random_network(config, 0))
    assert "expected a model of 256 bytes, got one of 5 tokens" in refusal([tmp_path / "model"], capsys)


def test_unavailable_address_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, elsewhere = save_tiny(tmp_path / "tiny"), "192.0.2.1"  # of no machine (RFC 5737)
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        for host, port in (taken.getsockname(), (elsewhere, 8000)):
            said = refusal([folder, "--host", host, "--port", port, "--insecure"], capsys)
            assert said.startswith(f"error: --host, --port: cannot listen on {host}:{port} ([Errno")


def test_missing_extra_is_named_in_the_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    said = refusal([save_tiny(tmp_path / "tiny")], capsys)
    assert said == "error: missing package uvicorn: pip install 'gflownet[serve]'\n"


@pytest.mark.parametrize(
    ("arguments", "variable"),
    [
        (["--host", "127.0.0.2"], ""),
        (["--host", "::1"], ""),
        (["--host", "localhost"], ""),
        (["--host", "0.0.0.0", "--insecure"], ""),
        (["--host", "0.0.0.0", "--api-key", "key"], ""),
        (["--host", "0.0.0.0"], "key"),
    ],
)
def test_loopback_address_or_key_is_accepted(
    arguments: list[str], variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GFLOWNET_API_KEY", variable)
    assert parse(["m", *arguments]).host == arguments[1]


def test_api_key_of_the_environment_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GFLOWNET_API_KEY", "second")
    assert parse(["m", "--api-key", "first"]).api_key == ["first", "second"]
    monkeypatch.setenv("GFLOWNET_API_KEY", "")
    assert parse(["m"]).api_key == []


def test_invalid_chat_template_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, template = save_tiny(tmp_path / "tiny"), tmp_path / "template.jinja"
    template.write_text("{% for message in %}")
    said = refusal([folder, "--chat-template", template], capsys)
    assert said.startswith(f"error: --chat-template: {template}: expected a Jinja2 template, got an error: ")
    assert "cannot be read ([Errno 2] No such file" in refusal([folder, "--chat-template", tmp_path / "none"], capsys)
