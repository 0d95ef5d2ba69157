"""The whole of Steelyard on a free port, as ``make run`` starts it, and a browser that looks at it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from tests.browser.watching import Watched, watch_a_study
from tests.conftest import CHROMIUM_FLAGS, chromium

REPOSITORY = Path(__file__).parent.parent.parent
PASSWORD = "browser-test-7491"


@dataclass(frozen=True)
class Server:
    """A running Steelyard with a worker, and the files that its studies use."""

    url: str
    model: Path
    data: Path


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """``manage.py up`` in a home of its own; stopped with SIGINT as by Ctrl-C."""
    home = tmp_path_factory.mktemp("home")
    files = tmp_path_factory.mktemp("files")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "STEELYARD_HOME": str(home),
        "STEELYARD_CACHE": str(tmp_path_factory.mktemp("cache")),
        "STEELYARD_PATH_ROOTS": str(files),
        "STEELYARD_ADMIN_PASSWORD": PASSWORD,
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(REPOSITORY),
        "no_proxy": "*",
    }
    for name in ("REDIS_URL", "DATABASE_URL", "DJANGO_ALLOW_ASYNC_UNSAFE"):
        environment.pop(name, None)
    making = subprocess.Popen(
        [sys.executable, "-m", "tests.browser.tiny_model", str(files)], cwd=REPOSITORY, env=environment
    )
    log = (home / "up.log").open("w")
    up = subprocess.Popen(
        [sys.executable, "manage.py", "up", "--no-demo", "--port", str(port)],
        cwd=REPOSITORY,
        env=environment,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        assert making.wait(timeout=180) == 0
        url = f"http://127.0.0.1:{port}"
        wait_until_ready(url, up, home / "up.log")
        yield Server(url, files / "model", files / "reviews.csv")
    finally:
        up.send_signal(signal.SIGINT)
        try:
            up.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(up.pid, signal.SIGKILL)
            up.wait()
        log.close()


def wait_until_ready(url: str, up: subprocess.Popen[bytes], log: Path, timeout_s: float = 120) -> None:
    """Return when database and broker answer through the web server."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if up.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=5):
                return
        except (OSError, urllib.error.HTTPError):
            time.sleep(0.2)
    pytest.fail(f"the server did not become ready; its output ends:\n{log.read_text()[-4000:]}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Browser tests come last: Playwright's event loop, once begun, stays until the end of the session."""
    items.sort(key=lambda item: item.get_closest_marker("browser") is not None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium, without a window.

    Its event loop runs in this thread, where Django would refuse to touch the database; nothing here is asynchronous.
    """
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    expect.set_options(timeout=20_000)  # a busy machine takes seconds to read the chart library
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium(), args=list(CHROMIUM_FLAGS))
        yield running
        running.close()


class Console:
    """What a page complained about: errors, blocked by the policy, uncaught exceptions."""

    def __init__(self, page: Page) -> None:
        self.complaints: list[str] = []
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.complaints.append(f"uncaught: {error}"))

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(f"{message.type}: {message.text}")


@dataclass(frozen=True)
class Screen:
    """A page that is signed in, and what it complained about."""

    page: Page
    console: Console
    server: Server

    def open(self, path: str) -> Page:
        """Go to a path of the server."""
        self.page.goto(self.server.url + path)
        return self.page


def sign_in(context: BrowserContext, server: Server) -> Screen:
    """A new page of ``context``, through the sign-in form."""
    page = context.new_page()
    console = Console(page)
    page.set_default_timeout(30_000)
    page.goto(server.url + "/")
    page.get_by_label("Name").fill("admin")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(server.url + "/")
    return Screen(page, console, server)


@pytest.fixture
def screen(browser: Browser, server: Server) -> Iterator[Screen]:
    """A signed-in page at 1280 px, light."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    yield sign_in(context, server)
    context.close()


@pytest.fixture(scope="session")
def watched(browser: Browser, server: Server) -> Watched:
    """A study that was filled in, sent, watched and read in the browser, once for all tests."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    seen = watch_a_study(sign_in(context, server))
    context.close()
    return seen


@pytest.fixture
def studied(watched: Watched) -> str:
    """Path of the ended study."""
    return watched.path
