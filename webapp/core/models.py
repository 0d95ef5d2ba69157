"""Base classes of all tables."""

from __future__ import annotations

from django.db import models


class TeamOwned(models.Model):
    """A row that belongs to a team. Another team's row is as good as absent: selectors and services take the team."""

    team = models.ForeignKey("accounts.Team", on_delete=models.CASCADE, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        abstract = True
