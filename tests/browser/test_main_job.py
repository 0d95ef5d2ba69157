"""The main job, start to end, in a real browser against a real server, worker and engine."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from experiments.spec import parse
from tests.browser.conftest import Screen
from tests.browser.watching import Watched

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]


def test_a_study_is_sent_by_the_form_watched_live_and_its_comparison_read(screen: Screen, studied: str) -> None:
    page = screen.open(studied)
    table = page.locator("#experiments")
    expect(table.get_by_role("rowheader", name="fp32")).to_be_visible()
    speedup = table.locator("tr[data-name=int8-dynamic-onnxruntime] td[data-metric=speedup_p50]")
    assert re.search(r"\d(\.\d+)?× \[\d.*, \d.*\]", speedup.inner_text())
    for chart in ("pareto", "latency", "memory", "cost"):
        expect(page.locator(f"[data-chart={chart}] .main-svg").first).to_be_visible()
    page.get_by_text("Data as table").first.click()
    expect(page.locator("[data-table] table").first).to_be_visible()
    assert screen.console.complaints == []


def test_the_study_was_followed_without_a_reload_and_nothing_asks_after_its_end(watched: Watched) -> None:
    """FC-099."""
    assert watched.loads == []
    until_the_end, afterwards = watched.polls
    assert until_the_end >= 3
    assert afterwards == 0


def test_what_a_person_opened_stayed_open_and_its_own_element(watched: Watched) -> None:
    """FC-099."""
    assert watched.kept_open
    assert watched.same_log
    assert any("measure" in line for line in watched.log)
    assert watched.numbers == sorted(set(watched.numbers)), "a line was shown twice or out of order"


def test_a_double_click_made_one_study(screen: Screen, studied: str) -> None:
    """FC-099."""
    page = screen.open("/studies?q=tiny+reviews")
    expect(page.locator("tbody tr").filter(has_text="tiny reviews")).to_have_count(1)


def test_the_axes_the_limits_the_columns_and_the_order_are_in_the_address(screen: Screen, studied: str) -> None:
    page = screen.open(studied)
    expect(page.locator("[data-chart=pareto] .main-svg").first).to_be_visible()
    page.get_by_label("Across").select_option("artifact_bytes")
    expect(page.locator("section[aria-label='Chart of two metrics'] h2")).to_contain_text("Size on disk")
    size = page.locator("#limits input[data-metric=artifact_bytes]")
    size.focus()
    page.keyboard.press("Home")  # the strictest limit
    expect(page.locator("#experiments tr.dim")).to_have_count(1)
    expect(page.locator("#experiments tr.dim")).to_contain_text("misses a limit")
    expect(page.locator("[data-answer]")).to_contain_text("1 of 2 pass")
    page.get_by_role("button", name="Latency p50").click()
    page.get_by_text("Columns", exact=True).click()
    page.get_by_role("checkbox", name="Macro F1").check()
    for part in ("x=artifact_bytes", "limit.artifact_bytes=", "sort=latency_p50_ms%3Aascending", "columns="):
        assert part in page.url
    page.reload()
    expect(page.locator("#experiments tr.dim")).to_have_count(1)
    expect(page.locator("th[data-metric=latency_p50_ms]")).to_have_attribute("aria-sort", "ascending")
    expect(page.locator("th[data-metric=f1_macro]")).to_be_visible()
    page.get_by_label("Differences only").check()
    expect(page.locator("th[data-metric=f1_macro]")).to_be_hidden()  # the tiny model is as good in both
    assert screen.console.complaints == []


def test_a_finished_comparison_is_not_pulled_from_under_a_reader(screen: Screen, studied: str) -> None:
    page = screen.open(studied)
    page.get_by_text("Columns", exact=True).click()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.wait_for_timeout(3_000)
    assert requests == []


def test_an_experiment_is_read_searched_and_run_again(screen: Screen, studied: str) -> None:
    page = screen.open(studied)
    page.locator("#experiments").get_by_role("link", name="int8-dynamic-onnxruntime").click()
    expect(page.locator(".verdict")).to_contain_text("int8-dynamic-onnxruntime")
    expect(page.get_by_role("heading", name="What was changed")).to_be_visible()
    expect(page.locator("main")).to_contain_text("layers quantized")
    page.get_by_role("button", name="Run again").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("replaced by the new ones")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(page.locator("#experiment-status")).to_contain_text("succeeded")
    assert screen.console.complaints == []


def test_the_optimized_model_is_downloaded_with_its_card_and_spec(screen: Screen, studied: str, tmp_path: Path) -> None:
    page = screen.open(studied)
    page.locator("#experiments").get_by_role("link", name="int8-dynamic-onnxruntime").click()
    with page.expect_download() as begun:
        page.get_by_role("link", name=re.compile("^Download, ")).first.click()
    begun.value.save_as(tmp_path / "model.zip")
    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        assert archive.testzip() is None
        folder = "int8-dynamic-onnxruntime"
        names = set(archive.namelist())
        assert {f"{folder}/{name}" for name in ("README.md", "spec.yaml", "model.onnx", "tokenizer.json")} <= names
        assert b"onnxruntime.InferenceSession" in archive.read(f"{folder}/README.md")
        assert [v.name for v in parse(archive.read(f"{folder}/spec.yaml")).experiments] == ["fp32", folder]
    assert screen.console.complaints == []


def test_a_recipe_of_several_steps_is_written_and_moved_by_keyboard(screen: Screen) -> None:
    page = screen.open("/studies/new")
    page.get_by_label("Sequence length").fill("64")
    page.get_by_role("button", name="Add a recipe").press("Enter")
    first = page.locator("#chain-0-0-technique")
    expect(first).to_be_focused()
    first.select_option("int8-dynamic")
    page.locator("#chain-0-0-settings summary").click()
    keep = page.locator("#f-chain-0-0-keep")
    keep.fill("classifier")
    page.get_by_role("button", name="Add a step to recipe 1").press("Enter")
    second = page.locator("#chain-0-1-technique")
    expect(second).to_be_focused()
    second.select_option("prune-magnitude")
    expect(page.locator("#f-chain-0-1-amount")).to_have_count(1)
    expect(page.locator("#chain-0-error")).to_contain_text("prune-magnitude can't come after int8-dynamic")
    expect(page.get_by_role("heading", name="One thing to mend first")).to_be_visible()
    page.get_by_role("button", name="Move step 2 up").press("Enter")
    expect(page.locator("#chain-0-error")).to_be_empty()
    expect(page.get_by_role("button", name="Move step 1 down")).to_be_focused()
    expect(page.locator(".chain select").first).to_have_value("prune-magnitude")
    expect(keep).to_have_value("classifier")
    expect(page.get_by_label("Sequence length")).to_have_value("64")
    expect(page.locator("#yaml")).to_contain_text("name: prune-magnitude-int8-dynamic")
    amount = page.locator("#f-chain-0-1-amount")
    if not amount.is_visible():
        page.locator("#chain-0-1-settings summary").click()
    amount.fill("7")
    expect(page.locator("#f-chain-0-1-amount-error")).to_contain_text("less than")
    page.get_by_role("button", name="Remove step 1").press("Enter")
    expect(page.locator(".chain > li")).to_have_count(1)
    expect(page.get_by_role("button", name="Add a step to recipe 1")).to_be_focused()
    assert [c for c in screen.console.complaints if "sendAbort" not in c and "afterRequest" not in c] == []


def test_errors_stand_at_their_fields_while_one_types(screen: Screen) -> None:
    page = screen.open("/studies/new")
    length = page.get_by_label("Sequence length")
    length.fill("-5")
    error = page.locator("#f-workload-sequence_length-error")
    expect(error).to_contain_text("greater than or equal to 1")
    expect(length).to_have_attribute("aria-invalid", "true")
    expect(length).to_be_focused()
    length.fill("64")
    expect(error).to_be_empty()
    expect(length).not_to_have_attribute("aria-invalid", "true")


def test_a_refused_pair_cannot_be_ticked_and_says_why(screen: Screen) -> None:
    page = screen.open("/studies/new")
    box = page.locator("input[name=pair][value='bf16|onnxruntime']")
    expect(box).to_be_disabled()
    expect(page.locator("#p-bf16-on-onnxruntime-why")).to_contain_text("bfloat16")


def test_pasted_yaml_is_judged_while_one_types(screen: Screen) -> None:
    page = screen.open("/studies/new?mode=yaml")
    expect(page.get_by_role("heading", name=re.compile(r"\d experiments"))).to_be_visible()
    page.get_by_label("Study, as YAML or JSON").fill("name: x\nbaselin: fp32\n")
    expect(page.locator("#preview")).to_contain_text("did you mean 'baseline'")


def chosen_theme(page: Any) -> str:
    """Background of the page."""
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def test_the_theme_follows_the_system_until_one_is_chosen_and_is_remembered(screen: Screen) -> None:
    page = screen.open("/")
    light = chosen_theme(page)
    page.emulate_media(color_scheme="dark")
    dark = chosen_theme(page)
    assert dark != light
    page.get_by_role("button", name="Theme: system").click()
    assert chosen_theme(page) == light
    page.reload()
    assert chosen_theme(page) == light
    page.get_by_role("button", name="Theme: light").click()
    page.emulate_media(color_scheme="light")
    assert chosen_theme(page) == dark
