"""The engine: runs members to their end, round by round."""

import time
from collections.abc import Callable, Iterator, Sequence

from dpfl_cli.simulation.grouping import openings
from dpfl_cli.simulation.member import Member
from dpfl_cli.simulation.stack import Stack

LOOK_EVERY = 0.02  # seconds between looks at members and progress


def run_members(
    members: Sequence[Member],
    checkpoint: Callable[[Member], None] = lambda member: None,
    advance: Callable[[Sequence[Member]], None] = lambda active: None,
    stop: Callable[[], bool] = lambda: False,
    opening: bool = False,
) -> Iterator[Member]:
    """Runs members to their end; yields each as it finishes or diverges, with its state collected.

    A member that has finished leaves the stack, and the rest goes on.

    Args:
      members: runs with equal stack keys, fresh or from checkpoints, at any rounds.
      checkpoint: called with each unfinished member every `runtime.checkpoint_every` seconds.
      advance: called with the members in flight, whose `round` says how far each is; `LOOK_EVERY`
        seconds apart and when a member is evaluated.
      stop: asked as often; True saves a checkpoint of every unfinished member and raises
        KeyboardInterrupt.
      opening: one round alone, after which all are collected.
    """
    if not opening:
        for some in openings(members):
            yield from run_members(some, checkpoint, advance, stop, opening=True)
    stack = Stack(members)
    try:
        stack.evaluate({})  # round 0 of the fresh ones
        clock = saved = time.perf_counter()
        while True:
            done = [member for member in stack.members if member.finished]
            if done:
                stack.collect()
                for member in done:
                    member.check_ledger()
                yield from done
                rest = [member for member in stack.members if not member.finished]
                if not rest:
                    return
                stack = Stack(rest)
            for left in reversed(range(1 if opening else stack.until_event())):
                diagnostics = stack.step(shown=left == 0)
                if left == 0:
                    stack.evaluate(diagnostics)
                now = time.perf_counter()
                if left and now - clock < LOOK_EVERY:
                    continue
                stopping = stop()
                stack.write_back(now - clock)
                clock = now
                advance(stack.members)
                if stopping or now - saved >= stack.plan.runtime.checkpoint_every:
                    stack.collect()
                    unfinished = [member for member in stack.members if not member.finished]
                    for member in unfinished:
                        checkpoint(member)
                    if stopping and unfinished:
                        raise KeyboardInterrupt
                    saved = time.perf_counter()
            if opening:
                stack.collect()
                return
    except Exception:
        # what the members had when they stopped, for the record of a failure; the ledger may hold
        # part of the round that broke
        stack.collect()
        raise
