"""Every page at two widths and in both themes: no sideways scroll, no complaint, readable, reachable by keyboard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Screen, Server, sign_in

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

LOW_CONTRAST = (Path(__file__).parent / "low_contrast.js").read_text()

UNNAMED = (Path(__file__).parent / "unnamed.js").read_text()


def paths(screen: Screen, studied: str) -> list[str]:
    """Every page, with something on it."""
    page = screen.open(studied)
    experiment = page.locator("#experiments tbody th a").last.get_attribute("href")
    assert experiment is not None
    return [
        "/",
        "/studies",
        "/studies/new",
        "/studies/new?mode=yaml",
        studied,
        experiment,
        "/queue",
        "/catalog",
        "/nowhere",
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_every_page_fits_is_readable_and_named(
    browser: Browser, server: Server, studied: str, width: int, scheme: Any
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    screen = sign_in(context, server)
    for path in paths(screen, studied):
        page = screen.open(path)
        if path == studied:
            expect(page.locator("[data-chart=cost] .main-svg").first).to_be_visible()
        beyond = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert beyond <= 0, f"{path} is {beyond} px too wide"
        assert page.evaluate(LOW_CONTRAST) == [], path
        assert page.evaluate(UNNAMED) == [], path
    complaints = [c for c in screen.console.complaints if "404" not in c]  # /nowhere is not there, as asked
    assert complaints == []
    context.close()


def test_the_sign_in_fits_and_is_named(browser: Browser, server: Server) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 900})
    page.goto(server.url + "/signin/")
    assert page.evaluate(LOW_CONTRAST) == []
    assert page.evaluate(UNNAMED) == []
    page.close()


def test_the_keyboard_reaches_everything_on_the_comparison(screen: Screen, studied: str) -> None:
    page = screen.open(studied)
    expect(page.locator("[data-chart=cost] .main-svg").first).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    reached = set()
    for _ in range(120):
        page.keyboard.press("Tab")
        here = page.evaluate(
            "(document.activeElement?.textContent || document.activeElement?.id || '').trim().slice(0, 30)"
        )
        reached.add(here)
        reached.add(page.evaluate("document.activeElement?.id"))
    for wanted in ("Export", "Run again", "Columns", "Latency p50", "Data as table", "limit-artifact_bytes"):
        assert wanted in reached, wanted


def test_without_scripts_the_pages_still_work(browser: Browser, server: Server, studied: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    screen = sign_in(context, server)
    page = screen.open(studied)
    expect(page.locator("#experiments")).to_contain_text("int8-dynamic-onnxruntime")
    page.locator("form[data-axes] select[name=x]").select_option("artifact_bytes")
    page.locator("form[data-axes] button").click()
    expect(page.locator("section[aria-label='Chart of two metrics'] h2")).to_contain_text("Size on disk")
    context.close()
