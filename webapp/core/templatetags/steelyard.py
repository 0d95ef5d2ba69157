"""Template tags: numbers, times, states and links as every page shows them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any

import yaml
from django import template
from django.http import QueryDict
from django.template import Context
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from webapp.core import formatting, log_text

register = template.Library()

#: Colour is never the only sign: each state has its own mark and word.
SIGNS = {
    "queued": "\u25cb",
    "leased": "\u25d4",
    "running": "\u25d1",
    "succeeded": "\u2713",
    "failed": "\u2717",
    "cancelled": "\u2298",
    "lost": "\u21ba",
}

register.filter("number", formatting.number)
register.filter("duration", formatting.duration)
register.filter("size", formatting.size)
register.filter("count", formatting.count)


@register.filter
def percent(fraction: float | None) -> int:
    """A fraction as a whole percentage; 100 only when it is done."""
    value = fraction or 0.0
    return 100 if value >= 1 else min(99, round(value * 100))


@register.filter
def words(name: str) -> str:
    """``out_of_memory`` as ``out of memory``."""
    return str(name).replace("_", " ")


@register.filter
def times(text: str) -> str:
    """``1.82x`` as ``1.82\u00d7``."""
    return re.sub(r"(?<=\d)x(?![\w])", formatting.TIMES, text)


@register.filter
def clean_line(line: str) -> str:
    """A line of a log without escape sequences."""
    return log_text.clean_line(line)


@register.filter
def yaml_text(data: Any) -> str:
    """Plain data as YAML."""
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)


@register.filter
def source_name(source: dict[str, Any]) -> str:
    """A model or dataset of a spec by its name; of a path the last part."""
    return str(source.get("name") or PurePosixPath(str(source.get("path") or "")).name or source.get("id") or "")


@register.filter
def get(mapping: Any, key: Any) -> Any:
    """``mapping[key]``, or None."""
    return mapping.get(key) if hasattr(mapping, "get") else None


@register.simple_tag
def chip(status: str, text: str = "") -> SafeString:
    """A state as mark and word."""
    return format_html(
        '<span class="chip {}" data-sign="{}">{}</span>', status, SIGNS.get(status, ""), text or words(status)
    )


@register.simple_tag
def when(moment: datetime | None, form: str = "moment") -> SafeString:
    """A time in UTC that the browser turns into the viewer's own zone; ``form`` is moment or clock."""
    if moment is None:
        return format_html('<span class="none">{}</span>', "not yet")
    utc = moment.astimezone(UTC)
    text = utc.strftime("%H:%M:%S" if form == "clock" else "%Y-%m-%d %H:%M")
    return format_html(
        '<time datetime="{}" data-form="{}">{} UTC</time>', utc.isoformat(timespec="seconds"), form, text
    )


@register.simple_tag
def since(start: datetime | None, end: datetime | None = None) -> str:
    """How long something took, or takes so far."""
    if start is None:
        return "not started"
    return formatting.duration(((end or timezone.now()) - start).total_seconds())


@register.simple_tag(takes_context=True)
def query(context: Context, **changes: Any) -> str:
    """The page's own query string with some parameters changed; None or empty removes one."""
    params: QueryDict = context["request"].GET.copy()
    for name, value in changes.items():
        if value in (None, ""):
            params.pop(name, None)
        else:
            params[name] = str(value)
    text = params.urlencode()
    return f"?{text}" if text else "?"


#: The pages that everyone finds at the top, by the beginning of their addresses.
PAGES = (("/", "Home"), ("/studies", "Studies"), ("/queue", "Queue"), ("/catalog", "Catalog"))


@register.simple_tag(takes_context=True)
def navigation(context: Context) -> list[dict[str, str]]:
    """The links of the top, the current one marked."""
    path = context["request"].path
    links = []
    for url, title in PAGES:
        here = path == url or (url != "/" and path.startswith(url)) or (url == "/studies" and "/experiments/" in path)
        links.append({"url": url, "title": title, "current": ("page" if path == url else "true") if here else ""})
    return links


@register.inclusion_tag("components/name.html")
def name(full: str, short: str = "") -> dict[str, str]:
    """A name of an experiment: its label, and the whole name for those who ask."""
    return {"full": full, "short": short or formatting.labels([full])[full]}
