"""Which plans are stacked, and how many of them at once."""

import math
import os
import resource
from collections.abc import Sequence

import numpy as np
import torch

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.devices import free_memory, pick_device
from dpfl_cli.data.threads import slices
from dpfl_cli.simulation.member import Member
from dpfl_cli.simulation.run_plan import Plan
from dpfl_cli.simulation.stack import stack_key

Group = list[Plan]  # that can be stacked
MOST_RUNS = 256  # in a stack: each holds a lock, which is an open file
FILES = 4  # of the files that a process may open, a stack's locks take one in so many
MOST_BYTES = 2 << 30  # larger stacks gain nothing on a CPU and fall out of its caches
COPIES = 8  # arrays of the size of all clients' parameters that a round may hold at once
# the same of clients' covariances, where a method releases them: as they are and clipped, and where
# every client's message is seen, that and its noise
COVARIANCES, COVARIANCES_SENT = 2, 4
MATRICES = 4  # of the server, made of their mean, in float64
POISSON_BYTES = 40  # for every record, while a batch is drawn: four numbers of eight bytes, masks


def groups(plans: Sequence[Plan]) -> list[Group]:
    """Plans that can be stacked, group by group, in the order in which they come."""
    found: dict[str, Group] = {}
    for plan in plans:
        found.setdefault(stack_key(plan), []).append(plan)
    return list(found.values())


def stacks(plans: Sequence[Plan]) -> list[Group]:
    """The groups of the plans, each cut so that a stack stays within the memory budget.

    Raises:
      ConfigError: a run by itself is more than this machine's memory holds.
    """
    cut: list[Group] = []
    most = min(MOST_RUNS, max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // FILES))
    for group in groups(plans):
        plan = group[0]
        _check_memory(plan)
        size = min(fitting(plan, after_first=True), most)
        # of a plugin's method as many runs as nothing else has: an option [R] that was not shaped
        # by `per_run` would be taken for one of each client or coordinate, and no shape would tell
        # (as many may be left when shorter ones end)
        taken = (plan.rows, plan.dimension) if plan.algorithm.plugin else ()
        for some in slices(len(group), size):
            stack, parts = group[some], list[Group]()
            while len(stack) > 1 and len(stack) in taken:
                parts.append([stack.pop()])
            cut += [stack, *parts]
    return cut


def openings(members: Sequence[Member]) -> list[list[Member]]:
    """Members of one stack that make their first round in parts, for it holds more at once than
    later ones; none where it does not.
    """
    fresh = [member for member in members if member.round == 0]
    if not fresh or len(fresh) <= (size := fitting(fresh[0].plan)):
        return []
    return [fresh[some] for some in slices(len(fresh), size)]


def fitting(plan: Plan, after_first: bool = False) -> int:
    """How many runs like this one fit in the memory budget, at least 1; `after_first`: as in
    `bytes_per_run`. A first round that holds more than the others may take more than they do, for
    what its runs have in common is made once.
    """
    later = bytes_per_run(plan, after_first=True)
    first = later if after_first else bytes_per_run(plan)
    return max(1, memory_budget(plan, ceiling=first == later) // first)


def deal(plans: Sequence[Plan], workers: int) -> list[Group]:
    """Plans dealt to at most so many workers in parts of about equal work; those that can be
    stacked stay side by side, for runs in one stack cost less than runs apart.
    """
    ordered = [plan for group in groups(plans) for plan in group]
    each = np.array([plan.last_round * plan.rows * max(plan.dimension, 1.0) for plan in ordered])
    place = (workers * (each.cumsum() - each / 2) / each.sum()).astype(int)
    cuts = 1 + np.flatnonzero(np.diff(place))
    return [ordered[one] for one in map(slice, [0, *cuts], [*cuts, None])]


def _check_memory(plan: Plan) -> None:
    """Refuses a run whose clients' models, before and after a round, and one byte for every number
    of its records are more than all of this machine's memory.
    """
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    models = 2 * torch.float32.itemsize * plan.clients * plan.dimension
    least = models + plan.info.records * math.prod(plan.info.feature_shape)
    if least > whole:
        raise ConfigError(
            f"{plan.label}: {plan.clients} clients, {plan.dimension} parameters and "
            f"{plan.info.records} records take at least {least / 2**30:.3g} GiB, but this machine "
            f"has {whole / 2**30:.3g}; take fewer of them"
        )


def memory_budget(plan: Plan, workers: int = 1, ceiling: bool = True) -> int:
    """Bytes that a stack may take on each of the workers that share this machine.

    A share of `launcher.memory`, or of half of what is free, here and on the device; on a CPU up to
    `MOST_BYTES`, unless there is to be no `ceiling`.
    """
    if plan.launcher.memory is not None:
        return max(plan.launcher.memory // workers, 1)
    device = pick_device(plan.runtime.device)
    most = free_memory("cpu") // 2 // workers
    if device.type != "cpu":
        most = min(most, free_memory(device) // 2 // workers)
    elif ceiling:
        most = min(most, MOST_BYTES)
    return max(most, 1)


def bytes_per_run(plan: Plan, after_first: bool = False) -> int:
    """An upper estimate of what one run of a stack holds at once: values [M, d], and what the model
    works in.

    Args:
      after_first: in rounds after the first, which need no covariances that are released in it
        alone.
    """
    model, settings = plan.model.target, plan.model.settings
    chosen = getattr(model, "dtype_of", None)  # where its settings decide
    dtype = chosen(settings) if chosen else getattr(model, "dtype", torch.float64)
    values = COPIES * dtype.itemsize * plan.rows * max(plan.dimension, 1)
    if plan.sampling is not None and plan.algorithm.target.away == "rests":
        # what clients keep who are away, before and after a round
        values += 2 * dtype.itemsize * plan.clients * plan.dimension
    if "covariance" in plan.algorithm.target.needs:
        # clients' triangles, and the server's matrices in float64
        size = model.features_of(settings, plan.info)
        matrices = [spec for spec in plan.specs if spec.shape == "matrix"]
        once = matrices and not any(spec.occurs(plan.rounds)[1:].any() for spec in matrices)
        triangles = 0 if after_first and once else plan.rows * size * (size + 1) // 2
        copies = COVARIANCES_SENT if plan.dp.trust == "local" else COVARIANCES
        values += copies * dtype.itemsize * triangles
        values += MATRICES * torch.float64.itemsize * size**2
    if any(spec.batch == "poisson" for spec in plan.specs):  # a number for every record, and more
        values += POISSON_BYTES * plan.info.records
    return int(values + model.workspace(settings, plan.info, plan.rows))
