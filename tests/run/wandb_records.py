"""Reader of the .wandb file of an offline run, the file that `wandb sync` uploads.

`python -m tests.run.wandb_records RUN` lists the items of each session.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_MAGIC, _BLOCK, _HEADER = b":W&B\xe1\xbe\x00", 32768, struct.Struct("<IHB")
_FULL, _FIRST, _LAST = 1, 2, 4


@dataclass
class WandbRecords:
    """Everything that one session logged."""

    run_id: str = ""
    project: str = ""
    name: str = ""
    console: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    step_metrics: dict[str, str] = field(default_factory=dict)  # of each defined metric, empty for an axis
    artifacts: list[Any] = field(default_factory=list)
    system: set[str] = field(default_factory=set)  # keys
    exit_code: int | None = None


def read_session(run_folder: Path, *, number: int = 0) -> tuple[WandbRecords, Path]:
    paths = sorted(run_folder.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_ctime_ns)
    return read_records(paths[number]), paths[number].parent / "files"


def read_records(path: Path) -> WandbRecords:
    from wandb.proto import wandb_internal_pb2  # takes seconds: not for other processes of the tests

    # The classes are made when the module is imported, so that pyright does not see them.
    record_class: Any = vars(wandb_internal_pb2)["Record"]
    records = WandbRecords()
    for data in _payloads(path.read_bytes()):
        record = record_class.FromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            records.run_id, records.project, records.name = (
                record.run.run_id,
                record.run.project,
                record.run.display_name,
            )
            records.config |= _values(record.run.config.update)
        elif kind == "history":
            records.history.append(_values(record.history.item))
        elif kind == "summary":
            records.summary |= _values(record.summary.update)
        elif kind == "metric":
            records.step_metrics[record.metric.name or record.metric.glob_name] = record.metric.step_metric
        elif kind == "artifact":
            records.artifacts.append(record.artifact)
        elif kind == "stats":
            records.system |= {item.key for item in record.stats.item}
        elif kind == "output_raw":
            records.console += record.output_raw.line
        elif kind == "exit":
            records.exit_code = record.exit.exit_code
    return records


def _values(items: Iterable[Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for item in items:
        *parents, last = item.nested_key or [item.key]
        target = values
        for parent in parents:
            target = target.setdefault(parent, {})
        target[last] = json.loads(item.value_json)
    return values


def _payloads(data: bytes) -> Iterator[bytes]:
    """Yield the records of a file in the log format of LevelDB: blocks of chunks with checksum, length and kind."""
    assert data.startswith(_MAGIC)
    position, payload = len(_MAGIC), b""
    while position < len(data):
        left = _BLOCK - position % _BLOCK
        if left < _HEADER.size:
            position += left
            continue
        _, length, kind = _HEADER.unpack_from(data, position)
        position += _HEADER.size
        payload = (b"" if kind in (_FULL, _FIRST) else payload) + data[position : position + length]
        position += length
        if kind in (_FULL, _LAST):
            yield payload


def listing(records: WandbRecords) -> list[str]:
    """Return a line for each item that a session logged, as `wandb sync` would upload it."""
    last = records.history[-1] if records.history else {}
    media = {key: value["_type"] for key, value in last.items() if isinstance(value, dict) and "_type" in value}
    return [
        f"run {records.run_id} in {records.project}, exit code {records.exit_code}",
        f"axes: {', '.join(name for name, step in records.step_metrics.items() if not step)}",
        f"steps: {[row['_step'] for row in records.history]}",
        *(f"metric {key}" for key in sorted(last) if key not in media and not key.startswith("_")),
        *(f"{kind} {key}" for key, kind in sorted(media.items())),
        *(f"artifact {each.type} {each.name} {list(each.aliases)}" for each in records.artifacts),
        *(f"summary {key}" for key in sorted(records.summary) if not key.startswith("_") and key not in last),
        *(f"system {key}" for key in sorted(records.system)),
        f"config: {', '.join(key for key in records.config if not key.startswith('_'))}",
    ]


if __name__ == "__main__":
    for path in sorted(Path(sys.argv[1]).glob("wandb/offline-run-*/*.wandb")):
        print("\n".join(listing(read_records(path))))
