"""FC-099: results that come while somebody reads are offered, not forced; an untouched page follows by itself.

The experiments are ended by hand through the services, so that each moment of the page can be looked at.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect
from pytest_django.fixtures import Settings
from pytest_django.live_server_helper import LiveServer

from tests import factories
from tests.webapp import study_reports
from webapp.accounts.models import Role, Team
from webapp.runs import queue, selectors
from webapp.runs.models import Experiment, Study

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True), pytest.mark.timeout(300)]

PASSWORD = "browser-test-7491"


@pytest.fixture
def team(settings: Settings) -> Iterator[Team]:
    """A team; messages to workers stay in this process."""
    settings.BROKER_URL = "memory://"
    queue.producer.cache_clear()
    yield factories.team()
    queue.producer.cache_clear()


@pytest.fixture
def page(browser: Browser, team: Team, live_server: LiveServer) -> Iterator[Page]:
    """A signed-in page."""
    user = factories.user(team, Role.SUBMITTER, password=PASSWORD)
    context = browser.new_context(base_url=live_server.url, viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto("/signin/")
    page.get_by_label("Name").fill(user.username)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(live_server.url + "/")
    yield page
    context.close()


def begun(team: Team) -> tuple[Study, list[Experiment]]:
    """A study of three whose first has ended."""
    factories.worker()
    study = study_reports.waiting_study(team, names=["fp32", "fp16", "bf16"])
    experiments = selectors.experiments(study)
    study_reports.run(experiments[0])
    return study, experiments[1:]


def end(experiment: Experiment) -> None:
    """End the next experiment; the worker that would do it is alive again."""
    factories.worker()
    study_reports.run(experiment)


def test_new_results_wait_for_a_reader_and_come_by_themselves_otherwise(page: Page, team: Team) -> None:
    study, (second, third) = begun(team)
    page.goto(f"/studies/{study.pk}")
    rows = page.locator("#experiments tbody tr")
    expect(rows).to_have_count(1)
    page.get_by_text("Columns", exact=True).click()
    end(second)
    fresh = page.locator("#fresh")
    expect(fresh).to_be_visible()
    expect(rows).to_have_count(1)
    expect(page.locator("details.columns")).to_have_attribute("open", "")
    fresh.get_by_role("button", name="Show them").click()
    expect(rows).to_have_count(2)
    expect(fresh).to_be_hidden()
    end(third)
    expect(rows).to_have_count(3)
    expect(page.locator("#study-status")).to_contain_text("3 of 3 succeeded")
    assert page.locator("#poll[hx-get]").count() == 0


def test_what_is_typed_into_the_search_of_a_running_log_survives_its_polls(page: Page, team: Team) -> None:
    factories.worker()
    study = study_reports.waiting_study(team, names=["fp32"])
    experiment = selectors.experiments(study)[0]
    study_reports.run(experiment, until="running")
    page.goto(f"/experiments/{experiment.pk}")
    polls: list[str] = []
    page.on("request", lambda request: polls.append(request.url) if "/live" in request.url else None)
    search = page.get_by_label("Find in the log")
    search.fill("a note I am wr")
    for _ in range(3):
        with page.expect_response(lambda response: "/live" in response.url):
            pass
    expect(search).to_have_value("a note I am wr")
    expect(search).to_be_focused()
    expect(page.locator("#log-hits")).to_contain_text("No line has")
    assert len(polls) >= 3
