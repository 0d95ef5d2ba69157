"""Celery: the processes that run experiments."""
