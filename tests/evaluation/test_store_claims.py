"""Claims of a store: one owner per graph, leases, attempts; on SQLite and on PostgreSQL."""

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from gflownet.errors import UserError
from gflownet.evaluation.store.claims import Claims
from gflownet.evaluation.store.evaluations import Claim, EvaluationStatus, EvaluationStore, Identity
from tests.evaluation.stub_rows import StubCandidate, record

LEASE = 30.0
# Claims every graph of a list in batches, prints those that it was granted, and adds rows that others add, too.
CLAIMANT = """
import sys
from gflownet.evaluation.store.evaluations import EvaluationStore, Identity
from tests.evaluation.stub_rows import StubCandidate, record
url, owner, num = sys.argv[1], sys.argv[2], int(sys.argv[3])
with EvaluationStore(url) as store:
    for start in range(0, num, 16):
        candidates = [StubCandidate(str(i)) for i in range(start, min(start + 16, num))]
        claims = store.claim([(each, Identity.of(each)) for each in candidates], owner=owner, run=owner, step=1,
            lease=30.0, max_attempts=2)
        store.add([record(claim.identity.key, run=owner) for claim in claims] + [record(f"shared {start}")])
        store.renew(owner=owner, lease=30.0)
        print("\\n".join(claim.identity.key for claim in claims), flush=True)
"""


@pytest.fixture
def store(database: str) -> Iterator[EvaluationStore]:
    with EvaluationStore(database) as store:
        yield store


def claim(store: EvaluationStore, *keys: str, owner: str = "me", **options: Any) -> list[tuple[str, int]]:
    """Claim stub candidates, and return the keys of the granted ones with their earlier attempts."""
    arguments = {"run": f"run of {owner}", "step": 1, "lease": LEASE, "max_attempts": 2, **options}
    candidates = [(StubCandidate(key), Identity.of(StubCandidate(key))) for key in keys]
    return [(each.identity.key, each.attempts) for each in store.claim(candidates, owner=owner, **arguments)]


def test_claim_new_graphs(store: EvaluationStore) -> None:
    assert claim(store) == []
    assert claim(store, "b", "a") == [("b", 0), ("a", 0)]
    assert claim(store, "a") == [("a", 0)]
    assert store.find(StubCandidate("a")) is None
    assert (store.count(), store.count(EvaluationStatus.RUNNING), store.top(3)) == (0, 2, [])


def test_claim_by_another_owner_is_refused_until_the_lease_ends(store: EvaluationStore) -> None:
    claim(store, "a", lease=0.0)
    claim(store, "b")
    assert claim(store, "a", "b", "c", owner="other") == [("a", 1), ("c", 0)]
    assert claim(store, "a", "c") == []


def test_fidelities_and_seeds_are_separate_rows(store: EvaluationStore) -> None:
    candidate = StubCandidate("a")
    identities = [Identity.of(candidate, fidelity=fidelity, seed=seed) for fidelity in (0, 3) for seed in (0, 1)]
    claims = store.claim(
        [(candidate, identity) for identity in identities], owner="me", run="r", step=1, lease=LEASE, max_attempts=2
    )
    assert claims == [Claim(identity, 0) for identity in identities]
    scores = (0.1, 0.9, 0.8, 0.7)
    fields = [
        {"score": score, "fidelity": each.fidelity, "seed": each.seed}
        for score, each in zip(scores, identities, strict=True)
    ]
    store.add([record("a", curve=(0.1, 0.5), **each) for each in fields])
    rows = store.find_many(identities)
    assert [row and row.score for row in rows] == [0.1, 0.9, 0.8, 0.7]
    assert [row.score for row in store.top(5)] == [0.1]
    assert rows[1] is not None
    assert (rows[1].identity, rows[1].curve) == (identities[1], (0.1, 0.5))


def test_finished_rows_are_not_claimed(store: EvaluationStore) -> None:
    store.add([record("a"), record("b", status=EvaluationStatus.FAILED)])
    assert claim(store, "a", "b", "c") == [("c", 0)]


