"""Text that the model writes during its training, and samples.jsonl."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

from gflownet.files import cannot_write, parse_json, write_whole
from gflownet.language.config import SampleConfig
from gflownet.rhn.network import RecurrentNetwork
from gflownet.rhn.serving import SamplingParams, Stream
from gflownet.rhn.text_codec import TextCodec

SAMPLES_NAME = "samples.jsonl"


def sample_text(
    model: RecurrentNetwork, codec: TextCodec, options: SampleConfig, *, seed: int, is_stopped: Callable[[], bool]
) -> str | None:
    """Return the text that a model writes after the prompt; no global random state is used.

    `is_stopped` is asked before each token; a stopped sample is None.
    """
    model = model if next(model.parameters()).device.type == "cpu" else copy.deepcopy(model).cpu()
    params = SamplingParams(temperature=options.temperature, max_tokens=options.tokens, seed=seed)
    tokens: list[int] = []
    for sampled in Stream(model.decoder(), codec.encode(options.prompt), params):
        if is_stopped():
            return None
        tokens.append(sampled.token)
    return codec.decode(tokens)


class SampleFile:
    """samples.jsonl: one JSON object per sample and line."""

    def __init__(self, path: Path, *, resume_step: int | None) -> None:
        """Begin a file, or keep the samples up to a step. Raises UserError if it cannot be written."""
        self._path = path
        lines = [] if resume_step is None or not path.exists() else path.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if _step_of(line) <= (resume_step or 0)]
        self.last_step = _step_of(kept[-1]) if kept else 0
        write_whole(path, b"".join(kept))

    def write(self, step: int, prompt: str, text: str) -> None:
        """Append a sample. Raises UserError if it cannot be written."""
        self.last_step = step
        line = json.dumps({"step": step, "prompt": prompt, "text": text}, ensure_ascii=False) + "\n"
        try:
            with self._path.open("ab") as file:
                file.write(line.encode("utf-8", "surrogatepass"))
        except OSError as error:
            raise cannot_write(self._path, error) from error


def _step_of(line: bytes) -> float:
    """Return the step of a line, infinity for half a line of a killed process."""
    try:
        return parse_json(line)["step"]
    except (ValueError, KeyError, TypeError):
        return float("inf")
