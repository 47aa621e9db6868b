"""Saving and loading language models: equality, refused folders, killed processes and full disks."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gflownet
from gflownet.errors import UserError
from gflownet.rhn.checkpoint import description_of, load_language_model, save_language_model
from gflownet.rhn.config import CONFIGS, RHNConfig, StackConfig, StackLayer
from gflownet.rhn.network import RHN, RecurrentNetwork
from tests.rhn.random_networks import random_network, random_stack

CONFIG = RHNConfig(vocabulary_size=5, hidden_size=4, intermediate_size=6, depth=2, rank=2)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_language_model(tmp_path / "model", random_network(CONFIG, 0))
    return tmp_path / "model"


NETWORKS: dict[str, RecurrentNetwork] = {
    **{f"rhn {dtype}": random_network(CONFIG, 0).to(dtype) for dtype in (torch.float64, torch.float32, torch.bfloat16)},
    **{f"stack {seed}": random_stack(seed) for seed in range(8)},
}


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS.keys())
def test_load_returns_the_saved_model(network: RecurrentNetwork, tmp_path: Path) -> None:
    save_language_model(tmp_path / "new" / "model", network)
    random_state = torch.get_rng_state()
    loaded = load_language_model(tmp_path / "new" / "model")
    assert torch.equal(torch.get_rng_state(), random_state)
    assert (type(loaded), loaded.config, loaded.training) == (type(network), network.config, False)
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    torch.testing.assert_close(dict(loaded.state_dict()), dict(network.state_dict()), rtol=0, atol=0)
    tokens = torch.arange(network.config.vocabulary_size)[None]
    torch.testing.assert_close(loaded(tokens), network(tokens), rtol=0, atol=0)


def test_save_replaces_the_previous_model(saved: Path) -> None:
    for config in (CONFIG, CONFIGS["tiny"]):
        network = random_network(config, 1)
        save_language_model(saved, network)
        loaded = load_language_model(saved)
        torch.testing.assert_close(dict(loaded.state_dict()), dict(network.state_dict()), rtol=0, atol=0)
        assert sorted(path.name for path in saved.iterdir()) == ["model.json", "model.safetensors"]


def test_save_other_module_raises(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="config: expected RHNConfig or StackConfig or CellConfig, got Linear"):
        save_language_model(tmp_path, torch.nn.Linear(1, 1))
    assert list(tmp_path.iterdir()) == []


def _description(**changes: object) -> str:
    config = {"vocabulary_size": 5, "hidden_size": 4, "intermediate_size": 6, "depth": 2, "rank": 2, **changes}
    return json.dumps({"kind": "rhn", "config": config})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "model.json: expected JSON, got invalid text: "),
        ("[]", "model.json: expected an object with kind and config, got []"),
        ('{"kind": "os", "config": {}}', "model.json: kind: expected one of rhn"),
        ('{"kind": ["rhn"], "config": {}}', "model.json: kind: expected one of rhn"),
        ('{"kind": "rhn", "config": 3}', "model.json: config: expected an object, got 3"),
        (_description(size=3), "model.json: config: expected some of vocabulary_size, hidden_size, "),
        (_description(depth=0), "model.json: config: depth: expected at least 1, got 0"),
        (_description(depth="two"), "model.json: config: "),
        (_description(depth=2.5), "model.json: config: "),
        (_description(hidden_size=10**9), "model.safetensors: embedding: expected the shape (5, 1000000000)"),
        (_description(depth=3), "model.safetensors: expected the weights described in model.json, blocks.2."),
        (_description(depth=1), "model.safetensors: expected the weights described in model.json, blocks.1."),
    ],
)
def test_load_invalid_description_raises(text: str, message: str, saved: Path) -> None:
    (saved / "model.json").write_text(text)
    with pytest.raises(UserError) as caught:
        load_language_model(saved)
    assert str(caught.value).startswith(f"{saved}/{message}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.999])
def test_load_truncated_weights_raises(part: float, saved: Path) -> None:
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[: int(part * path.stat().st_size)])
    with pytest.raises(UserError, match=r"model.safetensors: the file is damaged: expected safetensors"):
        load_language_model(saved)


def test_load_other_folder_raises(tmp_path: Path, saved: Path) -> None:
    expected = "expected a folder with model.json and model.safetensors"
    (tmp_path / "empty").mkdir()
    for path, got in (
        (tmp_path / "empty", "one without model.json and model.safetensors"),
        (tmp_path / "none", "a name that does not exist"),
        (saved / "model.json", "a file"),
    ):
        with pytest.raises(UserError) as caught:
            load_language_model(path)
        assert str(caught.value) == f"{path}: {expected}, got {got}"


@pytest.mark.parametrize("config", [CONFIG, CONFIGS["tiny"]])
def test_save_on_full_disk_keeps_the_previous_model(config: RHNConfig, saved: Path) -> None:
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
    try:
        with pytest.raises(UserError, match=r"cannot be written \(File too large"):
            save_language_model(saved, random_network(config, 1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {name: (saved / name).read_bytes() for name in before} == before
    save_language_model(saved, random_network(config, 1))
    assert sorted(path.name for path in saved.iterdir()) == sorted(before)


SAVE_REPEATEDLY = """
import sys, torch
from pathlib import Path
from gflownet.rhn.checkpoint import save_language_model
from gflownet.rhn.config import CONFIGS
from gflownet.rhn.network import RHN, RecurrentNetwork