def test_result_completes_the_claim_and_stays(store: EvaluationStore) -> None:
    claim(store, "a")
    store.add([record("a", score=0.25)])
    store.add([record("a", score=0.5)])
    row = store.find(StubCandidate("a"))
    assert row is not None
    assert row.score == 0.25
    assert store.count(EvaluationStatus.RUNNING) == store.renew(owner="me", lease=LEASE) == 0


def test_late_result_counts_while_the_row_is_open(store: EvaluationStore) -> None:
    claim(store, "a", lease=0.0)
    assert claim(store, "a", owner="other") == [("a", 1)]
    store.add([record("a", score=0.25, run="run of me")])
    assert store.find(StubCandidate("a")) is not None
    assert store.release(owner="other") == 0


def test_renewed_lease_is_kept(store: EvaluationStore) -> None:
    claim(store, "a", "b", lease=0.0)
    assert store.renew(owner="me", lease=LEASE) == 2
    assert claim(store, "a", "b", owner="other") == []


def test_released_claims_are_no_attempts(store: EvaluationStore) -> None:
    claim(store, "a", lease=0.0)
    claim(store, "a", "b", owner="other")
    store.start([Identity.of(StubCandidate("a"))], owner="other")
    assert store.release(owner="other") == 2
    assert claim(store, "b", "a", owner="third") == [("b", 0), ("a", 1)]


def test_requeue_frees_the_claims_of_a_run(store: EvaluationStore) -> None:
    claim(store, "a", run="ours")
    claim(store, "b", run="another")
    assert store.requeue(run="ours") == 1
    assert claim(store, "a", "b", owner="resumed", run="ours") == [("a", 1)]


def test_abandon_deletes_the_claims_of_ended_processes(store: EvaluationStore) -> None:
    claim(store, "expired", lease=0.0, run="ours")
    claim(store, "freed", owner="killed", run="ours")
    store.requeue(run="ours")
    claim(store, "live", run="ours")
    claim(store, "another", lease=0.0, run="another")
    store.add([record("finished", run="ours")])
    assert store.abandon(run="ours") == 2
    assert (store.count(), store.count(EvaluationStatus.RUNNING)) == (1, 2)
    assert claim(store, "live", "expired", "another", owner="other") == [("expired", 0), ("another", 1)]


def test_lost_processes_do_not_count_where_candidates_are_isolated(store: EvaluationStore) -> None:
    lost = []
    for owner in ("first", "second", "third"):
        claims = Claims(store, run="ours", lease=LEASE, max_attempts=2, counts_lost=False)
        lost.append(claims)
        candidate = StubCandidate("a")
        assert claims.take([(candidate, Identity.of(candidate))], step=1) == {Identity.of(candidate): 0}, owner
        claims.start(Identity.of(candidate))
        store.requeue(run="ours")
    assert claim(store, "a", owner="inline", run="ours") == [("a", 0)]
    store.requeue(run="ours")
    assert claim(store, "a", owner="inline again", run="ours") == [("a", 1)]
    for claims in lost:
        claims.release()


def test_refused_result_does_not_replace_a_claim(store: EvaluationStore) -> None:
    claim(store, "running")
    store.add([record("finished", score=0.25), record("refused", status=EvaluationStatus.REFUSED, step=1)])
    names = ("running", "finished", "refused", "new")
    store.add([record(name, status=EvaluationStatus.REFUSED, step=2) for name in names])
    assert claim(store, "running", owner="other") == []
    rows = [row and (row.status, row.step) for row in map(store.find, map(StubCandidate, names))]
    refused = (EvaluationStatus.REFUSED, 2)
    assert rows == [None, (EvaluationStatus.OK, 1), refused, refused]
    store.add([record("running", score=0.75)])
    assert [row.score for row in store.top(1)] == [0.75]


