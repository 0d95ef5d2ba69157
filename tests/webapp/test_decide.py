"""The pure decision: who gets which devices."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from experiments.records import DeviceFacts
from webapp.runs.scheduling import Device, Job, Place, Snapshot, decide, explain

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def gpu(index: int) -> Device:
    return Device(f"cuda:{index}", "cuda", frozenset({f"cuda:{index}"}))


def cpu(*cores: int, index: int = 0) -> Device:
    return Device.of(DeviceFacts(name=f"cpu:{index}", kind="cpu", model="m", cores=cores))


def job(number: int, count: int = 1, priority: int = 50, kind: str = "cuda", **labels: str) -> Job:
    return Job(number, priority, NOON + timedelta(seconds=number), kind, count, labels)


def test_priority_comes_before_age() -> None:
    place = Place("w", "h", (gpu(0),))
    [first] = decide(Snapshot((place,), frozenset(), (job(1), job(2, priority=90))))
    assert first.job == 2


def test_of_equal_priority_the_oldest_goes_first() -> None:
    place = Place("w", "h", (gpu(0),))
    [first] = decide(Snapshot((place,), frozenset(), (job(3), job(2), job(5))))
    assert first.job == 2


def test_a_gang_gets_all_its_devices_on_one_worker_or_none() -> None:
    two_hosts = (Place("a", "h1", (gpu(0),)), Place("b", "h2", (gpu(0),)))
    decision = explain(Snapshot(two_hosts, frozenset(), (job(1, count=2),)))
    assert decision.assignments == ()
    assert decision.reasons[1] == "needs 2 cuda devices on one worker; the largest has 1"


def test_a_waiting_gang_is_not_starved_by_small_jobs_behind_it() -> None:
    place = Place("w", "h", (gpu(0), gpu(1)))
    decision = explain(Snapshot((place,), frozenset({("h", "cuda:0")}), (job(1, count=2), job(2))))
    assert decision.assignments == ()
    assert "kept for a larger experiment" in decision.reasons[2]


def test_a_small_job_takes_the_tightest_fit() -> None:
    places = (Place("big", "h1", (gpu(0), gpu(1))), Place("small", "h2", (gpu(0),)))
    [first] = decide(Snapshot(places, frozenset(), (job(1),)))
    assert first.worker == "small"


def test_two_workers_of_one_host_never_share_a_core() -> None:
    places = (Place("all", "h", (cpu(0, 1),)), Place("half", "h", (cpu(0, index=0), cpu(1, index=1))))
    given_out = decide(Snapshot(places, frozenset(), tuple(job(n, kind="cpu") for n in range(4))))
    resources = [resource for assignment in given_out for resource in assignment.resources]
    assert sorted(resources) == ["core:0", "core:1"]


def test_labels_choose_the_worker() -> None:
    places = (Place("a", "h1", (gpu(0),)), Place("b", "h2", (gpu(0),), {"gpu": "A100"}))
    [first] = decide(Snapshot(places, frozenset(), (job(1, gpu="A100"),)))
    assert first.worker == "b"
    decision = explain(Snapshot(places, frozenset(), (job(1, gpu="H100"),)))
    assert decision.reasons[1] == "no connected worker has the labels gpu=H100"


def test_each_waiting_job_is_told_why() -> None:
    assert "no worker is connected" in explain(Snapshot((), frozenset(), (job(1),))).reasons[1]
    place = Place("w", "h", (gpu(0),))
    reasons = explain(Snapshot((place,), frozenset(), (job(1), job(2), job(3, kind="cpu")))).reasons
    assert reasons[2] == "waits until 1 cuda device is free; 1 ahead of it"
    assert reasons[3] == "no connected worker has a cpu device"


_jobs = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3), st.sampled_from(["cpu", "cuda"])), max_size=12)
_places = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(0, 4)), max_size=4)


@given(_jobs, _places, st.sets(st.tuples(st.sampled_from(["h0", "h1", "h2"]), st.sampled_from(["cuda:0", "core:1"]))))
def test_no_device_is_ever_given_twice_and_gangs_are_whole(
    jobs: list[tuple[int, int, str]], places: list[tuple[int, int, int]], held: set[tuple[str, str]]
) -> None:
    made = tuple(
        Place(
            f"w{n}",
            f"h{host}",
            (*(gpu(i) for i in range(gpus)), *(cpu(i, index=i) for i in range(cpus))),
        )
        for n, (host, gpus, cpus) in enumerate(places)
    )
    waiting = tuple(Job(n, p, NOON, kind, count) for n, (count, p, kind) in enumerate(jobs))
    decision = explain(Snapshot(made, frozenset(held), waiting))
    taken = [(a.host, resource) for a in decision.assignments for resource in a.resources]
    assert len(taken) == len(set(taken))
    assert not set(taken) & held
    counts = {job.id: job.count for job in waiting}
    assert all(len(a.devices) == counts[a.job] for a in decision.assignments)
    assert {a.job for a in decision.assignments} | set(decision.reasons) == set(counts)
    assert not {a.job for a in decision.assignments} & set(decision.reasons)
