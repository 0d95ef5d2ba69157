"""Latency, generation, share of the limit and cost."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.metrics.cost import RequestCost, TokenCost
from experiments.metrics.generation import Generation
from experiments.metrics.latency import Latency
from experiments.metrics.limit import Limit
from experiments.parts import prices
from experiments.parts.readings import paired_note
from experiments.protocols import Metric, Observations
from experiments.records import DeviceFacts, Interval, Measurement
from experiments.stats import Undefined
from tests.experiments.metrics.observed import artifact, blocks, ceilings, cpu, generated, observations, spec


def by_name(metric: Metric, seen: Observations) -> dict[str, Measurement]:
    return {m.metric: m for m in metric.measure(seen)}


def test_661_samples_give_no_p99_and_662_do() -> None:
    for n, expected in ((661, None), (662, 6.0)):
        found = by_name(Latency(), observations(blocks=blocks([[5.0] * n], [[6.0] * n])))
        assert found["latency_p99_ms"].value == expected
        assert found["latency_p99_ms"].reason == (None if expected else "insufficient (661 of 662)")
        assert found["latency_p95_ms"].value == 6.0


def test_all_samples_are_kept_and_the_closed_loop_is_said() -> None:
    times = [[4.0, 5.0], [6.0, 7.0]]
    found = by_name(Latency(), observations(blocks=blocks([[9.0, 9.0]] * 2, times)))
    p50 = found["latency_p50_ms"]
    assert p50.samples == (4.0, 5.0, 6.0, 7.0)
    assert (p50.value, p50.n, p50.unit) == (5.5, 4, "ms")
    assert p50.at == {"batch_size": 1, "sequence_length": 16}
    assert "closed loop" in (p50.note or "")
    assert found["latency_p90_ms"].samples is None
    assert found["latency_p90_ms"].reason == "insufficient (4 of 64)"


def test_throughput_counts_samples_not_calls() -> None:
    experiment = spec(workload={"batch_sizes": [8], "sequence_length": 16})
    found = by_name(Latency(), observations(experiment, blocks=blocks([[20.0] * 5] * 8, [[10.0] * 5] * 8, 8)))
    assert found["throughput_samples_per_s"].value == pytest.approx(800)
    assert found["speedup_p50"].value == pytest.approx(2)
    assert found["speedup_p50"].note == "faster"


def test_every_batch_size_has_its_own_point() -> None:
    experiment = spec(workload={"batch_sizes": [1, 4], "sequence_length": 16})
    timed = (*blocks([[5.0]], [[4.0]], 1), *blocks([[9.0]], [[8.0]], 4))
    made = Latency().measure(observations(experiment, blocks=timed))
    medians = {m.at["batch_size"]: m.value for m in made if m.metric == "latency_p50_ms"}
    assert medians == {1: 4.0, 4: 8.0}


def test_the_baselines_own_ratio_is_the_noise_floor() -> None:
    rng = np.random.default_rng(0)
    timed = blocks(rng.uniform(9, 10, (10, 5)).tolist(), rng.uniform(9, 10, (10, 5)).tolist())
    ratio = by_name(Latency(), observations(spec(candidate="base"), blocks=timed))["speedup_p50"]
    assert ratio.interval is not None
    assert ratio.interval.contains(1)
    assert "noise floor" in (ratio.note or "")


def test_without_a_baseline_the_candidate_keeps_its_own_numbers() -> None:
    alone = tuple(b for b in blocks([[5.0]] * 3, [[4.0]] * 3) if b.side == "candidate")
    found = by_name(Latency(), observations(blocks=alone))
    assert found["latency_p50_ms"].value == 4.0
    assert found["speedup_p50"].value is None
    assert "unpaired" in (found["speedup_p50"].reason or "")


def test_a_slower_narrow_format_says_why_where_the_cpu_lacks_the_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.parts.readings.isa", lambda: ("avx2", "fma"))
    slower, wide = Interval(low=0.1, high=0.2, method=""), Interval(low=0.9, high=1.2, method="")
    seen = observations(dtype="bfloat16")
    assert paired_note(seen, slower).startswith("slower; this CPU has no bf16 units")
    assert paired_note(seen, wide) == "not distinguishable"
    assert paired_note(observations(dtype="float32"), slower) == "slower"


# --- generation --------------------------------------------------------------------------------------------------


def generation(tokens: int = 5, **more: object) -> Observations:
    timed = tuple(
        generated(side, pair, 3, 50, tpot, tokens)
        for pair in range(8)
        for side, tpot in (("baseline", 20.0), ("candidate", 10.0))
    )
    return observations(spec(task="text-generation"), blocks=timed, **more)


def test_generation_follows_the_definitions() -> None:
    found = by_name(Generation(), generation())
    assert found["ttft_ms"].value == pytest.approx(50)
    assert found["tpot_ms"].value == pytest.approx(10)
    assert found["itl_ms"].value == pytest.approx(10)
    assert found["output_tokens_per_s"].value == pytest.approx(5 / 0.090)
    assert found["speedup_tpot"].value == pytest.approx(2)
    assert found["ttft_ms"].at == {"batch_size": 1, "sequence_length": 16, "new_tokens": 5}
    assert found["tpot_ms"].samples is not None
    assert len(found["tpot_ms"].samples) == 24


def test_one_token_has_no_time_per_token() -> None:
    found = by_name(Generation(), generation(tokens=1))
    assert found["tpot_ms"].value is None
    assert found["tpot_ms"].reason == "fewer than two tokens were generated"
    assert found["ttft_ms"].value == pytest.approx(50)


def test_a_candidate_that_generates_nothing_is_not_fast() -> None:
    """FC-053."""
    timed = tuple(
        generated(side, pair, 3, 0.3, 0.0, tokens)
        for pair in range(8)
        for side, tokens in (("baseline", 5), ("candidate", 0))
    )
    seen = observations(spec(task="text-generation"), blocks=timed, devices=cpu(), ceilings=ceilings())
    for metric in (Latency(), Generation(), TokenCost(), RequestCost(), Limit()):
        for measurement in metric.measure(seen):
            assert measurement.value is None, measurement
            assert measurement.reason


# --- share of the limit ------------------------------------------------------------------------------------------


def test_the_nearer_ceiling_is_named() -> None:
    timed = blocks([[10.0]] * 3, [[10.0]] * 3)
    seen = observations(
        blocks=timed, weights_bytes=20_000_000, work={"flops_per_sample": 5e8}, ceilings=ceilings(1e10, float32=1e11)
    )
    share = Limit().measure(seen)[0]
    assert share.value == pytest.approx(0.5)  # 5 ms of products against 2 ms of reading, in 10 ms
    assert "nearer ceiling: float32 matrix products" in (share.note or "")


def test_decoding_is_held_against_reading_the_weights_once_a_token() -> None:
    seen = generation(weights_bytes=50_000_000, artifact=artifact(parameters=1000), ceilings=ceilings(1e10))
    share = Limit().measure(seen)[0]
    assert share.value == pytest.approx(0.5)
    assert "nearer ceiling: memory bandwidth" in (share.note or "")


def test_a_ceiling_that_was_exceeded_is_no_limit_and_gives_no_share() -> None:
    seen = observations(blocks=blocks([[1.0]], [[1.0]]), weights_bytes=40_000_000, ceilings=ceilings(1e10))
    share = Limit().measure(seen)[0]
    assert share.value is None
    assert share.reason == "above the measured ceiling"
    assert "allows 4 ms" in (share.note or "")


# --- cost --------------------------------------------------------------------------------------------------------


def test_cost_is_price_over_throughput() -> None:
    experiment = spec(price={"usd_per_hour": 3.6, "source": "our contract"})
    found = RequestCost().measure(observations(experiment, blocks=blocks([[10.0] * 4] * 8, [[10.0] * 4] * 8)))[0]
    assert found.value == pytest.approx(0.01)  # 0.001 USD/s, 100 requests/s
    assert "our contract" in (found.note or "")
    assert "best closed-loop throughput, batch 1" in (found.note or "")


def test_cost_of_tokens_counts_output_tokens() -> None:
    seen = generation()
    seen.spec = spec(task="text-generation", price={"usd_per_hour": 3.6})
    found = TokenCost().measure(seen)[0]
    assert found.value == pytest.approx(0.001 / (5 / 0.090) * 1e6)


def test_the_best_batch_size_is_taken_and_named_unless_it_misses_the_service_level() -> None:
    workload = {"batch_sizes": [1, 8], "sequence_length": 16}
    timed = (*blocks([[10.0] * 4] * 8, [[10.0] * 4] * 8, 1), *blocks([[40.0] * 4] * 8, [[40.0] * 4] * 8, 8))
    free = RequestCost().measure(observations(spec(workload=workload), blocks=timed, devices=cpu()))[0]
    assert "batch 8" in (free.note or "")
    held = RequestCost().measure(
        observations(spec(workload=workload, slo={"latency_p50_ms": 20}), blocks=timed, devices=cpu())
    )[0]
    assert "throughput at the service level, batch 1" in (held.note or "")
    none = RequestCost().measure(
        observations(spec(workload=workload, slo={"latency_p50_ms": 5}), blocks=timed, devices=cpu())
    )[0]
    assert none.value is None
    assert "no batch size meets the service level" in (none.reason or "")


def test_a_tail_that_can_not_be_told_does_not_meet_a_service_level() -> None:
    experiment = spec(slo={"latency_p99_ms": 1000})
    found = RequestCost().measure(observations(experiment, blocks=blocks([[1.0] * 10], [[1.0] * 10]), devices=cpu()))[0]
    assert found.value is None
    assert "insufficient (10 of 662)" in (found.reason or "")


@pytest.mark.parametrize(
    ("name", "usd"),
    [
        ("NVIDIA H200", 7.912),
        ("NVIDIA H100 80GB HBM3", 6.88),
        ("NVIDIA A100-SXM4-40GB", 2.744705),
        ("NVIDIA A100 80GB PCIe", 3.43088),
        ("NVIDIA A10G", 1.006),
        ("NVIDIA L4", 0.805),
        ("NVIDIA L40S", 1.861),
        ("Tesla T4", 0.526),
    ],
)
def test_a_gpu_is_priced_by_its_name(name: str, usd: float) -> None:
    price = prices.price_of((DeviceFacts(name="cuda:0", kind="cuda", model=name),))
    assert isinstance(price, prices.HourlyPrice)
    assert price.usd_per_hour == usd
    assert str(prices.table()["version"]) in price.source


def test_an_unknown_gpu_has_no_price_rather_than_a_wrong_one() -> None:
    price = prices.price_of((DeviceFacts(name="cuda:0", kind="cuda", model="NVIDIA GH200 480GB"),))
    assert isinstance(price, Undefined)
    assert "GH200" in price.reason


def test_a_cpu_costs_by_its_cores() -> None:
    two, four = (prices.price_of(cpu(n)) for n in (2, 4))
    assert isinstance(two, prices.HourlyPrice)
    assert isinstance(four, prices.HourlyPrice)
    assert four.usd_per_hour == pytest.approx(2 * two.usd_per_hour)


def test_the_price_table_says_version_date_and_source() -> None:
    table = prices.table()
    assert table["version"]
    assert table["date"]
    assert table["source"]
    assert table["currency"] == "USD"
