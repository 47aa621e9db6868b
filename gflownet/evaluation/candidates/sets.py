"""Sets of trained networks: kept weights, greedy selection on validation data, figures of averaged predictions.

M: trainings, N: examples, C: classes, O: numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from pathlib import Path

from safetensors.torch import load
from torch import Tensor

from gflownet.evaluation.data.examples import IGNORED, labelled_classes
from gflownet.evaluation.job import EvaluationStatus
from gflownet.evaluation.racing import RANDOM_REPEAT
from gflownet.evaluation.store.rows import EvaluationRecord, Identity

WEIGHTS_NAME, PARENTS_NAME = "weights", "parents"  # folders of a run
FIGURES = ("accuracy", "log_loss", "calibration_error", "r2", "mse")  # those of classes, then those of numbers
NUM_BINS = 15  # of the calibration error (Guo et al. 2017)
_SMALLEST = 1e-12  # probability in a log loss
_SEARCHED = (0, RANDOM_REPEAT)  # seeds of candidates of the search, and of random ones; others are new seeds


class WeightFolder:
    """Weights of full trainings as safetensors: of the best candidates, of the best random ones, and on new seeds.

    The rows of the run say which files are its own: others are never removed.
    """

    def __init__(
        self,
        folder: Path,
        num_best: int,
        *,
        write: Callable[[Path, bytes], None],
        is_allowed: Callable[[EvaluationRecord], bool] = lambda record: True,
        keeps_all: bool = True,
        records: Iterable[EvaluationRecord] = (),
    ) -> None:
        """Take up the files of earlier processes.

        Args:
            folder: of the files.
            num_best: candidates of the search, and random ones, that are kept.
            write: writes a file, whole or not at all.
            is_allowed: whether a candidate may be kept.
            keeps_all: all new seeds; else the first one of each architecture.
            records: rows of the run.
        """
        self._folder, self._num_best, self._write, self._is_allowed = folder, num_best, write, is_allowed
        self._keeps_all = keeps_all
        self._best: dict[int, dict[Path, float]] = defaultdict(dict)  # scores by seed
        for record in records:
            if self.path(record).exists() and (path := self._enter(record)) is not None:
                path.unlink()

    def keeps(self, seed: int) -> bool:
        """Return whether weights of trainings with this seed may be kept."""
        return self._num_best > 0 if seed in _SEARCHED else self._keeps_all or seed % RANDOM_REPEAT == 1

    def path(self, training: EvaluationRecord | Identity) -> Path:
        """Return the file of a training."""
        name = f"{_digest(training.key)}-{training.seed}-{training.fidelity}"
        return self._folder / f"{name}.safetensors"

    def read(self, training: EvaluationRecord | Identity) -> dict[str, Tensor] | None:
        """Return the weights of a training, None where they are not kept."""
        path = self.path(training)
        return load(path.read_bytes()) if path.exists() else None

    def add(self, record: EvaluationRecord, weights: bytes) -> None:
        """Write the weights of a training, and remove those of the worst candidate of too many."""
        if record.status is EvaluationStatus.OK and self.keeps(record.seed):
            worst = self._enter(record)
            if worst != self.path(record):
                self._write(self.path(record), weights)
            if worst is not None:
                worst.unlink(missing_ok=True)

    def _enter(self, record: EvaluationRecord) -> Path | None:
        """Note the score of a candidate, and return the file that is one too many."""
        if record.seed not in _SEARCHED:
            return None
        if not self._is_allowed(record):
            return self.path(record)
        best = self._best[record.seed]
        best[self.path(record)] = record.score
        worst = min(best, key=lambda path: (best[path], path)) if len(best) > self._num_best else None
        if worst is not None:
            del best[worst]
        return worst


class ParentWeights:
    """Weights of networks that others may inherit, as safetensors; none is lost that the last checkpoint needs."""

    def __init__(self, folder: Path, *, write: Callable[[Path, bytes], None]) -> None:
        """Keep the folder; `write` writes a file, whole or not at all."""
        self._folder, self._write = folder, write
        self._unused, self._removable = list[str](), list[str]()  # keys, since the last checkpoint and before it
        self._start = ""  # key of the network of env.start, whose weights stay

    def keeps(self, seed: int) -> bool:
        """Return whether weights of trainings with this seed are wanted: of the search."""
        return seed == 0

    def add(self, record: EvaluationRecord, weights: bytes) -> None:
        """Write the weights of a training of the search."""
        if record.status is EvaluationStatus.OK and self.keeps(record.seed) and record.key != self._start:
            self._write(self.path(record.key), weights)

    def begin_with(self, key: str, weights: bytes) -> None:
        """Write the weights of the network of env.start, once."""
        self._start = key
        if not self.path(key).exists():
            self._write(self.path(key), weights)

    def path(self, key: str) -> Path:
        """Return the file of a network."""
        return self._folder / f"{_digest(key)}.safetensors"

    def change(self, used: Iterable[str], unused: Sequence[str]) -> None:
        """Keep the weights of networks, and remove others after the next checkpoint but one."""
        kept = {*used}
        self._unused = [key for key in (*self._unused, *unused) if key not in kept]
        self._removable = [key for key in self._removable if key not in kept]

    def end(self, used: Iterable[str]) -> None:
        """Remove the weights of all networks but those of the last parents."""
        paths = {self.path(key) for key in used}
        for path in self._folder.glob("*.safetensors"):
            if path not in paths:
                path.unlink(missing_ok=True)

    def checkpoint(self) -> None:
        """Remove what the checkpoint before this one does not need."""
        for key in self._removable:
            self.path(key).unlink(missing_ok=True)
        self._removable, self._unused = self._unused, []


def _digest(key: str) -> str:
    return sha256(key.encode()).hexdigest()[:16]


def predicted(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return what a set averages: probabilities [N, C] of logits, or the numbers [N, O] themselves, in float64."""
    if targets.is_floating_point():
        return outputs.double()
    return outputs.flatten(0, -2)[targets.flatten() != IGNORED].double().softmax(-1)


