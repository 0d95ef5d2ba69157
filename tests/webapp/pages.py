"""A signed-in person's browser without a browser: Django's client with a team."""

from __future__ import annotations

import re
from dataclasses import dataclass

from django.test import Client

from tests import factories
from webapp.accounts.models import Role, Team, User


@dataclass(frozen=True)
class Visitor:
    """A person of a team and their client."""

    team: Team
    user: User
    client: Client

    def page(self, path: str, status: int = 200, **data: str) -> str:
        """The text of a page."""
        answer = self.client.get(path, data)
        assert answer.status_code == status, (path, answer.status_code, answer.content[:400])
        return str(answer.content.decode())


def visitor(role: Role = Role.SUBMITTER) -> Visitor:
    """A member of a new team, signed in."""
    team = factories.team()
    user = factories.user(team, role)
    client = Client()
    client.force_login(user)
    return Visitor(team, user, client)


def text(html: str) -> str:
    """What a page says, without its markup."""
    html = re.sub(r"(?s)<(script|style)[^>]*>.*?</\1>", " ", html)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))
