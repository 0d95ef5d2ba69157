"""Steelyard's engine: run, measure and compare ways to make a model smaller, faster or spread over devices."""

__version__ = "0.1.0"
