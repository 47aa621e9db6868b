"""Generated classes: their code from a typed graph, and a bounded cache by key. A class holds no parameters."""

from __future__ import annotations

import linecache
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from threading import Lock
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Proxy

from gflownet.graphs.typed import TypedGraph, TypedNode
from gflownet.operations import layers, sequences
from gflownet.operations.code import FAST, Dialect, outside_name, outside_value
from gflownet.operations.neuron import scales_matrix
from gflownet.operations.tensor_shape import Layout
from gflownet.operations.vocabulary import activation
from gflownet.translation.code import ClassWriter, class_name, method_text

# Matrices of one size that are scaled together: with fewer, products one by one are as fast.
MIN_STACKED = 8
MAX_ENTRIES = 1024


class TranslationCache:
    """Thread-safe LRU cache with hit counts."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self.is_enabled = True
        self.max_entries = max_entries
        self._entries: OrderedDict[Hashable, Any] = OrderedDict()
        self._hits = 0
        self._misses = 0
        self._lock = Lock()

    def get(self, key: Hashable, build: Callable[[], Any]) -> Any:
        """Return the entry of `key`, built on first use."""
        with self._lock:
            if key in self._entries:
                self._hits += 1
                self._entries.move_to_end(key)
                return self._entries[key]
            self._misses += 1
        entry = build()
        with self._lock:
            self._entries[key] = entry
            while len(self._entries) > self.max_entries:
                self._entries.popitem(last=False)
        return entry

    def count(self, *, is_hit: bool) -> None:
        """Count a parameter that a node of a model takes from another (a hit) or has as the first of its derivation."""
        with self._lock:
            self._hits, self._misses = self._hits + is_hit, self._misses + (not is_hit)

    def clear(self) -> None:
        """Remove all entries and reset the counters."""
        with self._lock:
            self._entries.clear()
            self._hits = self._misses = 0

    def metrics(self) -> dict[str, int]:
        """Return the counts of hits, misses and entries."""
        with self._lock:
            return {"hits": self._hits, "misses": self._misses, "entries": len(self._entries)}


CACHE = TranslationCache()


def set_translation_cache_enabled(enabled: bool) -> None:
    """Switch the cache on or off for models without enable_translation_cache; outputs do not change."""
    CACHE.is_enabled = bool(enabled)


def clear_translation_cache() -> None:
    """Empty the cache and set its metrics to 0."""
    CACHE.clear()


def get_translation_cache_metrics() -> dict[str, int]:
    """Return the metrics: hits and misses of classes and of parameters of derivations, and the number of classes."""
    return CACHE.metrics()


# What generated code calls, besides the user's classes and those of subgraphs.
_NAMES: dict[str, Any] = {name: value for name, value in vars(layers).items() if isinstance(value, type)}
_NAMES |= {
    name: value for name, value in vars(sequences).items() if getattr(value, "__module__", "") == sequences.__name__
}
_NAMES |= {each.__name__: each for each in (layers.masked, layers.masked_mean, layers.masked_max)}
_NAMES |= {"torch": torch, "F": F, "nn": nn, "Tensor": Tensor, "Proxy": Proxy}


def generated_class(base: type[nn.Module], plan: TypedGraph, bodies: Mapping[Any, type], dialect: Dialect) -> type:
    """Return a subclass of `base` with straight-line code for a graph; `bodies`: classes of its subgraphs, by key."""
    class_names = {body.key: f"{class_name(body)}_{index}" for index, body in enumerate(plan.bodies)}
    source = _FastWriter(plan, replace(dialect, is_padded=plan.is_padded), class_names).source()
    key = repr(plan.key) + ("" if dialect is FAST else str(dialect.num_copies))
    name = f"{class_name(plan)}_{sha256(key.encode()).hexdigest()[:12]}"
    filename = f"<gflownet {name}>"
    methods: dict[str, Any] = {}
    inner = {class_names[key]: each for key, each in bodies.items()}
    exec(compile(source, filename, "exec"), {**_NAMES, "Base": base, **inner, **dict(outside_functions(plan))}, methods)
    read = frozenset(each.name for step in plan.live_steps for each in step.parameters if not each.module)
    generated = type(name, (base,), {"plan": plan, "names": read, "__module__": base.__module__, **methods})
    # Source lines for tracebacks, debuggers and torch.compile while the class exists.
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    weakref.finalize(generated, linecache.cache.pop, filename, None)
    return generated


@dataclass(frozen=True)
class _FastWriter(ClassWriter):
    """Code of a class in memory: parameters are added from the plan, with values by their place."""

    def stacked_matrices(self) -> list[list[tuple[str, str]]]:
        groups: dict[tuple[int, int], list[tuple[str, str]]] = {}
        for step in self.plan.live_neurons:
            sizes = step.sizes
            for place, edge in enumerate(step.edges) if not sizes.aggregation.edge_parameter else ():
                if sizes.projected[place] and scales_matrix(step, place):
                    names = step.named("proj", edge), step.named("weight", edge)
                    groups.setdefault((sizes.message, sizes.sources[place]), []).append(names)
        return [pairs for pairs in groups.values() if len(pairs) >= MIN_STACKED]

    def added(self, steps: Sequence[TypedNode]) -> list[str]:
        if self.plan.takes_columns:
            return ["add_parameters(self, self.plan.parameters, values, device=device, dtype=dtype)"]
        places = {step.node_id: place for place, step in enumerate(self.plan.steps)}
        return [f"add_parameters(self, self.plan.steps[{places[step.node_id]}].parameters, values)" for step in steps]

    def source(self) -> str:
        """The source of `__init__`, `forward` and, for a plan with state, of `step` and `steps`."""
        plan, arguments = self.plan, ", ".join(self.arguments())
        # Every statement that adds parameters takes its values from the same iterator.
        initial = ["Base.__init__(self, device, dtype)", "values = iter(values or self.plan.values)"]
        functions = {"__init__(self, values=(), device=None, dtype=None)": [*initial, *self.initial_lines()]}
        access = ["p, m = self._named_tensors(), self._modules"]
        body = [*self.body_lines(), "return y, state" if plan.slots else "return y"]
        # Copies are called by their owner alone.
        checks = list(self._checks()) if self.dialect.num_copies == 1 else []
        forward = f"forward(self, {arguments}, reset_states=False)"
        if plan.name:  # a subgraph: its state comes from and goes to the model
            functions[f"forward(self, {arguments}{', state' if plan.slots else ''})"] = [*access, *body]
        elif not plan.slots:
            functions[forward] = [*access, *checks, *body]
        else:
            functions[f"step(self, {arguments}, state)"] = [*access, *body]
            functions[forward] = [
                *checks,
                "if reset_states:",
                "    self.state_manager.reset()",
                f"state = self.state_manager.current({self.arguments()[0]}, self._buffers['reference'])",
                f"y, state = self.step({arguments}, state)",
                "self.state_manager.store(state, is_new=reset_states)",
                "return y",
            ]
        if plan.is_run_by_node and not plan.name:
            unpacked = ["batch, length = x.shape[:2]", "x = x.transpose(0, 1).flatten(0, 1)", *self.unpacked()]
            returned = "return y.unflatten(0, (length, batch)).transpose(0, 1), state"
            functions["steps(self, x, state)"] = [*access, *unpacked, *self.sequence_lines(), returned]
        return "\n".join(method_text(signature, lines) for signature, lines in functions.items())

    def _checks(self) -> Iterator[str]:
        yield 'dtype = self._buffers["reference"].dtype'
        for position, (name, shape) in enumerate(self.plan.arguments):
            is_wrong = f"{name}.dtype != dtype" if shape.layout is not Layout.TOKENS else f"{name}.is_floating_point()"
            is_other = f"{name}.shape[1:] != {shape.sizes}"
            if len(shape.sizes) == 1:  # faster than a comparison of slices
                is_other = f"{name}.dim() != 2 or {name}.shape[1] != {shape.sizes[0]}"
            yield f"if not isinstance({name}, Proxy) and ({is_other} or {is_wrong}):"  # of torch.fx
            yield f"    self._refuse({position}, {name})"
            if shape.layout is Layout.TOKENS:
                yield f"{name} = {name}.long()"  # nn.Embedding takes no int16 or uint8


def outside_functions(plan: TypedGraph) -> Iterator[tuple[str, Any]]:
    """Yield the user's classes and constructors by their names in generated code."""
    for step in plan.steps:
        node, applied = step.node, step.operation
        if ":" in node.activation_function:
            yield outside_name(node.activation_function), outside_value(activation(node.activation_function))
        if step.is_neuron:
            if ":" in node.aggregation:
                yield outside_name(node.aggregation), step.sizes.aggregation
        elif applied is not None and not step.bodies:
            yield from applied.row.outside_classes(applied.settings).items()
