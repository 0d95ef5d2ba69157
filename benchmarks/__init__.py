"""Benchmarks: they measure Steelyard against limits and peers, print tables, and never fail a test."""
