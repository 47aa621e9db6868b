from __future__ import annotations

import pickle

import pytest

from gflownet.workers.proxy import Failure, RemoteTraceback
from tests.workers.messages import TwoArgumentError


class UnpicklableError(Exception):
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__(lambda: None)


class ChangingError(Exception):
    """Unpickles as another class."""

    def __reduce__(self):
        return list, ("ab",)


def travelled(error: BaseException) -> Exception:
    try:
        raise error
    except BaseException as caught:
        failure = Failure.of(caught)
    return pickle.loads(pickle.dumps(failure)).error()


def test_failure_keeps_class_and_traceback():
    error = travelled(KeyError("x"))
    assert type(error) is KeyError
    assert error.args == ("x",)
    assert isinstance(error.__cause__, RemoteTraceback)
    assert "in travelled\n    raise error" in str(error.__cause__)
    assert "KeyError: 'x'" in str(error.__cause__)


@pytest.mark.parametrize("error", [TwoArgumentError(3, "bad"), UnpicklableError(), ChangingError("odd"), SystemExit(2)])
def test_failure_of_unpicklable_exception_is_runtime_error(error):
    arrived = travelled(error)
    assert type(arrived) is RuntimeError
    assert str(arrived).partition(":")[0].endswith(type(error).__name__)
    assert "in travelled" in str(arrived.__cause__)


def test_failure_keeps_message():
    assert "node 3: bad" in str(travelled(TwoArgumentError(3, "bad")))


def test_failure_of_unknown_class_is_runtime_error():
    failure = Failure(b"not a pickle", "odd.Error: x", "Traceback")
    assert repr(failure.error()) == "RuntimeError('odd.Error: x')"


def test_failure_text_contains_causes():
    error = KeyError("second")
    error.__cause__ = ValueError("first")
    assert "ValueError: first\n\nThe above exception was the direct cause" in Failure.of(error).text
