"""Memory format and precision: the faster one, measured once per machine and shape, and accuracy in bfloat16."""

import itertools
import json
from pathlib import Path

import pytest
import torch
from torch import nn

from gflownet.errors import UserError
from gflownet.training import precision
from gflownet.training.precision import Numerics, choose_numerics, fastest

CPU = torch.device("cpu")
IMAGE = (1, 6, 6)
PLAIN, LAST = Numerics(), Numerics("channels_last")


@pytest.fixture
def measured(monkeypatch, tmp_path: Path) -> list[list[Numerics]]:
    """Replace measurements: the last of the sides is the fastest. Return the sides of each measurement."""
    calls: list[list[Numerics]] = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(precision, "has_bfloat16", lambda _: True)
    monkeypatch.setattr(precision, "_measured", lambda sides, *_: calls.append(sides) or sides[-1])
    return calls


def choose(memory_format: str = "auto", matrix: str = "auto", *, image=IMAGE, batch_size: int = 4) -> Numerics:
    return choose_numerics(memory_format, matrix, image=image, batch_size=batch_size, device=CPU)


def test_auto_is_measured_once_per_shape(measured):
    assert choose() == choose() == Numerics("channels_last", "bfloat16")
    assert len(measured) == 1
    choose(image=(3, 6, 6))
    choose(batch_size=8)
    choose(image=(1, 6))  # a signal
    assert len(measured) == 4


def test_fixed_options_and_vectors_are_not_measured(measured):
    assert choose("channels_last", "bfloat16") == Numerics("channels_last", "bfloat16")
    assert choose(image=()) == PLAIN
    assert choose("auto", "bfloat16", image=()) == Numerics("contiguous", "bfloat16")
    assert measured == []
    assert choose("auto", "float32") == LAST
    assert measured == [[PLAIN, LAST]]


def test_auto_without_instructions_is_float32(measured, monkeypatch):
    monkeypatch.setattr(precision, "has_bfloat16", lambda _: False)
    assert choose("contiguous") == PLAIN
    assert measured == []


@pytest.mark.parametrize(("capability", "has_it"), [((7, 5), False), ((8, 0), True), ((12, 0), True)])
def test_gpu_that_computes_bfloat16_in_float32_has_none(monkeypatch, capability, has_it):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or has_it)
    monkeypatch.setattr(torch.cuda, "get_device_capability", {torch.device("cuda:1"): capability}.__getitem__)
    assert precision.has_bfloat16(torch.device("cuda:1")) == has_it


@pytest.mark.parametrize(
    ("is_built", "cause"), [(False, f": torch {torch.__version__} is built without CUDA"), (True, "")]
)
def test_missing_gpu_names_the_cause(monkeypatch, is_built, cause):
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: is_built)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(UserError) as error:
        precision.choose_device("cuda:1")
    assert str(error.value) == f"device: expected cpu or one of 0 CUDA devices, got cuda:1{cause}"


def test_choice_of_another_process_wins(measured, monkeypatch):
    """Two runs that measure at the same time and with different results make the same choice."""

    def choice_of_other_process(sides, *_):
        monkeypatch.setattr(precision, "_measured", lambda sides, *_: sides[0])
        choose()
        return sides[-1]

    monkeypatch.setattr(precision, "_measured", choice_of_other_process)
    assert choose() == PLAIN


@pytest.mark.parametrize("content", ["", "{}{", '{"memory_format": "diagonal"}', '{"unknown": 1}', "[]"])
def test_damaged_choice_is_measured_again(measured, tmp_path: Path, content):
    choose()
    (file,) = (tmp_path / "gflownet" / "numerics").iterdir()
    assert json.loads(file.read_text()) == {"memory_format": "channels_last", "precision": "bfloat16"}
    file.write_text(content)
    assert choose() == choose() == Numerics("channels_last", "bfloat16")
    assert len(measured) == 2


def test_choice_without_a_cache_folder(measured, tmp_path: Path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert choose() == choose() == Numerics("channels_last", "bfloat16")
    assert len(measured) == 2


@pytest.mark.parametrize(("seconds", "expected"), [(1.0, "plain"), (0.95, "plain"), (0.8, "other")])
def test_fastest_keeps_the_first_unless_the_other_saves_enough(monkeypatch, seconds, expected):
    now = [0.0]
    monkeypatch.setattr(precision.time, "perf_counter", lambda: now[0])

    def call(times):
        return lambda: now.__setitem__(0, now[0] + next(times))

    # The first call is a warm-up; later ones are slow where another process has the core.
    sides = {
        "plain": call(itertools.chain([9.0], itertools.cycle([1.0, 3.0]))),
        "other": call(itertools.chain([0.1], itertools.cycle([5.0, seconds]))),
    }
    assert fastest(sides, seconds=40.0, share=0.9) == expected


@pytest.mark.parametrize("image", [IMAGE, IMAGE[:2]])
def test_measurement_leaves_threads_and_generator_as_they_were(monkeypatch, image):
    monkeypatch.setattr(precision, "_SECONDS", 0.0)
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    sides = [Numerics(*pair) for pair in itertools.product(["contiguous", "channels_last"], ["float32", "bfloat16"])]
    assert precision._measured(sides, image, 4, CPU) in sides
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


def test_outputs_in_bfloat16_are_float32_with_small_errors():
    torch.manual_seed(0)
    model, inputs = nn.Conv2d(3, 4, 3), torch.randn(2, 3, 6, 6)
    exact, rounded = (Numerics(precision=name).outputs(model, inputs) for name in ("float32", "bfloat16"))
    assert rounded.dtype == torch.float32
    assert not torch.equal(exact, rounded)
    torch.testing.assert_close(rounded, exact, rtol=0, atol=0.03)
