"""Who computes what: groups of runs dealt to workers, and cores of this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpfl_cli.simulation.run_plan import Plan

IMBALANCE = 1.25  # the largest load of a worker that is accepted, in fair shares


def deal(groups: Sequence[Sequence[Plan]], workers: int) -> list[list[Plan]]:
    """Groups dealt to workers, the longest first to whom has the least; groups are split until
    nobody has much too much.

    Groups are kept whole where that leaves the workers about equal, for runs in one stack cost less
    than runs apart.

    Args:
      workers: at most as many as there are plans; each gets at least one.
    """
    cuts = [1] * len(groups)  # into how many pieces each group is cut
    fair = sum(_work(group) for group in groups) / workers
    while True:
        pieces = [
            piece for group, count in zip(groups, cuts, strict=True) for piece in _cut(group, count)
        ]
        dealt: list[list[Plan]] = [[] for _ in range(workers)]
        loads = [0] * workers
        for piece in sorted(pieces, key=_work, reverse=True):
            least = loads.index(min(loads))
            dealt[least] += piece
            loads[least] += _work(piece)
        divisible = [number for number, group in enumerate(groups) if cuts[number] < len(group)]
        if not divisible or (min(loads) > 0 and max(loads) <= IMBALANCE * fair):
            return dealt
        cuts[max(divisible, key=lambda number: _work(groups[number]) / cuts[number])] += 1


def _work(plans: Sequence[Plan]) -> int:
    """What plans cost, in a measure for comparing them."""
    return sum(plan.last_round * plan.rows * max(plan.dimension, 1) for plan in plans)


def _cut(group: Sequence[Plan], count: int) -> list[Sequence[Plan]]:
    """The group in `count` pieces of about equal length."""
    return [group[len(group) * i // count : len(group) * (i + 1) // count] for i in range(count)]


def cores_of_this_process() -> list[int]:
    """Numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def share_of_cores(number: int, workers: int) -> tuple[int, ...]:
    """The cores of worker `number`: an equal part of all, or one that it shares where there are
    more workers than cores.
    """
    cores = cores_of_this_process()
    if workers > len(cores):
        return (cores[number % len(cores)],)
    return tuple(cores[len(cores) * number // workers : len(cores) * (number + 1) // workers])
