"""A study as a table and as one sentence."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from experiments.numbers import significant
from experiments.records import (
    ArtifactRecord,
    Environment,
    Failure,
    FailureKind,
    Interval,
    Label,
    Measurement,
    Report,
    StudyReport,
)
from experiments.table import CSV_COLUMNS, neutral, render_csv, render_markdown, render_text
from experiments.verdict import quality, sweet_spot, verdict

OLD_CPU = ("avx2", "fma")


def interval(low: float, high: float) -> Interval:
    return Interval(low=low, high=high, method="bootstrap")


def report(
    name: str = "int8",
    speed: tuple[float, float, float] | None = (1.82, 1.77, 1.88),
    accuracy: float | None = 0.9,
    difference: tuple[float, float, float] | None = None,
    size: int = 1000,
    dtype: str = "float32",
    **changes: Any,
) -> Report:
    found = [Measurement(metric="latency_p50_ms", value=10.0, unit="ms", at={"batch_size": 1})]
    if speed:
        found.append(
            Measurement(
                metric="speedup_p50",
                value=speed[0],
                unit="ratio",
                at={"batch_size": 1},
                interval=interval(speed[1], speed[2]),
            )
        )
    if accuracy is not None:
        found.append(Measurement(metric="accuracy", value=accuracy, unit="fraction"))
    if difference is not None:
        low, high = difference[1:]
        found.append(
            Measurement(metric="accuracy_delta", value=difference[0], unit="fraction", interval=interval(low, high))
        )
    return Report.model_validate(
        {
            "experiment": name,
            "baseline": "fp32",
            "task": "text-classification",
            "spec": {"variant": {"name": name, "recipe": [], "runtime": {"kind": "torch-eager"}}},
            "status": "succeeded",
            "measurements": found,
            "artifact": ArtifactRecord(
                sha256="0",
                form="torch",
                label=Label.DENSE,
                bytes=size,
                files={},
                parameters=1,
                dtype=dtype,
            ),
            "environment": environment(),
            **changes,
        }
    )


def environment() -> Environment:
    return Environment(
        model="m",
        model_sha256="0",
        workload_sha256="0",
        spec_sha256="0",
        code_version="0",
        hostname="h",
        cpu="c",
        isa=OLD_CPU,
        cores=(0,),
        threads=1,
        memory_bytes=1,
        devices=(),
        libraries={},
        python="3",
        platform="linux",
        seed=0,
    )


def failed(name: str = "broken", message: str = "outputs are not finite") -> Report:
    failure = Failure(kind=FailureKind.CANARY, message=message)
    return report(name, status="failed", failure=failure, measurements=(), artifact=None)


def study(*reports: Report, name: str = "a study") -> StudyReport:
    made = StudyReport(
        name=name,
        baseline="fp32",
        spec={"workload": {"batch_sizes": [1, 8]}},
        experiments=(report("fp32", speed=(1.0, 0.97, 1.03), size=4000), *reports),
    )
    return made.model_copy(update={"verdict": verdict(made)})


def best(*reports: Report) -> str | None:
    found = sweet_spot(study(*reports))
    return found.experiment if found else None


def test_the_sweet_spot_is_the_fastest_that_keeps_its_quality() -> None:
    assert best(report("a", (1.5, 1.4, 1.6)), report("b", (2.0, 1.9, 2.1)), report("c", (3, 2.9, 3.1), 0.7)) == "b"


def test_faster_needs_an_interval_that_leaves_out_one() -> None:
    assert best(report("a", (1.05, 0.99, 1.1))) is None
    assert best(report("a", None)) is None


def test_a_drop_that_cant_be_told_apart_is_kept_and_one_that_can_is_not() -> None:
    assert best(report("a", accuracy=0.88, difference=(-0.02, -0.05, 0.01))) == "a"
    assert best(report("a", accuracy=0.88, difference=(-0.02, -0.03, -0.01))) is None
    assert best(report("a", accuracy=0.895, difference=(-0.005, -0.007, -0.001))) == "a"


def test_an_undefined_score_is_never_kept_quality() -> None:
    missing = Measurement(metric="accuracy", value=None, unit="fraction", reason="no rows")
    odd = report("a", accuracy=None)
    assert best(odd.model_copy(update={"measurements": (*odd.measurements, missing)})) is None


def test_perplexity_counts_downwards() -> None:
    def with_perplexity(name: str, value: float) -> Report:
        made = report(name, accuracy=None)
        score = Measurement(metric="perplexity", value=value, unit="")
        return made.model_copy(update={"measurements": (*made.measurements, score)})

    def of(candidate: Report) -> StudyReport:
        return StudyReport(name="s", baseline="fp32", spec={}, experiments=(with_perplexity("fp32", 24.0), candidate))

    worse = of(with_perplexity("int8", 64.8))
    assert sweet_spot(worse) is None
    found = quality(worse.experiments[1], worse)
    assert found is not None
    assert found.drop == pytest.approx(40.8)
    assert "170 %" in verdict(worse)
    little = of(with_perplexity("int8", 24.1))
    assert sweet_spot(little) is not None
    assert "its perplexity rises by only 0.417 %" in verdict(little)


def test_a_difference_too_small_to_print_is_not_called_a_drop() -> None:
    text = verdict(study(report(accuracy=0.9 - 1e-9, difference=(-1e-9, -2e-9, -1e-10))))
    assert "its accuracy is the same (0.900)" in text


def test_the_verdict_is_a_sentence_to_repeat() -> None:
    text = verdict(study(report(accuracy=0.896, difference=(-0.004, -0.02, 0.01), size=1000)))
    assert text == (
        "int8 is 1.82x [1.77, 1.88] as fast as fp32, 25.0 % of its size, "
        "and its accuracy can't be told apart (0.896 against 0.900)."
    )


def test_the_verdict_says_why_half_precision_is_slower() -> None:
    text = verdict(study(report("fp16", (0.11, 0.1, 0.12), dtype="float16")))
    assert text.startswith("Nothing is faster than fp32 beyond the noise. fp16 (0.110x) is slower: this CPU has no ")


def test_the_verdict_says_what_speed_costs() -> None:
    text = verdict(study(report(accuracy=0.8, difference=(-0.1, -0.13, -0.07))))
    assert "int8 is fastest at 1.82x [1.77, 1.88] fp32, but it costs 10.0 points of accuracy" in text


def test_the_verdict_warns_of_a_busy_machine() -> None:
    busy = StudyReport(
        name="s", baseline="fp32", spec={}, experiments=(report("fp32", speed=(1.4, 0.43, 4.6)), report())
    )
    assert verdict(busy).endswith(" Noisy: fp32 against itself spans 0.430x to 4.60x; repeat it on a quiet machine.")
    assert "Noisy" not in verdict(study(report()))


def test_the_verdict_names_what_has_no_result() -> None:
    assert verdict(study(report(), failed())).endswith("No result: broken.")
    gone = StudyReport(name="s", baseline="fp32", spec={}, experiments=(failed("fp32"), report()))
    assert verdict(gone) == "No comparison: the baseline fp32 did not succeed (outputs are not finite)."
    assert "nothing to compare" in verdict(study())


def test_the_text_table_has_a_row_for_each_and_says_why_one_failed() -> None:
    text = render_text(study(report(), failed()))
    lines = text.splitlines()
    assert "speed-up [95 %]" in lines[2]
    assert any(line.startswith("int8 *") and "1.82x [1.77, 1.88]" in line for line in lines)
    assert "broken: canary: outputs are not finite" in lines
    assert any(line.startswith("noise floor: fp32 against itself is 1.00x [0.970, 1.03]") for line in lines)


def test_a_name_can_neither_break_the_markdown_nor_run_in_it() -> None:
    evil = "<img src=x onerror=alert(1)> | `x` [a](http://b)"
    text = render_markdown(study(report(evil), name=evil))
    assert "<img" not in text
    [row] = [line for line in text.splitlines() if "onerror" in line and line.startswith("|")]
    assert row.replace("\\|", "").count("|") == render_markdown(study()).splitlines()[4].count("|")
    assert "\\[a\\](http://b)" in text


def test_a_terminal_gets_no_control_sequences() -> None:
    assert "\x1b" not in render_text(study(report("\x1b[31mred"), name="a\x1bb"))


@pytest.mark.parametrize("name", ['=HYPERLINK("http://x","y")', "@SUM(1)", "-1+cmd", "+1", "\tx", "  =1"])
def test_a_spreadsheet_runs_no_name_as_a_formula(name: str) -> None:
    """FC-105: text is neutralised, numbers stay numbers."""
    odd = report(name)
    negative = Measurement(metric="accuracy_delta", value=-0.5, unit="fraction", note="=1+1")
    odd = odd.model_copy(update={"measurements": (negative,)})
    rows = list(csv.DictReader(io.StringIO(render_csv(study(odd)))))
    [row] = [row for row in rows if row["metric"] == "accuracy_delta"]
    assert row["experiment"] == f"'{name}"
    assert row["note"] == "'=1+1"
    assert (row["value"], float(row["value"])) == ("-0.5", -0.5)


def test_the_csv_has_every_measurement_in_full_and_failures_with_their_reason() -> None:
    rows = list(csv.DictReader(io.StringIO(render_csv(study(report(speed=(1 / 3, 0.1, 0.5)), failed())))))
    assert tuple(rows[0]) == CSV_COLUMNS
    assert {row["value"] for row in rows if row["metric"] == "speedup_p50"} == {"1.0", repr(1 / 3)}
    assert [row["reason"] for row in rows if row["experiment"] == "broken"] == ["outputs are not finite"]


def test_plain_text_is_left_alone() -> None:
    assert neutral("fp32 -> int8") == "fp32 -> int8"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.8249, "1.82"),
        (104.2, "104"),
        (1143.4, "1,143"),
        (0.00421, "0.00421"),
        (3.14e-9, "3.1e-09"),
        (9.999, "10.0"),
        (0, "0"),
        (-0.5, "-0.500"),
        (None, "undefined"),
        (float("nan"), "undefined"),
    ],
)
def test_numbers_have_three_significant_digits(value: float | None, text: str) -> None:
    assert significant(value) == text
