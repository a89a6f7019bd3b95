"""Reproduction: artifacts, claims, plots, tables, the index."""