def loss_of(predictions: Tensor, targets: Tensor) -> float:
    """Return the log loss of probabilities [N, C], or the mean squared error of numbers [N, O]."""
    if targets.is_floating_point():
        return float((predictions - targets).square().mean())
    probabilities = predictions.gather(1, labelled_classes(targets).unsqueeze(1))
    return -float(probabilities.clamp(min=_SMALLEST).log().mean())


def greedy(predictions: Sequence[Tensor], targets: Tensor, *, size: int) -> list[int]:
    """Return the places of a set, with repetitions, in the order of their choice.

    Each is the training with which the mean of the predictions has the smallest loss (Caruana et al. 2004); of equal
    ones the first.
    """
    chosen: list[int] = []
    total: Tensor | float = 0.0
    for number in range(1, size + 1 if predictions else 1):
        losses = [loss_of((total + each) / number, targets) for each in predictions]
        chosen.append(losses.index(min(losses)))
        total = total + predictions[chosen[-1]]
    return chosen


def calibration(probabilities: Tensor, targets: Tensor) -> list[tuple[float, float, float]]:
    """Return mean confidence, accuracy and share of the examples of each bin of the confidence that has examples.

    The confidence is the largest probability; `NUM_BINS` bins of equal width, (k / 15, (k + 1) / 15].
    """
    confidence, label = probabilities.max(-1)
    is_correct = (label == labelled_classes(targets)).double()
    places = (confidence * NUM_BINS).ceil().clamp(1, NUM_BINS)
    bins = [places == place for place in places.unique()]
    return [(float(confidence[b].mean()), float(is_correct[b].mean()), float(b.double().mean())) for b in bins]


def figures_of(predictions: Tensor, targets: Tensor) -> dict[str, float]:
    """Return accuracy, log loss and expected calibration error, or R^2 and mean squared error."""
    loss = loss_of(predictions, targets)
    if targets.is_floating_point():
        return {"r2": 1 - loss / float((targets - targets.mean(0)).square().mean()), "mse": loss}
    error = sum(share * abs(right - sure) for sure, right, share in calibration(predictions, targets))
    accuracy = float((predictions.argmax(-1) == labelled_classes(targets)).double().mean())
    return {"accuracy": accuracy, "log_loss": loss, "calibration_error": error}
