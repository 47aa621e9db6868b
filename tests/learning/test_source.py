"""Rollouts are a function of seed, step and weights, local and from workers."""

from __future__ import annotations

import json
from contextlib import closing
from itertools import islice
from typing import Any

import pytest
import torch

from gflownet.errors import UserError
from gflownet.graphs import canonical
from gflownet.graphs.canonical import ColouredGraph
from gflownet.learning.config import LocalSearchConfig, OfflineConfig, ReplayConfig
from gflownet.learning.replay import SeenStates, load_offline
from gflownet.learning.rollouts import MergedPolicyCalls, _failures_as_user_errors
from gflownet.learning.sampler import Exploration
from gflownet.learning.source import Rollout
from gflownet.mdp.action import GraphActionType
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.trajectory import Origin, Trajectory
from gflownet.workers.pool import WorkerError
from gflownet.workers.process import Stream
from tests.contracts.environments import ENVIRONMENTS
from tests.learning.policies import keys
from tests.learning.rollouts import (
    Config,
    CountsNodes,
    Parts,
    assert_same_tensors,
    num_nodes,
    parts,
    rollout,
    write_stop,
)


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
            sampled = again.source._sample(step, Stream.FRESH, again.policy, Exploration(0.1), 6)
            ours[step] = sampled.terminal.num_nodes.tolist()
        assert [ours[step] for step in (1, 2, 3)] == [num_nodes(r) for r in expected]


def test_sample_on_policy_separate_stream(tmp_path):
    with parts(tmp_path, epsilon=1.0) as built:
        write_stop(built.policy, bias=1e4)
        sampled = built.source.sample_on_policy(5, policy=built.policy)
        assert sampled.terminal.num_nodes.tolist() == [1] * 6
        assert max(num_nodes(next(built.here(first_step=5)))) > 1


