"""Old import paths: the module or name of the new one, with a warning."""

import importlib
import sys

import pytest

import gflownet.certificate
from gflownet.moved import MOVED


@pytest.mark.parametrize("old", MOVED)
def test_old_path_is_the_module_of_the_new_one(old):
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} is now {MOVED[old]}"):
        module = importlib.import_module(old)
    assert module is importlib.import_module(MOVED[old])


def test_old_name_of_a_package_is_that_of_the_new_one():
    metrics = importlib.import_module("gflownet.metrics")
    with pytest.warns(DeprecationWarning, match=r"gflownet.metrics.enumerate_states is now gflownet.certificate"):
        found = metrics.enumerate_states
    assert found is gflownet.certificate.enumerate_states
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = metrics.no_such_name
