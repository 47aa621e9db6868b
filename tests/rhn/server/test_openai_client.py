"""Every parameter with OpenAI's own client: scripts/openai_client.py, for a model of bytes and one with a tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest

try:
    import fastapi  # noqa: F401
    import openai
except ModuleNotFoundError as error:
    pytest.skip(f"{error.name} is not installed: the extra test has it", allow_module_level=True)

from gflownet.rhn.server.api_keys import ApiKeys
from gflownet.rhn.server.app import Access
from gflownet.rhn.server.limits import Limits
from scripts.openai_client import run_checks
from tests.rhn.server.clients import PATIENCE, save_tiny, save_tokenizer_model
from tests.rhn.server.in_process import serving


@pytest.mark.parametrize("has_tokenizer", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_parameter_of_openais_client(
    has_tokenizer: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = (save_tokenizer_model if has_tokenizer else save_tiny)(tmp_path / "tiny")
    access = Access(keys=ApiKeys(("other", "secret")))
    with serving(folder, max_slots=8, limits=Limits(1 << 16, 512, 64, PATIENCE), access=access) as server:
        checks = run_checks(f"{server.url}/v1", "secret")
        with pytest.raises(openai.AuthenticationError):
            run_checks(f"{server.url}/v1", "wrong")
    assert all(checks), capsys.readouterr().out
    assert len(checks) > 50
