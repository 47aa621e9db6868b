"""Methods of a command line."""

from __future__ import annotations

import re

import pytest

from gflownet.cli.comparison import Method, check_overrides, read_method, read_methods
from gflownet.errors import UserError


def test_read_methods_returns_names_and_labels() -> None:
    methods = read_methods("random, gflownet", ["sharp: search.method=surrogate search.acquisition.beta=8"])
    assert methods == [
        Method("random", ("search.method=random",)),
        Method("gflownet", ("search.method=gflownet",)),
        Method("sharp", ("search.method=surrogate", "search.acquisition.beta=8")),
    ]


def test_read_method_keeps_quoted_spaces_and_colons() -> None:
    method = read_method("mine: search.method=own.search:Method 'wandb.project=a b'")
    assert method.overrides == ("search.method=own.search:Method", "wandb.project=a b")


@pytest.mark.parametrize(
    ("names", "described", "words"),
    [
        ("", [], "at least one method"),
        ("randm", [], "did you mean random?"),
        ("random,random", [], "'random' twice"),
        ("random", ["random: search.num_initial=3"], "'random' twice"),
        ("own.search:Method", [], '--method "mine: search.method=own.search:Method"'),
        ("", ["search.method=random"], "expected LABEL: KEY=VALUE"),
        ("", ["../up: search.method=random"], "expected LABEL: KEY=VALUE"),
        ("", ["a: 'open"], "No closing quotation"),
        ("", ["a: seed=3"], "seed: expected no such option"),
        ("", ["a: random"], "random: expected KEY=VALUE"),
    ],
)
def test_read_methods_rejects_mistakes(names: str, described: list[str], words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        read_methods(names, described)


@pytest.mark.parametrize("key", ["log_dir", "resume", "budget.evaluations", "evaluation.store_url"])
def test_check_overrides_rejects_options_of_comparison(key: str) -> None:
    with pytest.raises(UserError, match=key):
        check_overrides(["search.num_initial=5", f"{key}=1"])
