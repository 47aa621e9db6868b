"""How the benchmarks get at a peer: its environment is made once, its process answers or says why not."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.peers import environment
from scripts.peers.environment import PeerError, find_environment, make_environment
from scripts.peers.process import AS_IT_COMES, KEEPS_FREED_MEMORY, Cost, PeerProcess

ANSWER = '{"cpu_seconds": 0.5, "system_seconds": 0.1, "num_trajectories": 4, "num_states": 9, "num_policy_calls": 3}'
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
    """Return the commands that are run, none of which does anything."""
    run: list[list[str]] = []

    def pretend(command, **_):
        run.append(list(command))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", pretend)
    return run


def test_an_environment_is_made_once_and_again_when_other_versions_are_wanted(tmp_path, commands, monkeypatch):
    folder = tmp_path / "deep" / "torchgfn"
    python = make_environment(folder)
    assert python == folder / "bin" / "python"
    assert commands[0][1:] == ["-m", "venv", str(folder)]
    assert commands[1][:4] == [str(python), "-m", "pip", "install"]
    assert commands[1][-len(environment.REQUIREMENTS) :] == list(environment.REQUIREMENTS)
    assert make_environment(folder) == python
    assert len(commands) == 2
    (folder / "left_over").touch()
    monkeypatch.setattr(environment, "REQUIREMENTS", ("torchgfn==9",))
    make_environment(folder)
    assert len(commands) == 4
    assert not (folder / "left_over").exists()


def test_a_failed_installation_says_why_in_one_line_and_is_begun_anew(tmp_path, monkeypatch):
    def fail(command, **_):
        status = int("pip" in command)
        return subprocess.CompletedProcess(
            command, status, "", "WARNING: slow\nERROR: No matching distribution\nhint\n"
        )

    with monkeypatch.context() as failing:
        failing.setattr(subprocess, "run", fail)
        with pytest.raises(PeerError, match=r"^.*pip install .*torchgfn==\S+ .*: ERROR: No matching distribution$"):
            make_environment(tmp_path)
    run: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda c, **_: run.append(c) or subprocess.CompletedProcess(c, 0, "", ""))
    make_environment(tmp_path)
    assert len(run) == 2


def test_benchmarks_install_nothing(tmp_path, commands, monkeypatch):
    with pytest.raises(PeerError, match=r"^torchgfn is not installed in .*: python scripts/peers/environment\.py$"):
        find_environment(tmp_path / "torchgfn")
    assert not list(tmp_path.iterdir())
    assert make_environment(tmp_path) == find_environment(tmp_path)
    monkeypatch.setattr(environment, "REQUIREMENTS", ("torchgfn==9",))
    with pytest.raises(PeerError, match="torchgfn is not installed"):
        find_environment(tmp_path)


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path, commands):
    (tmp_path / "thesis.tex").write_text("42")
    with pytest.raises(PeerError, match="expected torchgfn's environment or an empty folder"):
        make_environment(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    assert not commands


def test_the_default_folder_is_in_the_cache_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert environment.default_folder() == tmp_path / "gflownet-bench" / "torchgfn"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert environment.default_folder() == Path.home() / ".cache" / "gflownet-bench" / "torchgfn"


def test_a_peer_may_be_told_what_to_do_with_freed_memory(tmp_path):
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
            peer.ask("sample", batch=4)


def test_a_peer_answers_refuses_and_is_heard_when_it_dies(tmp_path):
    script = tmp_path / "peer.py"
    script.write_text(PEER)
    with PeerProcess(Path(sys.executable), script) as peer:
        for _ in range(3):  # more complaints than a pipe holds
            assert peer.ask("sample", batch=4, width=64) == Cost(0.5, 0.1, 4, 9, 3)
        with pytest.raises(PeerError, match=r"^peer\.py: not so wide$"):
            peer.ask("sample", batch=4, width=128)
        for _ in range(2):
            with pytest.raises(PeerError, match=r"^peer\.py: ended with status 1: no such luck$"):
                peer.ask("train", batch=4)
