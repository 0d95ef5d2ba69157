"""Where ``celery -A workers`` looks for the application."""

from workers.app import app

__all__ = ["app"]
