"""The price of a device for an hour, from the versioned table ``experiments/prices.yaml``."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

from experiments.records import DeviceFacts
from experiments.stats import Undefined


@dataclass(frozen=True)
class HourlyPrice:
    """USD for an hour of some devices together, and where the number comes from."""

    usd_per_hour: float
    source: str


@cache
def table() -> dict[str, Any]:
    """The price table as plain data."""
    text = resources.files("experiments").joinpath("prices.yaml").read_text(encoding="utf-8")
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


def price_of(devices: tuple[DeviceFacts, ...]) -> HourlyPrice | Undefined:
    """Price of all ``devices`` together; undefined if a GPU is not in the table."""
    if not devices:
        return Undefined("the devices it ran on are not known")
    prices = table()
    total, instances = 0.0, []
    for device in devices:
        entry = _entry(prices[device.kind], device)
        if entry is None:
            return Undefined(f"the price table {prices['version']} does not have {device.model!r}; give spec.price")
        per_core = device.kind == "cpu"
        total += entry["usd_per_core_hour"] * max(1, len(device.cores)) if per_core else entry["usd_per_hour"]
        words = f"{len(device.cores)} cores as of {entry['instance']}" if per_core else entry["instance"]
        instances.append(words)
    counted = "; ".join(f"{instances.count(i)} x {i}" for i in dict.fromkeys(instances))
    return HourlyPrice(total, f"{counted}, {prices['source']}, price table {prices['version']}")


def _entry(rows: list[dict[str, Any]], device: DeviceFacts) -> dict[str, Any] | None:
    name = f"{device.model} {platform.machine()}" if device.kind == "cpu" else device.model
    return next((row for row in rows if re.search(row["match"], name, re.IGNORECASE)), None)
