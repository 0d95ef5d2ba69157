"""Who works here: people, teams, keys, and what they did."""

from __future__ import annotations

from django.contrib.auth.models import AbstractUser
from django.db import models

from webapp.core.models import TeamOwned


class User(AbstractUser):
    """A person who signs in."""


class Team(models.Model):
    """Owns every study, experiment, key and artifact."""

    name = models.CharField(max_length=100, unique=True)
    slug = models.SlugField(max_length=100, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.name


class Role(models.TextChoices):
    """What a member or a key may do; each includes the ones before."""

    VIEWER = "viewer"
    SUBMITTER = "submitter"
    MAINTAINER = "maintainer"
    ADMIN = "admin"

    def includes(self, other: Role) -> bool:
        """True if this role may do what ``other`` may."""
        order = list(Role)
        return order.index(self) >= order.index(other)


class Membership(TeamOwned):
    """A person's role in a team."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=20, choices=Role.choices, default=Role.SUBMITTER)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["team", "user"], name="membership_once")]

    def __str__(self) -> str:
        return f"{self.user} is {self.role} of {self.team}"


class ApiKey(TeamOwned):
    """A bearer key of a team. Only its SHA-256 is stored; it never may do more than its maker may now."""

    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=12, help_text="First characters, to recognise it in lists.")
    sha256 = models.CharField(max_length=64, unique=True)
    role = models.CharField(max_length=20, choices=Role.choices, default=Role.SUBMITTER)
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}...)"


class AuditEntry(TeamOwned):
    """Who did what to which object, and why."""

    actor = models.CharField(max_length=150)
    action = models.CharField(max_length=60)
    target = models.CharField(max_length=200)
    detail = models.JSONField(default=dict)

    class Meta:
        indexes = [models.Index(fields=["team", "-created_at"], name="audit_by_time")]

    def __str__(self) -> str:
        return f"{self.actor} {self.action} {self.target}"
