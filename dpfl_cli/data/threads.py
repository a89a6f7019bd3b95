"""Work shared between the threads of this process: drawing noise, compiled kernels; both leave the
interpreter's lock.

This module is imported before a worker knows how many threads it may use: it imports nothing that
computes.
"""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="dpfl")


# a forked process has none of its parent's threads
os.register_at_fork(after_in_child=_pool.cache_clear)


def cores_of_this_process() -> list[int]:
    """Numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def usable_threads() -> int:
    """The cores that this process may use: those it is pinned to, or fewer where torch was given
    fewer (OMP_NUM_THREADS).
    """
    import torch  # commands that only look at results do without it

    return min(len(cores_of_this_process()), torch.get_num_threads())


def even_parts(jobs: int, parts: int) -> list[tuple[int, int]]:
    """Jobs 0 ... jobs - 1 in at most `parts` parts of nearly equal size: where each begins, and
    where the next one does.

    >>> even_parts(5, 2), even_parts(1, 8)
    ([(0, 2), (2, 5)], [(0, 1)])
    """
    parts = min(jobs, parts)
    return [(jobs * part // parts, jobs * (part + 1) // parts) for part in range(parts)]


def slices(count: int, size: int) -> list[slice]:
    """0 ... count - 1 in parts of `size`, of which the last may be smaller.

    >>> slices(5, 3)
    [slice(0, 3, None), slice(3, 5, None)]
    """
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def in_threads(job: Callable[..., T], given: Iterable[Iterable[Any]], threads: int) -> list[T]:
    """job(*arguments) for all arguments that are given (`zip(values)`, where it takes one), in any
    order, on this many threads; what it returns is in theirs.

    The caller works too and waits for nobody who has not begun, so calls from several threads share
    the pool without harm.
    """
    calls, found = list(given), dict[int, T]()
    waiting = iter(list(enumerate(calls)))  # threads take the next one off it, which is atomic

    def work() -> None:
        for number, arguments in waiting:
            found[number] = job(*arguments)

    helpers = [_pool().submit(work) for _ in range(min(threads, len(calls)) - 1)]
    try:
        work()
    finally:
        for _ in waiting:  # after an error or an interrupt nobody begins another one
            pass
        for helper in helpers:
            if not helper.cancel():
                helper.result()
    return [found[number] for number in range(len(calls))]


def one_thread_each(
    job: Callable[..., T], given: Iterable[Iterable[Any]], threads: int | None = None
) -> list[T]:
    """`in_threads`, where torch computes each job with one thread; as many jobs at once as torch
    has threads, or as many as asked.

    The bits of a product depend on how many threads it has, and threads of torch's own wait for
    each other after every operation.
    """
    import torch

    before = torch.get_num_threads()

    def work(*arguments: Any) -> T:
        torch.set_num_threads(1)
        return job(*arguments)

    try:
        return in_threads(work, given, threads or before)
    finally:
        torch.set_num_threads(before)
