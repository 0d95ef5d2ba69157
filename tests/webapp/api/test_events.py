"""Events and logs: in order, from where one left off, and a long poll that answers when there is something to say."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from experiments.records import Event
from tests.webapp.api.conftest import SPEC, account, problem, submit
from webapp.api import waiting
from webapp.runs import services
from webapp.runs.models import Attempt


def say(attempt: Attempt, *messages: str) -> None:
    events = [Event(seq=n + 1, t_ns=0, kind="log", message=text) for n, text in enumerate(messages)]
    services.events_append(attempt_id=attempt.pk, number=attempt.number, events=events)


def test_events_come_in_order_from_where_one_left_off(api: Client, begin: Callable[[int], Attempt]) -> None:
    experiment = submit(api, SPEC)["experiments"][0]
    attempt = begin(experiment["id"])
    say(attempt, *(f"line {n}" for n in range(700)))
    seen: list[int] = []
    texts: list[str] = []
    after, ended = 0, False
    for _ in range(3):
        page = api.get(experiment["links"]["events"], {"after": after}).json()
        seen += [event["seq"] for event in page["events"]]
        texts += [event["data"]["message"] for event in page["events"] if event["kind"] == "log"]
        after, ended = page["last_seq"], page["ended"]
    assert seen == list(range(1, len(seen) + 1))
    assert texts == [f"line {n}" for n in range(700)]
    assert not ended
    assert api.get(experiment["links"]["events"], {"after": after}).json()["events"] == []


def test_the_stream_says_when_nothing_more_is_to_come(api: Client) -> None:
    experiment = submit(api, SPEC)["experiments"][0]
    api.post(experiment["links"]["api"] + "/cancel")
    page = api.get(experiment["links"]["events"], {"after": 0}).json()
    assert page["ended"]
    started = time.monotonic()
    page = api.get(experiment["links"]["events"], {"after": page["last_seq"], "wait": 20}).json()
    assert page["ended"] and page["events"] == []
    assert time.monotonic() - started < 2


def test_a_wait_without_news_ends_in_time(api: Client) -> None:
    experiment = submit(api, SPEC)["experiments"][0]
    started = time.monotonic()
    page = api.get(experiment["links"]["events"], {"after": experiment["last_seq"], "wait": 0.5}).json()
    assert page == {"events": [], "last_seq": experiment["last_seq"], "ended": False}
    assert 0.4 < time.monotonic() - started < 3


@pytest.mark.parametrize("wanted", [{"wait": 31}, {"wait": -1}, {"wait": "nan"}, {"after": -1}, {"after": 2**64}])
def test_a_wait_or_a_place_out_of_range_is_refused(api: Client, wanted: dict[str, Any]) -> None:
    experiment = submit(api, SPEC)["experiments"][0]
    assert [f["path"] for f in problem(api.get(experiment["links"]["events"], wanted), 422)["fields"]] == list(wanted)


@pytest.mark.django_db(transaction=True)
def test_a_waiting_call_is_answered_as_soon_as_something_happens(begin: Callable[[int], Attempt]) -> None:
    client = account("ours").client()
    experiment = submit(client, SPEC)["experiments"][0]
    attempt = begin(experiment["id"])
    after = client.get(experiment["links"]["events"]).json()["last_seq"]
    answered: list[tuple[float, Any]] = []

    def wait() -> None:
        try:
            page = client.get(experiment["links"]["events"], {"after": after, "wait": 20}).json()
            answered.append((time.monotonic(), page))
        finally:
            connection.close()

    waiter = threading.Thread(target=wait)
    waiter.start()
    waiter.join(0.4)
    assert waiter.is_alive(), "there is nothing to say yet"
    said = time.monotonic()
    say(attempt, "here it is")
    waiter.join(10)
    ((when, page),) = answered
    assert [event["data"]["message"] for event in page["events"]] == ["here it is"]
    assert when - said < 1.5


def test_only_so_many_wait_at_once_and_the_others_are_answered() -> None:
    release = threading.Event()
    with ThreadPoolExecutor(waiting.SLOTS + 1) as pool:
        held = [pool.submit(waiting.wait_until, release.is_set, 20) for _ in range(waiting.SLOTS)]
        deadline = time.monotonic() + 5
        while waiting._slots._value and time.monotonic() < deadline:
            time.sleep(0.01)
        started = time.monotonic()
        assert waiting.wait_until(lambda: False, 20) is False
        assert time.monotonic() - started < 1
        release.set()
        assert all(future.result(5) for future in held)
    assert waiting._slots._value == waiting.SLOTS


# ------------------------------------------------------------------------------------------------- logs


@pytest.fixture
def logged(api: Client, begin: Callable[[int], Attempt], settings: Any, tmp_path: Path) -> tuple[dict[str, Any], Path]:
    settings.LOG_ROOT = tmp_path
    experiment = submit(api, SPEC)["experiments"][0]
    attempt = begin(experiment["id"])
    Attempt.objects.filter(pk=attempt.pk).update(log="attempt.log")
    return experiment, tmp_path / "attempt.log"


def test_a_log_is_read_in_pieces_without_losing_a_byte(api: Client, logged: tuple[dict[str, Any], Path]) -> None:
    experiment, path = logged
    text = "".join(f"line {n} \u00e9\n" for n in range(1000))
    path.write_text(text)
    read, offset = "", 0
    for _ in range(100):
        piece = api.get(experiment["links"]["logs"], {"offset": offset, "limit": 4096}).json()
        if not piece["text"]:
            break
        read, offset = read + piece["text"], piece["next_offset"]
    assert read == text
    assert offset == len(text.encode())


def test_a_log_with_broken_bytes_and_escapes_is_still_json(api: Client, logged: tuple[dict[str, Any], Path]) -> None:
    experiment, path = logged
    path.write_bytes(b"ok\n\xff\xfe\x1b[31mred\x00\n<script>\n")
    piece = api.get(experiment["links"]["logs"]).json()
    assert piece["text"].startswith("ok\n")
    assert piece["next_offset"] == path.stat().st_size


def test_the_end_of_a_log_can_be_asked_for(api: Client, logged: tuple[dict[str, Any], Path]) -> None:
    experiment, path = logged
    path.write_text("".join(f"{n}\n" for n in range(1000)))
    assert api.get(experiment["links"]["logs"], {"offset": -10}).json()["text"] == "998\n999\n"


def test_an_experiment_that_never_ran_has_an_empty_log(api: Client) -> None:
    experiment = submit(api, SPEC)["experiments"][0]
    assert api.get(experiment["links"]["logs"]).json() == {"text": "", "next_offset": 0, "ended": False}
