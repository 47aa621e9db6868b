"""torchgfn's environment and process for the benchmarks: installed versions, answers, and errors."""

import re
import sys
from pathlib import Path

import pytest

from scripts.peers.process import (
    AS_IT_COMES,
    KEEPS_FREED_MEMORY,
    REQUIREMENTS,
    PeerError,
    PeerProcess,
    find_environment,
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


def test_find_environment_checks_versions(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "gflownet-bench" / "torchgfn"
    with pytest.raises(PeerError, match=r"^torchgfn==\S+ is not installed in .*: see scripts/peers/requirements\.txt$"):
        find_environment()
    assert not list(tmp_path.iterdir())
    packages = folder / "lib" / "python3.11" / "site-packages"
    for line in REQUIREMENTS.read_text().splitlines():
        if not line.startswith("#"):
            name, version = line.replace("-", "_").split("==")
            (packages / f"{name}-{version}.dist-info").mkdir(parents=True)
    assert find_environment() == folder / "bin" / "python"
    (folder / "lib" / "python3.11" / "site-packages" / "numpy-1.26.4.dist-info").rename(
        folder / "numpy-2.0.0.dist-info"
    )
    with pytest.raises(PeerError, match=r"^numpy==1\.26\.4 is not installed"):
        find_environment()


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
