"""Architectures of a run's report as modules: trained, or with new weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gflownet.errors import UserError
from gflownet.files import is_intact, parse_json
from gflownet.graphs.assignment import values_of
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.operations.values import shown
from gflownet.plugins import load_function
from gflownet.records.trust import checked_names, trusting
from gflownet.translation.array_inputs import ArrayInputs
from gflownet.translation.model import to_pytorch_model
from gflownet.translation.model_set import ModelSet
from gflownet.translation.table_columns import TableColumns

_TOP_NAME, _SET_NAME = "top_architectures.json", "set.json"
_UNTRAINED = "weights=False returns the architecture with new weights"


def load(
    path: str | Path,
    rank: int = 0,
    *,
    weights: bool = True,
    config: Mapping[str, Any] | None = None,
    build: Callable[[dict[str, Any]], nn.Module] | None = None,
    trust: bool = False,
    set: bool = False,
) -> Any:
    """Return the model of a rank in a run's top_architectures.json, trained and in evaluation mode.

    The model of a graph is translated with the settings of the graph, as it
    was scored, unless `config` (see TranslationConfig) overrides them. Where the task names a function, it builds the
    module; `build` replaces that of choices. `model.predict` takes raw rows of a table, or
    images and signals as files or arrays, and returns classes by name (`model.class_names`) or numbers.

    Args:
        path: run folder, or its top_architectures.json.
        rank: of the architecture, 0 for the best.
        weights: load the weights of its first training of the final stage; False: new weights, in training mode.
        config: translation settings, of a graph only.
        build: returns the module of choices, a dict; None: the function `module.build` of the entry is imported.
        trust: import the classes and the function that an entry of another user's run names.
        set: return a `ModelSet`, the set of networks in the run's set.json, in place of one of a rank.

    Raises:
        ValueError: an invalid file, a missing rank, names of another user's run, missing, damaged or other weights, a
            function that cannot be imported, or `config` or `build` of an entry that has none.
    """
    path = _file(path, _SET_NAME if set else _TOP_NAME)
    if set:
        content = _content(path)
        if not (isinstance(content, dict) and "members" in content and is_intact(content)):
            raise ValueError(f"{path}: expected the set of networks of a run, got something else")
        options: Any = {"weights": weights, "config": config, "build": build, "trust": trust}
        members = [load(path, rank, **options) for rank in range(len(content["members"]))]
        return ModelSet(
            members, [each["weight"] for each in content["members"]], has_classes=content["has_classes"]
        ).eval()
    entry = _entry(path, rank)
    named = {key: entry[key] for key in entry if key != "module" or build is None}
    with trusting(trust), checked_names(path, named, folder=path.parent):
        return _loaded(path, entry, rank, weights=weights, config=config, build=build)


def _loaded(
    path: Path,
    entry: Mapping[str, Any],
    rank: int,
    *,
    weights: bool,
    config: Mapping[str, Any] | None,
    build: Callable[[dict[str, Any]], nn.Module] | None,
) -> nn.Module:
    """Return the model of an entry, as `load`."""
    if not weights:
        return _untrained(path, entry, config, build)
    tensors = _weights(path, entry, rank=rank)
    model = _untrained(path, entry, config, build)
    sizes = {name: list(value.shape) for name, value in tensors.items()}
    expected = {  # a lazy module takes the sizes of its weights
        name: sizes.get(name, []) if is_lazy(value) else list(value.shape) for name, value in model.state_dict().items()
    }
    for name in [*expected, *sizes]:
        if expected.get(name) != sizes.get(name):
            raise ValueError(
                f"{path}: rank {rank}: expected weights {name} of shape {expected.get(name)}, got {sizes.get(name)}; "
                f"{_UNTRAINED}"
            )
    model.load_state_dict(tensors)
    return model.eval()


def _untrained(
    path: Path,
    entry: Mapping[str, Any],
    config: Mapping[str, Any] | None,
    build: Callable[[dict[str, Any]], nn.Module] | None,
) -> nn.Module:
    """Return the model of an entry with new weights."""
    module = entry.get("module")
    choices = {} if "network" in entry else values_of(entry["graph"])
    if build is not None and not choices:
        raise ValueError(f"{path}: build: expected none for an entry without choices, got {build!r}")
    if config and (choices or module is not None):
        kind = "choices" if choices else "a module"
        raise ValueError(f"{path}: config: expected none for {kind}, got {shown(config)}")
    if build is None and module is None:
        model = to_pytorch_model(_graph(entry), config)
        model.columns = TableColumns.from_dict(entry["columns"]) if "columns" in entry else None
        model.arrays = ArrayInputs.from_dict(entry["arrays"]) if "arrays" in entry else None
        return model
    function, argument = (build, choices) if build is not None else _builder(path, module, entry, choices)
    try:
        return function(argument)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _builder(
    path: Path, module: object, entry: Mapping[str, Any], choices: dict[str, Any]
) -> tuple[Callable[[Any], nn.Module], Any]:
    """Return the function that an entry names, and its argument: the choices, or the value that `of` names."""
    match module:
        case {"build": str(name), **rest} if "of" not in rest or str(rest["of"]) in entry:
            try:
                function = load_function(f"{path}: module.build", name)
            except UserError as error:
                raise UserError(f"{error}; add its folder to PYTHONPATH or pass build=FUNCTION") from None
            return function, entry[str(rest["of"])] if "of" in rest else choices
    raise ValueError(f'{path}: module: expected {{"build": "module:function"}}, got {shown(module)}')


def _file(path: str | Path, name: str = _TOP_NAME) -> Path:
    """Return the path of top_architectures.json, or of another file, for itself or its run folder."""
    return Path(path) / name if Path(path).is_dir() else Path(path)


def load_graph(path: str | Path, rank: int = 0, *, trust: bool = False) -> ComputationGraph:
    """Return the graph of a rank in a run's top_architectures.json, or its folder, with its translation settings.

    Raises:
        ValueError: an invalid file, a missing rank, or names of classes in the run of another user without `trust`.
    """
    path = _file(path)
    entry = _entry(path, rank)
    with trusting(trust), checked_names(path, entry.get("network", entry["graph"]), folder=path.parent):
        return _graph(entry)


def read_candidate(path: str | Path, rank: int = 0) -> tuple[Path, dict[str, Any], dict[str, Tensor] | None]:
    """Return the file of a network, its graph as JSON, and its trained weights, None where they are not there.

    Args:
        path: run folder, a file with entries as a run writes them, or one with a single graph.
        rank: of the entry.

    Raises:
        ValueError: another file, a missing rank, or damaged weights.
    """
    path = _file(path)
    content = _content(path)
    if isinstance(content, dict) and "nodes" in content:
        return path, content, None
    entry = _entry(path, rank)
    match entry.get("weights"):
        case {"file": str(name)} if (path.parent / name).exists():
            return path, entry["graph"], _weights(path, entry, rank=rank, hint="")
    return path, entry["graph"], None


def _content(path: Path) -> Any:
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: expected the file of a run, got none ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected JSON, got {type(error).__name__}: {error}") from None
    return content


def _entry(path: Path, rank: int) -> dict[str, Any]:
    content = _content(path)
    entries = content["members"] if isinstance(content, dict) and "members" in content else content
    if not isinstance(entries, list) or not all(isinstance(entry, dict) and "graph" in entry for entry in entries):
        raise ValueError(f"{path}: expected a JSON list of objects with a graph, as written by a run")
    ranks = [entry.get("rank", position) for position, entry in enumerate(entries)]
    if rank not in ranks:
        raise ValueError(f"{path}: expected a rank out of {shown(ranks)}, got {rank!r}")
    entry = entries[ranks.index(rank)]
    if not is_intact(entry):
        raise ValueError(
            f"{path}: expected rank {rank!r} as the run wrote it, got another checksum; "
            "remove this field of an entry that you have edited"
        )
    return entry


def _graph(entry: Mapping[str, Any]) -> ComputationGraph:
    match entry.get("network", entry["graph"]):
        case {"nodes": [{"name": _}, *_]}:
            raise ValueError(
                "expected a computation graph, got an object of another environment; if your own code builds its "
                "module, pass build=FUNCTION of the choices (docs/search-your-own-space.md)"
            )
        case data:
            return ComputationGraph.from_dict(data)


def _weights(path: Path, entry: Mapping[str, Any], *, rank: int, hint: str = f"; {_UNTRAINED}") -> dict[str, Any]:
    """Return the tensors that an entry names; `hint` ends its errors."""
    match entry.get("weights"):
        case {"file": str(name), "sha256": str(digest)}:
            file = path.parent / name
        case None:
            raise ValueError(f"{path}: rank {rank}: expected an entry with weights, got one without{hint}")
        case other:
            raise ValueError(f"{path}: rank {rank}: expected file and sha256 of weights, got {shown(other)}")
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ValueError(f"{file}: expected weights, got none ({error.strerror}){hint}") from None
    if sha256(content).hexdigest() != digest:
        raise ValueError(f"{file}: expected the weights of rank {rank}, got a damaged or other file{hint}")
    try:
        return load_tensors(content)
    except SafetensorError as error:
        raise ValueError(f"{file}: expected safetensors, got another format ({error}){hint}") from None


def copy_weights(
    model: nn.Module, source: nn.Module | Mapping[str, Tensor], names: Mapping[str, str] | None = None
) -> None:
    """Copy parameters and buffers in place; device and dtype of the model stay, axes of size 1 do not count.

    Args:
        model: a translated model.
        source: a module or its state_dict.
        names: the name in the source for every name in model.state_dict(). None: equal names if all names agree, else
            the order of both state_dicts.

    Raises:
        ValueError: a missing name, another number of tensors or another shape; the model is unchanged then.
    """
    tensors = source.state_dict() if isinstance(source, nn.Module) else source
    targets = model.state_dict()
    pairs = _pairs(targets, tensors, names)
    for target, name in pairs.items():
        if _sizes(targets[target]) != _sizes(tensors[name]):
            expected, got = list(targets[target].shape), list(tensors[name].shape)
            raise ValueError(f"expected the shape {expected} of {target}, got {got} of {name}")
    with torch.no_grad():
        for target, name in pairs.items():
            targets[target].copy_(tensors[name].reshape(targets[target].shape))


def _sizes(tensor: Tensor) -> list[int]:
    """Return the sizes but 1: a class token is [1, 1, D] in one module, [D] in another."""
    return [size for size in tensor.shape if size != 1]


def _pairs(
    targets: Mapping[str, Tensor], tensors: Mapping[str, Tensor], names: Mapping[str, str] | None
) -> dict[str, str]:
    """Return the name in the source of every tensor of the model."""
    if names is None:
        if targets.keys() == tensors.keys():
            return {name: name for name in targets}
        if len(targets) != len(tensors):
            raise ValueError(f"expected {len(targets)} tensors as in the model, got {len(tensors)}")
        return dict(zip(targets, tensors, strict=True))
    for target in targets:
        if target not in names:
            raise ValueError(f"names: expected a name for {target}, got none")
        if names[target] not in tensors:
            raise ValueError(f"names: expected a tensor of the source for {target}, got {names[target]!r}")
    return {target: names[target] for target in targets}
