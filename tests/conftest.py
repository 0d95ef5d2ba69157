"""What every test can rely on: which machine this is, and that nothing of the person's own state is touched."""

from __future__ import annotations

import os
import shutil
import signal
from functools import cache
from pathlib import Path

import pytest

CHROMIUM_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
)


def chromium() -> str | None:
    """The browser that browser tests drive: ``$CHROMIUM``, else Debian's."""
    return shutil.which(os.environ.get("CHROMIUM", "/usr/bin/chromium"))


@cache
def cuda_devices() -> int:
    """CUDA devices that the driver shows; 0 without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    try:
        return int(pynvml.nvmlDeviceGetCount())
    finally:
        pynvml.nvmlShutdown()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip, by name and with the reason, what this machine can't run; a missing browser in CI is an error."""
    if item.get_closest_marker("browser") and chromium() is None:
        reason = "no Chromium at $CHROMIUM or /usr/bin/chromium (Debian: apt-get install chromium)"
        if os.environ.get("CI") == "true":
            pytest.fail(f"browser tests may not be skipped in CI: {reason}", pytrace=False)
        pytest.skip(reason)
    needed = 2 if item.get_closest_marker("multi_gpu") else 1 if item.get_closest_marker("gpu") else 0
    if needed and cuda_devices() < needed:
        pytest.skip(f"needs {needed} CUDA device(s), this machine has {cuda_devices()}")


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_is_heard() -> None:
    """A shell ignores Ctrl-C in what it starts in the background, and programs that are started there inherit it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that make cache entries make them in a folder of the session; hubs are never contacted by accident.

    ``STEELYARD_TEST_CACHE`` points to a folder that outlives the session, so that the demo models are trained once
    for many runs of the suite.
    """
    kept = os.environ.get("STEELYARD_TEST_CACHE")
    cache_folder = Path(kept) if kept else tmp_path_factory.getbasetemp() / "steelyard-cache"
    monkeypatch.setenv("STEELYARD_CACHE", str(cache_folder))
