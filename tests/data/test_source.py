"""Rollouts are a function of seed, step and weights, local and from workers."""

import os
import signal
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from gflownet.data import rollouts as rollout_module
from gflownet.data.config import WorkersConfig
from gflownet.data.rollouts import MergedPolicyCalls, _failures_as_user_errors
from gflownet.data.sampler import Exploration
from gflownet.errors import UserError
from gflownet.evaluation.conditioning import Conditioning
from gflownet.graphs import canonical
from gflownet.workers.pool import WorkerError
from gflownet.workers.process import get_worker_info
from tests.data.policies import keys
from tests.data.rollouts import CountsNodes, assert_same, num_nodes, parts, write_stop

BACKENDS = ("processes", "dataloader")


class DiesOnce(CountsNodes):
    """Kills its worker at the first sampling after a file has appeared, and removes the file."""

    def __init__(self, config: Any, sign: Path) -> None:
        super().__init__(config)
        self.sign = sign

    def sample_conditioning(self, num: int, *, generator: torch.Generator) -> Conditioning:
        if get_worker_info() is not None and self.sign.exists():
            self.sign.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().sample_conditioning(num, generator=generator)


def test_rollout_scores_stores_and_replays(tmp_path):
    with parts(tmp_path) as built:
        first, second, third = islice(built.here(), 3)
        assert first.num_fresh == len(first.trajectories) == len(first.evaluations) == 6
        for rollout in (first, second, third):
            expected = rollout.trajectories.beta[:6] * (torch.tensor(num_nodes(rollout)) / 10).log()
            assert torch.allclose(rollout.trajectories.log_reward[:6], expected)
        assert len(third.trajectories) == 9
        env = built.source.context.env
        known = {key for rollout in (first, second, third) for key in keys(env, rollout.trajectories.terminal[:6])}
        assert len(built.replay) == len(known)
        assert set(keys(env, third.trajectories.terminal[6:])) <= known
        assert bool(third.trajectories.log_reward.isfinite().all())


def test_rollout_searches_canonical_form_once_per_terminal_graph(tmp_path, monkeypatch):
    searches: list[int] = []
    search = canonical.canonical_labelling
    monkeypatch.setattr(canonical, "canonical_labelling", lambda graph: searches.append(1) or search(graph))
    with parts(tmp_path) as built:
        rollout = next(iter(built.here()))
        assert len(built.replay) > 0
    assert 0 < len(searches) <= rollout.num_fresh


def test_rollout_is_stateless(tmp_path):
    with parts(tmp_path / "once") as once, parts(tmp_path / "again") as again:
        expected = list(islice(once.here(), 3))
        ours = {}
        for step in (2, 1, 3):  # replayed states depend on the history, samples do not
            sampled = again.source._sample(step, 0, again.policy, Exploration(0.1), 6)
            ours[step] = sampled.terminal.num_nodes.tolist()
        assert [ours[step] for step in (1, 2, 3)] == [num_nodes(r) for r in expected]


def test_sample_on_policy_separate_stream(tmp_path):
    with parts(tmp_path, epsilon=1.0) as built:
        write_stop(built.policy, bias=1e4)
        sampled = built.source.sample_on_policy(5, policy=built.policy)
        assert sampled.terminal.num_nodes.tolist() == [1] * 6
        assert max(num_nodes(next(built.here(first_step=5)))) > 1


