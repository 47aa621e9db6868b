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
    """Comes back as something else."""

    def __reduce__(self):
        return list, ("ab",)


def travelled(error: BaseException) -> Exception:
    try:
        raise error
    except BaseException as caught:
        failure = Failure.of(caught)
    return pickle.loads(pickle.dumps(failure)).error()


def test_an_exception_arrives_as_what_it_was_with_its_traceback():
    error = travelled(KeyError("x"))
    assert type(error) is KeyError
    assert error.args == ("x",)
    assert isinstance(error.__cause__, RemoteTraceback)
    assert "in travelled\n    raise error" in str(error.__cause__)
    assert "KeyError: 'x'" in str(error.__cause__)


@pytest.mark.parametrize("error", [TwoArgumentError(3, "bad"), UnpicklableError(), ChangingError("odd"), SystemExit(2)])
def test_one_that_cannot_be_rebuilt_or_would_end_the_reader_arrives_as_a_runtime_error(error):
    arrived = travelled(error)
    assert type(arrived) is RuntimeError
    assert str(arrived).partition(":")[0].endswith(type(error).__name__)
    assert "in travelled" in str(arrived.__cause__)


def test_the_message_is_kept():
    assert "node 3: bad" in str(travelled(TwoArgumentError(3, "bad")))


def test_one_whose_class_the_reader_does_not_have_arrives_as_a_runtime_error():
    failure = Failure(b"not a pickle", "odd.Error: x", "Traceback")
    assert repr(failure.error()) == "RuntimeError('odd.Error: x')"


def test_the_causes_of_an_exception_are_in_its_text():
    error = KeyError("second")
    error.__cause__ = ValueError("first")
    assert "ValueError: first\n\nThe above exception was the direct cause" in Failure.of(error).text
