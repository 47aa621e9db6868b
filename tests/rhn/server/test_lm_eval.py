"""EleutherAI's lm-evaluation-harness scores a log-likelihood task of local JSON against a running server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

try:
    import fastapi  # noqa: F401
    import lm_eval  # noqa: F401  # pyright: ignore[reportMissingImports]
    import tenacity  # noqa: F401  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError as error:
    pytest.skip(f"{error.name} is not installed: pip install 'lm_eval[api]'", allow_module_level=True)

from gflownet.rhn.checkpoint import load_text_model
from gflownet.rhn.server.limits import Limits
from tests.rhn.server.clients import PATIENCE, save_tiny, save_tokenizer_model
from tests.rhn.server.in_process import LocalServer, serving

TASK = """\
task: byte_choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{label}}}}"
target_delimiter: ""
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
"""
QUESTIONS = (
    {"question": "def main(", "choices": ["self):", "x, y)", "é"], "label": 2},
    {"question": "class Parser", "choices": [":", "(object)"], "label": 0},
    {"question": "import größe", "choices": [" as os", "\\n", "."], "label": 2},
)


@pytest.fixture(params=["bytes", "tokenizer"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[LocalServer, Path]]:
    folder = (save_tiny if request.param == "bytes" else save_tokenizer_model)(tmp_path / "tiny")
    with serving(
        folder, max_slots=8, limits=Limits(max_body=1 << 16, max_prompt=2048, max_queue=64, timeout=PATIENCE)
    ) as running:
        yield running, folder


def log_likelihood(folder: Path, context: str, continuation: str) -> float:
    """Return the log-likelihood of a continuation by the model, without a server."""
    model, codec = load_text_model(folder)
    tokens, num_context = codec.encode(context + continuation), len(codec.encode(context))
    total, state = 0.0, None
    for number, token in enumerate(tokens[:-1]):
        starts = torch.tensor([number == 0])
        state = (
            torch.zeros(model.state_shape[0], 1, *model.state_shape[1:], dtype=model.dtype) if state is None else state
        )
        logits, state = model.step(torch.tensor([token]), state, starts)
        if number + 1 >= num_context:
            total += float(torch.log_softmax(logits[0].double(), 0)[tokens[number + 1]])
    return total


def test_log_likelihoods_equal_those_of_the_model(server: tuple[LocalServer, Path], tmp_path: Path) -> None:
    running, folder = server
    (tmp_path / "task").mkdir()
    data = tmp_path / "task" / "data.json"
    data.write_text(json.dumps(QUESTIONS))
    (tmp_path / "task" / "byte_choices.yaml").write_text(TASK.format(data=data))
    offline = {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--tasks", "byte_choices"]
    command += ["--model_args", f"model=tiny,base_url={running.url}/v1/completions,num_concurrent=1,max_retries=1"]
    command += ["--include_path", str(tmp_path / "task"), "--output_path", str(tmp_path / "results"), "--log_samples"]
    done = subprocess.run(command, env={**os.environ, **offline}, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (samples,) = (tmp_path / "results").rglob("samples_*.jsonl")
    correct = []
    for line, question in zip(samples.read_text().splitlines(), QUESTIONS, strict=True):
        sample = json.loads(line)
        scores = [float(response[0][0]) for response in sample["resps"]]
        expected = [log_likelihood(folder, question["question"], choice) for choice in question["choices"]]
        assert scores == pytest.approx(expected, abs=1e-6)
        correct.append(expected.index(max(expected)) == question["label"])
        assert sample["acc"] == correct[-1]
    (results,) = (tmp_path / "results").rglob("results_*.json")
    assert json.loads(results.read_text())["results"]["byte_choices"]["acc,none"] == pytest.approx(sum(correct) / 3)