@pytest.mark.parametrize(
    ("transport", "dense", "backend"),
    [
        ("buffer", False, "processes"),
        ("pickle", True, "dataloader"),
        pytest.param("small_buffer", True, "processes", marks=pytest.mark.slow),
        pytest.param("queue", False, "dataloader", marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore:mp_buffer_size")
def test_worker_rollouts_one_worker_bit_equal(tmp_path, transport, dense, backend):
    with parts(tmp_path / "here", dense=dense) as here, parts(tmp_path / "there", dense=dense) as there:
        expected = list(islice(here.here(), 4))
        with closing(there.of_workers(transport, config=WorkersConfig(backend=backend))) as stream:
            for rollout in expected:
                ours = next(stream)
                assert_same(ours, rollout)
                pids = {e.metrics["pid"] for e in ours.evaluations}
                assert pids == {float(os.getpid())}, "evaluated in the main process"
        assert there.store.count() == here.store.count()
        assert there.replay.state_dict()["keys"][: len(here.replay)] == here.replay.state_dict()["keys"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("backend", BACKENDS)
def test_worker_rollouts_policy_on_cuda(tmp_path, backend):
    with parts(tmp_path) as built:
        built.policy.cuda()
        config = WorkersConfig(backend=backend)
        with closing(built.of_workers("buffer", num_workers=2, config=config, device=torch.device("cuda"))) as stream:
            for rollout in islice(stream, 4):
                assert rollout.trajectories.log_reward.device.type == "cpu"
                assert bool(rollout.trajectories.log_reward.isfinite().all())


@pytest.mark.parametrize("backend", ["processes", pytest.param("dataloader", marks=pytest.mark.slow)])
def test_worker_rollouts_two_workers_alternate(tmp_path, backend):
    with parts(tmp_path / "here") as here, parts(tmp_path / "there") as there:
        expected = list(islice(here.here(), 4))
        with closing(there.of_workers("buffer", num_workers=2, config=WorkersConfig(backend=backend))) as stream:
            ours = list(islice(stream, 4))
        assert [num_nodes(r) for r in ours] == [num_nodes(r) for r in expected]
        assert {e.metrics["pid"] for r in ours for e in r.evaluations} == {float(os.getpid())}


@pytest.mark.parametrize("backend", BACKENDS)
def test_worker_rollouts_use_published_weights(tmp_path, backend):
    config = WorkersConfig(backend=backend)
    with parts(tmp_path, epsilon=0.0) as built, closing(built.of_workers("buffer", config=config)) as stream:
        first = next(stream)
        assert max(num_nodes(first)) > 1
        write_stop(built.policy, bias=1e4)  # while the second one, which began with the first weights, is prepared
        assert max(num_nodes(next(stream))) > 1
        assert num_nodes(next(stream)) == [1] * 6
        write_stop(built.policy, bias=-1e4)
        assert num_nodes(next(stream)) == [1] * 6
        assert num_nodes(next(stream)) == [4] * 6


def test_worker_rollouts_publish_before_first_refresh(tmp_path, monkeypatch):
    start = rollout_module._pool

    def asked_at_once(work, server, **options):
        first = server.connect()
        first.proxy("policy").refresh(1)
        first.channel.close()
        return start(work, server, **options)

    monkeypatch.setattr(rollout_module, "_pool", asked_at_once)
    with parts(tmp_path) as built, closing(built.of_workers("pickle")) as stream:
        assert len(num_nodes(next(stream))) == 6


def test_worker_rollouts_replace_killed_worker(tmp_path):
    sign = tmp_path / "sign"
    with parts(tmp_path / "here") as here, parts(tmp_path / "there", task=DiesOnce, sign=sign) as there:
        expected = list(islice(here.here(), 5))
        with closing(there.of_workers("buffer", num_workers=2)) as stream:
            ours = list(islice(stream, 1))
            sign.touch()
            with pytest.warns(UserWarning, match="killed by SIGKILL"):
                ours += islice(stream, 4)
        assert [num_nodes(r) for r in ours] == [num_nodes(r) for r in expected]


def fail(cause: BaseException | None) -> None:
    with _failures_as_user_errors(2, WorkersConfig()):
        raise WorkerError("worker 0 failed") from cause


def test_worker_failure_with_user_error_cause():
    """A full disk under the store is one line, as without workers."""
    with pytest.raises(UserError, match=r"^store: cannot be written$"):
        fail(UserError("store: cannot be written"))


def test_worker_failure_with_other_or_no_cause():
    with pytest.raises(WorkerError):
        fail(RuntimeError("the user's own"))
    with pytest.raises(UserError, match=r"^num_workers=2: worker 0 failed \(workers.deadline, workers.max_restarts\)$"):
        fail(None)


def test_merged_policy_calls_equal_separate_calls(tmp_path):
    for dense in (True, False):
        with parts(tmp_path, dense=dense) as built:
            context, env = built.source.context, built.source.context.env
            rollouts = list(islice(built.here(), 2))
            calls, taken, generator = [], [], torch.Generator().manual_seed(0)
            for states in (env.initial_states(2), *(r.trajectories.states for r in rollouts)):
                taken.append(env.forward_masks(states).sample_uniform(generator))
                calls.append((context.to_batch(states), torch.rand(len(states), built.source.task.num_cond_dim)))
            merger = MergedPolicyCalls(context.layout)
            with torch.no_grad():
                answers = merger.split(built.policy(*merger.merge(calls)), calls)
                for call, (categorical, numbers) in zip(calls, answers, strict=True):
                    alone, own = built.policy(*call)
                    assert torch.allclose(numbers, own, atol=1e-5)
                    for ours, theirs in zip(categorical.log_probs(), alone.log_probs(), strict=True):
                        assert torch.allclose(ours, theirs, atol=1e-5)
                for (batch, _), (categorical, _), actions in zip(calls, answers, taken, strict=True):
                    assert bool(categorical.log_prob(context.to_indices(batch, actions)).isfinite().all())