network = RHN(CONFIGS["small"])
for value in range(1000000):
    for parameter in network.parameters():
        torch.nn.init.constant_(parameter, value)
    save_language_model(Path(sys.argv[1]), network)
    print(value, flush=True)
"""


@pytest.mark.slow
def test_killed_save_leaves_a_whole_model(tmp_path: Path, checkout: Path) -> None:
    command = [sys.executable, "-c", SAVE_REPEATEDLY, str(tmp_path)]
    with subprocess.Popen(command, cwd=checkout, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
        while not (tmp_path / "model.safetensors.new").exists():
            assert process.poll() is None
        os.kill(process.pid, signal.SIGKILL)
        num_saved = 1 + len(process.stdout.readlines())
    values = {
        value for parameter in load_language_model(tmp_path).parameters() for value in parameter.unique().tolist()
    }
    assert values in ({num_saved - 1}, {num_saved})


def test_load_run_folder_suggests_its_model(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    save_language_model(tmp_path / "model", RHN(RHNConfig(hidden_size=4, intermediate_size=4, depth=1, rank=1)))
    with pytest.raises(UserError, match=re.escape(f"did you mean {tmp_path / 'model'}?")):
        load_language_model(tmp_path)


def test_generate_of_an_architecture_of_a_run(tmp_path: Path) -> None:
    module = {"build": "gflownet.rhn.checkpoint:model_of", "of": "language_model"}
    description = description_of(StackConfig((StackLayer("gru"), StackLayer("rhn")), width=8))
    (tmp_path / "top_architectures.json").write_text(
        json.dumps([{"rank": 0, "graph": {}, "language_model": description, "module": module}])
    )
    model = gflownet.load(tmp_path, weights=False)
    texts = [model.generate("a b", max_new_tokens=20, seed=seed) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    tokens = [*b"a b"]
    for token in model.generate(tokens, max_new_tokens=4, temperature=0):
        assert int(model(torch.tensor([tokens]))[0][0, -1].argmax()) == token
        tokens.append(token)
    for prompt, options, message in (
        ("", {}, "prompt: expected at least one token, got none"),
        ([256], {}, "prompt: expected tokens of 0 .. 255, got 256"),
        ("a", {"temperature": -1}, "temperature: expected a number from 0 to 1e6, got -1"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            model.generate(prompt, **options)
    with pytest.raises(ValueError, match="prompt: expected tokens, for a vocabulary of 5 without a tokenizer, got a"):
        random_network(CONFIG, 0).generate("a")
