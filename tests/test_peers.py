"""torchgfn's environment and process for the benchmarks: installation, answers, and errors."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.peers import process
from scripts.peers.process import (
    AS_IT_COMES,
    KEEPS_FREED_MEMORY,
    PeerError,
    PeerProcess,
    find_environment,
    install_environment,
)

ANSWER = '{"cpu_seconds": 0.5, "num_states": 9}'
PEER = f"""
import json, sys
for line in sys.stdin:
    print("x" * 100_000, file=sys.stderr)
    command = json.loads(line)
    if command["do"] == "train":
        sys.exit("no such luck")
    refused = '{{"error": "not so wide"}}' if command.get("width", 0) > 64 else None
    print(refused or {ANSWER!r}, flush=True)
"""


@pytest.fixture
def commands(monkeypatch) -> list[list[str]]:
    """Record commands instead of running them."""
    run: list[list[str]] = []

    def pretend(command, **_):
        run.append(list(command))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", pretend)
    return run


def test_install_environment_reinstalls_for_other_versions(tmp_path, commands, monkeypatch):
    folder = tmp_path / "parent" / "torchgfn"
    python = install_environment(folder)
    assert python == folder / "bin" / "python"
    assert commands[0][1:] == ["-m", "venv", str(folder)]
    assert commands[1][:4] == [str(python), "-m", "pip", "install"]
    assert commands[1][-len(process.REQUIREMENTS) :] == list(process.REQUIREMENTS)
    assert install_environment(folder) == python
    assert len(commands) == 2
    (folder / "left_over").touch()
    monkeypatch.setattr(process, "REQUIREMENTS", ("torchgfn==9",))
    install_environment(folder)
    assert len(commands) == 4
    assert not (folder / "left_over").exists()


def test_install_environment_failure_message_and_retry(tmp_path, monkeypatch):
    def fail(command, **_):
        status = int("pip" in command)
        return subprocess.CompletedProcess(
            command, status, "", "WARNING: slow\nERROR: No matching distribution\nhint\n"
        )

    with monkeypatch.context() as failing:
        failing.setattr(subprocess, "run", fail)
        with pytest.raises(PeerError, match=r"^.*pip install .*torchgfn==\S+ .*: ERROR: No matching distribution$"):
            install_environment(tmp_path)
    run: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda c, **_: run.append(c) or subprocess.CompletedProcess(c, 0, "", ""))
    install_environment(tmp_path)
    assert len(run) == 2


def test_find_environment_installs_nothing(tmp_path, commands, monkeypatch):
    with pytest.raises(PeerError, match=r"^torchgfn is not installed in .*: python scripts/peers/process\.py$"):
        find_environment(tmp_path / "torchgfn")
    assert not list(tmp_path.iterdir())
    assert install_environment(tmp_path) == find_environment(tmp_path)
    monkeypatch.setattr(process, "REQUIREMENTS", ("torchgfn==9",))
    with pytest.raises(PeerError, match="torchgfn is not installed"):
        find_environment(tmp_path)


def test_install_environment_refuses_a_folder_with_other_files(tmp_path, commands):
    (tmp_path / "thesis.tex").write_text("42")
    with pytest.raises(PeerError, match="expected torchgfn's environment or an empty folder"):
        install_environment(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    assert not commands


def test_default_folder_in_user_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert process.default_folder() == tmp_path / "gflownet-bench" / "torchgfn"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert process.default_folder() == Path.home() / ".cache" / "gflownet-bench" / "torchgfn"


def test_peer_process_environment_variables(tmp_path):
    script = tmp_path / "peer.py"
    script.write_text(
        "import json, os\n"
        f"tuned = {set(KEEPS_FREED_MEMORY)} & set(os.environ)\n"
        "for _ in iter(input, ''):\n"
        "    print(json.dumps({'error': str(sorted(tuned))}), flush=True)\n"
    )
    for variables in (AS_IT_COMES, KEEPS_FREED_MEMORY):
        with (
            PeerProcess(Path(sys.executable), script, variables=variables) as peer,
            pytest.raises(PeerError, match=re.escape(str(sorted(variables)))),
        ):
            peer.request({"do": "sample"})


def test_peer_process_answers_and_errors(tmp_path):
    script = tmp_path / "peer.py"
    script.write_text(PEER)
    with PeerProcess(Path(sys.executable), script) as peer:
        for _ in range(3):  # more error output than a pipe holds
            assert peer.request({"do": "sample", "width": 64}) == {"cpu_seconds": 0.5, "num_states": 9}
        with pytest.raises(PeerError, match=r"^peer\.py: not so wide$"):
            peer.request({"do": "sample", "width": 128})
        for _ in range(2):
            with pytest.raises(PeerError, match=r"^peer\.py: ended with status 1: no such luck$"):
                peer.request({"do": "train"})