@pytest.mark.parametrize(
    ("transport", "dense"),
    [
        ("buffer", False),
        pytest.param("pickle", True, marks=pytest.mark.slow),
        pytest.param("small_buffer", True, marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore:mp_buffer_size")
def test_worker_samples_bit_equal(tmp_path, transport, dense):
    with (
        parts(tmp_path / "here", dense=dense) as here,
        parts(tmp_path / "there", dense=dense) as there,
        closing(there.of_workers(transport)) as stream,
    ):
        for ours, theirs in zip(islice(stream, 4), here.sampled_here(), strict=False):
            assert_same_tensors(ours, theirs)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_worker_samples_policy_on_cuda(tmp_path):
    with parts(tmp_path) as built:
        built.policy.cuda()
        with closing(built.of_workers("buffer", num_workers=2, device=torch.device("cuda"))) as stream:
            for batch in islice(stream, 4):
                assert batch.terminal.num_nodes.device.type == "cpu"
                assert len(batch) == 6


def test_worker_samples_two_workers_alternate(tmp_path):
    with (
        parts(tmp_path / "here") as here,
        parts(tmp_path / "there") as there,
        closing(there.of_workers("buffer", num_workers=2)) as stream,
    ):
        for ours, theirs in zip(islice(stream, 4), here.sampled_here(), strict=False):
            assert ours.terminal.num_nodes.tolist() == theirs.terminal.num_nodes.tolist()


@pytest.mark.parametrize("num_workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_worker_samples_have_the_weights_of_one_turn_before(tmp_path, num_workers):
    """The weights at the first step of a turn are those of the next turn, whatever takes long."""
    with parts(tmp_path, epsilon=0.0) as built, closing(built.of_workers("buffer", num_workers=num_workers)) as stream:

        def turn() -> list[list[int]]:
            return [next(stream).terminal.num_nodes.tolist() for _ in range(num_workers)]

        assert max(map(max, turn())) > 1
        write_stop(built.policy, bias=1e4)  # while the second turn, which began with the first weights, is prepared
        assert max(map(max, turn())) > 1
        write_stop(built.policy, bias=-1e4)
        assert turn() == [[1] * 6] * num_workers
        assert turn() == [[4] * 6] * num_workers


def fail(cause: BaseException | None) -> None:
    with _failures_as_user_errors(2):
        raise WorkerError("worker 0 failed") from cause


def test_worker_failure_with_other_or_no_cause():
    with pytest.raises(WorkerError):
        fail(RuntimeError("the user's own"))
    with pytest.raises(UserError, match=r"^num_workers=2: worker 0 failed \(workers.deadline\)$"):
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


REMEMBERS = ReplayConfig(warmup=6, num_from_replay=12, resample=False)
SEARCHES = {"local_search": LocalSearchConfig(num=4, num_iterations=3)}


def of_origin(rollout: Rollout, origin: Origin) -> list[Trajectory]:
    batch = rollout.trajectories
    return [batch[i] for i in range(len(batch)) if int(batch.origin[i]) == int(origin)]


def text(one: Trajectory) -> str:
    return str([part.tolist() for part in one.actions.parts])


def test_source_replays_original_trajectories(tmp_path):
    with parts(tmp_path, replay=REMEMBERS, options=SEARCHES) as built:
        env, first = built.source.context.env, {}
        for rollout in islice(built.here(), 3):
            batch = rollout.trajectories
            for i in range(rollout.num_fresh + 12):
                first.setdefault(keys(env, batch[i].terminal)[0], batch[i])
            again = of_origin(rollout, Origin.REMEMBERED)
            assert len(again) == (12 if len(built.replay) >= 6 else 0)
            for one in again:
                found = first[keys(env, one.terminal)[0]]
                assert text(one) == text(found)
                assert bool(one.states.equals(found.states).all())
                assert torch.equal(one.log_backward, found.log_backward)
        assert len(again) == 12


def test_source_resamples_backward_trajectories(tmp_path):
    with parts(tmp_path, replay=ReplayConfig(warmup=6, num_from_replay=12)) as built:
        env, ways = built.source.context.env, {}
        for rollout in islice(built.here(), 4):
            for one in of_origin(rollout, Origin.RESAMPLED):
                ways.setdefault(keys(env, one.terminal)[0], set()).add(text(one))
        assert max(len(found) for found in ways.values()) > 2


def test_source_extra_updates_use_separate_streams(tmp_path):
    options = ReplayConfig(warmup=6, num_from_replay=12, num_updates=2)
    with parts(tmp_path, replay=options) as built:
        list(islice(built.here(), 2))
        seen, seeds = built.replay.sample(12, seed=0), []

        class SameStates:
            def add(self, seen, *, keys):
                return len(seen)

            def sample(self, num, *, seed):
                seeds.append(seed)
                return seen

        sources: dict[str, Any] = {"evaluator": built.evaluator, "replay": SameStates()}
        rollouts = [rollout(built.source, step, policy=built.policy, **sources) for step in (4, 5)]
        assert len(seeds) == len(set(seeds)) == 2 * (1 + 2)
        ways = [str([part.tolist() for part in batch.actions.parts]) for r in rollouts for batch in r.replays]
        assert len(ways) == len(set(ways)) == 2 * 2
        ends = {str(keys(built.source.context.env, batch.terminal)) for r in rollouts for batch in r.replays}
        assert len(ends) == 1


def test_source_local_search_proposals_are_scored_and_stored(tmp_path):
    with parts(tmp_path, options=SEARCHES) as built:
        env, known, num_scored = built.source.context.env, set(), 0
        for rollout in islice(built.here(), 3):
            batch = rollout.trajectories
            assert len(rollout.evaluations) == rollout.num_fresh == 6
            assert len(rollout.other_evaluations) == 12
            expected = batch.beta[:18] * (batch.terminal.num_nodes[:18] / 10).log()
            assert torch.allclose(batch.log_reward[:18], expected)
            assert torch.equal(batch.conditioning[6:18], batch.conditioning[:4].repeat(3, 1))
            num_scored += sum(not e.cached for e in (*rollout.evaluations, *rollout.other_evaluations))
            known |= set(keys(env, batch.terminal))
            assert len(batch) == 6 + 12 + (3 if len(known) >= 8 else 0)
            assert 0 <= rollout.metrics["local_search_accepted"] <= 1
            assert rollout.metrics["replay_size"] == len(built.replay) == len(known)
        assert num_scored == built.store.count() == len(known)


def test_source_intermediate_state_rewards(tmp_path):
    with parts(tmp_path, options={"scores_states": True}) as built:
        env = built.source.context.env
        for rollout in islice(built.here(), 2):
            batch = rollout.trajectories
            may_stop = env.forward_masks(batch.states).masks[GraphActionType.Stop].flatten(1).any(1)
            expected = batch.beta[batch.trajectory] * (batch.states.num_nodes / 10).log()
            assert bool((~may_stop).any())
            assert torch.allclose(batch.state_log_reward, torch.where(may_stop, expected, 0.0))
        met = set(keys(env, batch.states[may_stop]))
        assert built.store.count() >= len(met)


@pytest.mark.parametrize(
    ("transport", "dense"), [("buffer", True), pytest.param("pickle", False, marks=pytest.mark.slow)]
)
def test_worker_samples_of_a_two_way_policy(tmp_path, transport, dense):
    with (
        parts(tmp_path / "here", two_way=True, dense=dense) as here,
        parts(tmp_path / "there", two_way=True, dense=dense) as there,
        closing(there.of_workers(transport)) as stream,
    ):
        for ours, theirs in zip(islice(stream, 2), here.sampled_here(), strict=False):
            assert_same_tensors(ours, theirs)


def test_replay_state_dict_keeps_action_sequences(tmp_path):
    with parts(tmp_path, replay=REMEMBERS) as built, parts(tmp_path / "again", replay=REMEMBERS) as again:
        rollouts = list(islice(built.here(), 3))
        torch.save(built.replay.state_dict(), tmp_path / "buffer")
        again.replay.load_state_dict(torch.load(tmp_path / "buffer", weights_only=True))
        ours, theirs = again.replay.sample(20, seed=1), built.replay.sample(20, seed=1)
        assert ours is not None
        assert theirs is not None
        assert [e.score for e in rollouts[0].evaluations]
        assert walked(again, ours) == walked(built, theirs)


def walked(built: Parts, seen: SeenStates) -> list[str]:
    assert seen.sequences is not None
    conditioning = built.source.task.sample_conditioning(len(seen), generator=torch.Generator().manual_seed(0))
    batch = seen.sequences.walk(built.source.context.env, conditioning=conditioning, origin=Origin.REMEMBERED)
    assert keys(built.source.context.env, batch.terminal) == keys(built.source.context.env, seen.terminal)
    return [text(batch[i]) for i in range(len(batch))]


def undirected() -> GraphBuildingEnvContext:
    return GraphBuildingEnvContext(ENVIRONMENTS["undirected"](), num_cond_dim=4)


PATH = ColouredGraph(("a|", "b|", "a|"), {(0, 1): "edge||0", (1, 2): "edge||0"}, directed=False)
EDGE = ColouredGraph(("b|", "b|"), {(0, 1): "edge||0"}, directed=False)


def written(folder, *lines: object) -> str:
    (folder / "graphs.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return str(folder / "graphs.jsonl")


@pytest.mark.parametrize("two_way", [False, True])
def test_source_offline_graphs_uniform(tmp_path, two_way):
    entries = [{"graph": PATH.to_dict(), "score": 0.5}, {"graph": EDGE.to_dict(), "score": 0.25, "more": "ignored"}]
    config = OfflineConfig(path=written(tmp_path, *entries), num=40)
    offline = load_offline(config, undirected(), CountsNodes(Config()))
    replay = ReplayConfig(warmup=6, num_from_replay=3)
    with parts(tmp_path, replay=replay, two_way=two_way, offline=offline, options={"offline": config}) as built:
        first, second = islice(built.here(), 2)
        env, batch = built.source.context.env, first.trajectories
        given = batch.split(1)[0].terminal[torch.arange(len(batch) - 40, len(batch))]  # after 3 of a filled replay
        found = keys(env, given)
        assert set(found) == {PATH.canonical_key(), EDGE.canonical_key()}
        assert 8 < found.count(PATH.canonical_key()) < 32
        scores = torch.tensor([0.5 if key == PATH.canonical_key() else 0.25 for key in found])
        assert torch.allclose(batch.log_reward[-40:], batch.beta[-40:] * scores.log())
        assert batch.origin[-40:].tolist() == [int(Origin.RESAMPLED)] * 40
        assert len(built.replay) <= 12, "what is given is not what was found"
        assert len(second.trajectories) == 6 + 3 + 40
        firsts = [text(batch[i]) for i in range(len(batch) - 40, len(batch) - 26)]
        assert firsts != [text(second.trajectories[i]) for i in range(9, 23)]


def test_load_offline_reads_report_file(tmp_path):
    path = tmp_path / "top_architectures.json"
    path.write_text(json.dumps([{"rank": 0, "graph": PATH.to_dict(), "validation_score": 0.75}], indent=1))
    seen = load_offline(OfflineConfig(path=str(path)), undirected(), CountsNodes(Config()))
    assert seen is not None
    assert seen.scores.tolist() == [0.75]
    assert keys(undirected().env, seen.terminal) == [PATH.canonical_key()]


RED = ColouredGraph(("red|",), {}, directed=False)
APART = ColouredGraph(("a|", "a|"), {}, directed=False)
LARGE = ColouredGraph(("a|",) * 5, {(i, i + 1): "edge||0" for i in range(4)}, directed=False)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"graph": RED.to_dict(), "score": 1.0}, r"expected a node type out of \['a', 'b'\], got 'red'"),
        ({"graph": APART.to_dict(), "score": 1.0}, "expected a graph that can be built, got one that cannot"),
        ({"graph": LARGE.to_dict(), "score": 1.0}, "expected at most 4 nodes, got 5"),
        ({"graph": ColouredGraph(("a|",), {}).to_dict(), "score": 1.0}, "expected directed False, got True"),
        ({"graph": EDGE.to_dict()}, "expected a field 'score'"),
        ({"graph": EDGE.to_dict(), "score": -1.0}, "expected a finite score >= 0, got -1.0"),
        ({"score": 1.0}, "expected a field 'graph'"),
        ({"graph": {"nodes": []}, "score": 1.0}, "graph: expected an object with a list of edges, got .*"),
        (7, "expected an object, got 7"),
    ],
)
def test_load_offline_invalid_graph_raises_with_line(tmp_path, entry, reason):
    path = written(tmp_path, {"graph": EDGE.to_dict(), "score": 1.0}, entry)
    with pytest.raises(UserError, match=f"^offline.path: .*graphs.jsonl, line 2: {reason}$"):
        load_offline(OfflineConfig(path=path), undirected(), CountsNodes(Config()))


def test_load_offline_unreadable_file_raises(tmp_path):
    task = CountsNodes(Config())
    with pytest.raises(UserError, match=r"offline.path: expected a file of graphs, got .*none"):
        load_offline(OfflineConfig(path=str(tmp_path / "none")), undirected(), task)
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(UserError, match="expected at least one graph"):
        load_offline(OfflineConfig(path=str(tmp_path / "empty")), undirected(), task)
    (tmp_path / "broken").write_text("{")
    with pytest.raises(UserError, match="expected JSON lines or a JSON list"):
        load_offline(OfflineConfig(path=str(tmp_path / "broken")), undirected(), task)
    assert load_offline(OfflineConfig(), undirected(), task) is None
