"""How timing is cut into blocks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from experiments.pairing import BLOCKS, MAX_ROUNDS, MIN_ROUNDS, affordable_rounds, schedule
from experiments.spec import Workload

latencies = st.integers(min_value=1_000, max_value=60_000_000_000)


@given(baseline=latencies, candidate=latencies, seconds=st.floats(0.1, 120), samples=st.integers(2, 1000))
def test_each_side_gets_its_samples_and_seconds(baseline: int, candidate: int, seconds: float, samples: int) -> None:
    workload = Workload(min_seconds=seconds, min_samples=samples)
    made = schedule(workload, {"baseline": baseline, "candidate": candidate}, MAX_ROUNDS)
    assert min(MAX_ROUNDS, samples) <= made.rounds <= MAX_ROUNDS
    assert 1 <= made.blocks <= BLOCKS
    for side, latency in (("baseline", baseline), ("candidate", candidate)):
        total = made.rounds * made.blocks * made.requests[side]
        assert total >= samples
        assert total * latency >= seconds * 1e9 * 0.999
        # No more than a request a block too many: time is not wasted either.
        assert total <= max(samples, seconds * 1e9 / latency) + made.rounds * made.blocks + 1


def test_a_slow_side_is_not_settled_a_fast_one_is() -> None:
    made = schedule(Workload(), {"baseline": 1_000_000, "candidate": 2_000_000_000}, MIN_ROUNDS)
    assert made.settle == {"baseline": 1, "candidate": 0}


@given(start=st.floats(0, 1000), seconds=st.floats(0.1, 3600))
def test_rounds_are_even_and_cost_no_more_than_the_timing(start: float, seconds: float) -> None:
    rounds = affordable_rounds(Workload(min_seconds=seconds), start)
    assert rounds % 2 == 0
    assert MIN_ROUNDS <= rounds <= MAX_ROUNDS
    assert rounds == MIN_ROUNDS or rounds * start <= 4 * seconds * 1.001


def test_an_exact_number_of_requests_replaces_what_the_workload_asks_for() -> None:
    alone = schedule(Workload(), {"candidate": 10_000_000}, 1, exactly=50)
    assert alone.rounds * alone.blocks * alone.requests["candidate"] == 50
    paired = schedule(Workload(), {"baseline": 16_000_000, "candidate": 10_000_000}, 4, exactly=20)
    assert paired.requests["baseline"] == paired.requests["candidate"]
    assert 20 <= paired.rounds * paired.blocks * paired.requests["candidate"] <= 24
