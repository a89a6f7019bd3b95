"""Algorithms: one file a method."""
