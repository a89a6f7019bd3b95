"""Ours: all methods side by side."""

from dpfl_cli.reproduction.api import Paper

PAPER = Paper(
    key="cross",
    authors="the authors of dpfl",
    title="Methods of several papers side by side",
    where="this project",
)
