"""The main job in a browser: fill in the form, send it, watch it finish without a reload, read the comparison."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from playwright.sync_api import Page, expect

if TYPE_CHECKING:
    from tests.browser.conftest import Screen

#: A study of the tiny model takes seconds; a busy machine may take minutes.
PATIENCE_MS = 500_000


def fill_in(page: Page, model: str, data: str) -> None:
    """Fill in the form for two variants of a model of this machine."""
    page.get_by_label("Name", exact=False).first.fill("tiny reviews")
    page.get_by_label("Model from").select_option("path")
    page.get_by_label("Model path").fill(model)
    page.get_by_label("Data from").select_option("path")
    page.get_by_label("Data path").fill(data)
    page.get_by_label("Batch sizes").fill("1, 2")
    page.get_by_label("Sequence length").fill("16")
    page.get_by_label("Min seconds").fill("0.2")
    wanted = {"|torch-eager", "int8-dynamic|onnxruntime"}
    ticked = [str(box.get_attribute("value")) for box in page.locator("input[name=pair]:checked").all()]
    for value in ticked:
        if value not in wanted:
            page.locator(f"input[name=pair][value='{value}']").uncheck()


@dataclass(frozen=True)
class Watched:
    """A study that was sent by the form and watched to its end, and what was seen on the way.

    Attributes:
        path: the study's path.
        loads: addresses that the page was loaded from after it had opened: none, if it follows by itself.
        polls: questions to the server until the end, and in the five seconds after it.
        kept_open: the log that was opened stayed open.
        same_log: it stayed the very element, so a selection in it survives.
        log: its lines.
        numbers: the sequence numbers of its lines, in order.
    """

    path: str
    loads: list[str]
    polls: tuple[int, int]
    kept_open: bool
    same_log: bool
    log: list[str]
    numbers: list[int]


def watch_a_study(screen: Screen) -> Watched:
    """Fill in the form, send it with a double click, open a log, wait for the end, read the comparison."""
    page = screen.open("/studies/new")
    fill_in(page, str(screen.server.model), str(screen.server.data))
    preview = page.locator("#preview")
    expect(preview.get_by_role("heading", name="2 experiments")).to_be_visible()
    expect(preview).to_contain_text("int8-dynamic-onnxruntime")
    expect(page.locator("#model-facts")).to_contain_text("text-classification")
    page.get_by_text("Show the YAML").click()
    expect(page.locator("#yaml")).to_contain_text("technique: int8-dynamic")
    page.get_by_role("button", name="Queue 2 experiments").dblclick()
    page.wait_for_url(re.compile(r"/studies/\d+$"))
    path = page.url.removeprefix(screen.server.url)
    loads: list[str] = []
    polls: list[str] = []
    page.on("framenavigated", lambda frame: loads.append(frame.url))
    page.on("request", lambda request: polls.append(request.url) if "/live" in request.url else None)
    opened = page.locator(".lives details").last
    opened.locator("summary").click()
    page.evaluate("[...document.querySelectorAll('.lives .log')].at(-1).dataset.mine = 'yes'")
    expect(page.locator("#study-status")).to_contain_text("2 of 2 succeeded", timeout=PATIENCE_MS)
    expect(page.locator("#experiments tbody tr")).to_have_count(2)
    expect(page.locator("#results .verdict")).to_be_visible()
    before = len(polls)
    page.wait_for_timeout(5_000)  # what must not happen has no condition to await
    return Watched(
        path=path,
        loads=loads,
        polls=(before, len(polls) - before),
        kept_open=opened.get_attribute("open") is not None,
        same_log=page.locator(".log[data-mine=yes]").count() == 1,
        log=opened.locator(".log").inner_text().splitlines(),
        numbers=page.evaluate(
            "[...[...document.querySelectorAll('.lives .log')].at(-1).children].map((line) => Number(line.dataset.seq))"
        ),
    )