def test_heartbeat_survives_any_error(
    store: EvaluationStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    errors: list[Exception] = [RuntimeError("two\nlines"), UserError("the disk is full")]
    is_renewed = threading.Event()
    renew = store.renew

    def fail_twice(*, owner: str, lease: float) -> int:
        if errors:
            raise errors.pop(0)
        num = renew(owner=owner, lease=lease)
        is_renewed.set()
        return num

    monkeypatch.setattr(store, "renew", fail_twice)
    claims = Claims(store, run="ours", lease=0.05, max_attempts=2)
    candidate = StubCandidate("a")
    claims.take([(candidate, Identity.of(candidate))], step=1)
    assert is_renewed.wait(60.0)
    claims.release()
    start = "claims of evaluations cannot be renewed:"
    assert caplog.messages == [f"{start} RuntimeError: two lines", f"{start} the disk is full"]
    assert store.count(EvaluationStatus.RUNNING) == 0


def test_attempts_of_ended_processes_count_when_started(store: EvaluationStore) -> None:
    """Of two graphs in a lost batch, only the one that was started alone has a second attempt."""
    claim(store, "a", "b", run="ours")
    store.requeue(run="ours")
    assert claim(store, "a", "b", owner="second", run="ours") == [("a", 1), ("b", 1)]
    store.start([Identity.of(StubCandidate("a"))], owner="second")
    store.requeue(run="ours")
    assert claim(store, "a", "b", owner="third", run="ours") == [("a", 2), ("b", 1)]


@pytest.mark.parametrize(
    ("fields", "same_run", "other_run"),
    [
        ({"status": EvaluationStatus.FAILED}, None, None),
        ({"status": EvaluationStatus.CRASHED, "is_transient": True, "attempts": 1}, 1, 1),
        ({"status": EvaluationStatus.CRASHED, "is_transient": True, "attempts": 2}, None, None),
        ({"status": EvaluationStatus.TIMEOUT, "is_transient": True, "attempts": 2}, None, None),
        ({"status": EvaluationStatus.OUT_OF_MEMORY, "is_transient": True, "attempts": 2}, None, 0),
        ({"status": EvaluationStatus.FAILED, "is_transient": True, "attempts": 2}, None, 0),
        ({"status": EvaluationStatus.FAILED, "is_transient": True, "attempts": 1}, 1, 1),
    ],
)
def test_transient_failures_are_claimed_again(
    store: EvaluationStore, fields: dict[str, Any], same_run: int | None, other_run: int | None
) -> None:
    for run, attempts in (("first", same_run), ("second", other_run)):
        row = record(run, run="first", **fields)
        store.add([row])
        assert claim(store, run, run=run) == ([] if attempts is None else [(run, attempts)])
        assert row.may_be_retried(run=run, max_attempts=2) is (attempts is not None)


def test_refused_rows_are_claimed_again(store: EvaluationStore) -> None:
    store.add([record("a", status=EvaluationStatus.REFUSED)])
    assert claim(store, "a") == [("a", 0)]
    store.add([record("a", score=0.75)])
    assert [row.score for row in store.top(1)] == [0.75]


def test_iteration_and_counts_by_run(store: EvaluationStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gflownet.evaluation.store.evaluations._CHUNK", 3)
    rows = [record(str(i), run="ab"[i % 2]) for i in range(7)]
    store.add(rows)
    claim(store, "running")
    assert sorted(row.key for row in store) == [row.key for row in rows]
    assert (store.count(), store.count(run="a"), store.count(EvaluationStatus.OK, run="b")) == (7, 4, 3)
    assert store.num_by_context() == {"": 7}


def test_threads_share_a_store(store: EvaluationStore) -> None:
    claim(store, *map(str, range(15)))
    stopped = threading.Event()

    def renew() -> None:
        while not stopped.is_set():
            store.renew(owner="me", lease=LEASE)

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        for i in range(15):
            store.add([record(str(i))])
    finally:
        stopped.set()
        thread.join()
    assert store.count() == 15


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)], indirect=True)
def test_several_processes_claim_every_graph_once(database: str) -> None:
    EvaluationStore(database).close()
    commands = [[sys.executable, "-c", CLAIMANT, database, f"owner {i}", "64"] for i in range(2)]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for command in commands
    ]
    results = [process.communicate(timeout=60) for process in processes]
    assert [errors for _, errors in results] == [""] * 2
    granted = Counter(key for output, _ in results for key in output.split())
    assert (len(granted), set(granted.values())) == (64, {1})
    with EvaluationStore(database) as store:
        assert (store.count(), store.count(EvaluationStatus.RUNNING)) == (64 + 4, 0)
