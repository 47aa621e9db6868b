"""Rollouts with replayed trajectories, local search, offline graphs and intermediate rewards."""

import json
from contextlib import closing
from itertools import islice
from typing import Any

import pytest
import torch

from gflownet.data.config import LocalSearchConfig, OfflineConfig, ReplayConfig
from gflownet.data.replay import SeenStates, load_offline
from gflownet.data.source import Rollout
from gflownet.errors import UserError
from gflownet.graphs.canonical import ColouredGraph
from gflownet.mdp.action import GraphActionType
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.trajectory import Origin, Trajectory
from tests.contracts.environments import ENVIRONMENTS
from tests.data.policies import keys
from tests.data.rollouts import Config, CountsNodes, Parts, assert_same, parts

REMEMBERS = ReplayConfig(warmup=6, num_from_replay=12, resample=False)
SEARCHES = {"local_search": LocalSearchConfig(num=4, num_iterations=3, share_back=1.0)}


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
        rollouts = [built.source.rollout(step, policy=built.policy, **sources) for step in (4, 5)]
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


def test_source_local_search_from_replay(tmp_path):
    search = LocalSearchConfig(num=9, num_iterations=1, start="replay", share_back=0.01)
    with parts(tmp_path, options={"local_search": search}) as built:
        sizes = [len(rollout.trajectories) for rollout in islice(built.here(), 4)]
        assert sizes[0] == 6, "the buffer is not warm"
        assert sizes[-1] == 6 + 9 + 3


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
def test_worker_rollouts_with_learned_backward_policy(tmp_path, transport, dense):
    """Replay and a filtered search through a learned P_B, bit for bit as without the worker."""
    search = LocalSearchConfig(num=3, num_iterations=2, accept="metropolis")
    made_of = {"dense": dense, "two_way": True, "replay": ReplayConfig(warmup=4, num_from_replay=3)}
    options = {"local_search": search, "scores_states": True}
    with (
        parts(tmp_path / "here", options=options, **made_of) as here,
        parts(tmp_path / "there", options=options, **made_of) as there,
    ):
        expected = list(islice(here.here(), 2))
        with closing(there.of_workers("buffer")) as stream:
            for rollout in expected:
                assert_same(next(stream), rollout)


@pytest.mark.slow
def test_worker_rollouts_replay_original_trajectories(tmp_path):
    with (
        parts(tmp_path / "here", replay=REMEMBERS, options=SEARCHES) as here,
        parts(tmp_path / "there", replay=REMEMBERS, options=SEARCHES) as there,
    ):
        expected = list(islice(here.here(), 2))
        assert of_origin(expected[-1], Origin.REMEMBERED)
        with closing(there.of_workers("buffer")) as stream:
            for rollout in expected:
                assert_same(next(stream), rollout)


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
    with parts(tmp_path, two_way=two_way, offline=offline, options={"offline": config}) as built:
        first, second = islice(built.here(), 2)
        env, batch = built.source.context.env, first.trajectories
        given = batch.split(1)[0].terminal[torch.arange(6, 46)]
        found = keys(env, given)
        assert set(found) == {PATH.canonical_key(), EDGE.canonical_key()}
        assert 8 < found.count(PATH.canonical_key()) < 32
        scores = torch.tensor([0.5 if key == PATH.canonical_key() else 0.25 for key in found])
        assert torch.allclose(batch.log_reward[6:], batch.beta[6:] * scores.log())
        assert batch.origin[6:].tolist() == [int(Origin.RESAMPLED)] * 40
        assert len(built.replay) <= 12, "what is given is not what was found"
        assert len(second.trajectories) == 6 + 3 + 40
        assert [text(batch[i]) for i in range(6, 20)] != [text(second.trajectories[i]) for i in range(9, 23)]


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
