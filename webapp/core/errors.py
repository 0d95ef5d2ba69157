"""What services raise; views and the API turn it into an answer. Never a stack trace for a user's mistake."""

from __future__ import annotations

from typing import ClassVar

from experiments.spec import Problem, SpecError


class DomainError(Exception):
    """A request that can't be done: a code for programs, a sentence for people, an HTTP status."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 400

    def __init__(self, message: str, *, fields: list[Problem] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields or []


class Unauthenticated(DomainError):
    """No key, or one that is unknown, expired or revoked."""

    code = "unauthenticated"
    status = 401


class Forbidden(DomainError):
    """The person's role does not allow it."""

    code = "forbidden"
    status = 403


class NotFound(DomainError):
    """There is no such object in this team; another team's objects are as good as absent."""

    code = "not_found"
    status = 404


class NoArtifact(NotFound):
    """The experiment is there, but has no model that could be downloaded; the message says why."""

    code = "no_artifact"


class Conflict(DomainError):
    """The state does not allow it, or the same key was used for another body."""

    code = "conflict"
    status = 409


class Invalid(DomainError):
    """The request was understood but can't be accepted; ``fields`` says where and why."""

    code = "invalid"
    status = 422

    @classmethod
    def of(cls, error: SpecError) -> Invalid:
        """The problems of a spec."""
        first = str(error.problems[0]) if error.problems else "the spec is not valid"
        more = f" (and {len(error.problems) - 1} more)" if len(error.problems) > 1 else ""
        return cls(first + more, fields=list(error.problems))


class StaleWrite(Exception):
    """A conditional update found another state: someone else was first. Whoever gets it has lost the race."""
