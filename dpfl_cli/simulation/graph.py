"""CUDA graphs of replayed rounds: what a round does on a GPU's memory alone, launched by one call.

A replayed round (`replay`) is a list of calls on fixed memory. What the host has a part in (charging the ledger, having noise
drawn, sending numbers) is done first, call by call and in its order; it fills fixed memory of the device. The rest is captured
once and played in every round. All of it is on one stream, so that the device does it in the order in which it was asked for, and
a graph still being played is not disturbed by what comes after it. What cannot be taken apart like this, or captured, is replayed
call by call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dpfl_cli.privacy.separation import parts

if TYPE_CHECKING:
    from dpfl_cli.simulation.replay import Step

Call = Callable[[], Any]


class Ungraphed(Exception):
    """Why rounds that are replayed on a device are no graph."""


class CudaGraphs:
    """Captures calls as CUDA graphs.

    Attributes:
      largest: bytes that a round may make. They are kept; and at some TB/s they take a few hundred microseconds, as long as a
        hundred launches from Python, so that a larger round would gain little.
    """

    largest = 512 << 20

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # All graphs are captured where they were warmed up: cuBLAS keeps a workspace for every stream that it has worked on. It
        # must not be made, and so belong to a graph, while this is captured.
        self._stream = torch.cuda.Stream(device)

    def on_host(self, tensor: Tensor) -> bool:
        """Whether this is the host's memory, which no graph may touch."""
        return tensor.device.type == "cpu"

    def captured(self, calls: Sequence[Call]) -> Call:
        """What plays the calls, in their order, on the current stream. They are done once for it, to have all that is made at a
        first use made by then.

        Raises:
          RuntimeError: they wait for the device, or cannot be captured.
        """
        caller = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(caller)
        mode = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")  # rather here than in a capture, which a wait spoils
        try:
            with torch.cuda.stream(self._stream):
                for call in calls:
                    call()
        finally:
            torch.cuda.set_sync_debug_mode(mode)
            caller.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # what other threads do meanwhile is nobody's business here
        one = torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local")
        with torch.cuda.stream(caller), one:  # a capture that fails leaves its own stream the current one
            for call in calls:
                call()
        kept = list(calls)  # and with them the memory that the graph reads and writes

        def play() -> None:
            assert kept
            graph.replay()

        return play


@cache
def graphs_of(device: torch.device) -> CudaGraphs | None:
    """What captures graphs for a device; None where rounds are not worth one, on a CPU."""
    return CudaGraphs(device) if device.type == "cuda" else None


def split(steps: Sequence[Step], ends: set[int], on_host: Callable[[Tensor], bool]) -> tuple[list[int], list[int]]:
    """Which steps of a round come first, on the host or with its memory, and which are left for a graph; both in their order.

    Args:
      ends: where memory begins that is written once the steps are done.

    Raises:
      Ungraphed: a step on the host cannot come first. It reads what the graph writes, in this round or the last one (which
        it may tell by versions of tensors, and a graph leaves these as they are); or writes what the graph has used by then.
    """
    first: list[int] = []
    rest: list[int] = []
    used: set[int] = set()  # by the graph until then
    overwritten: set[int] = set()
    for number, step in enumerate(steps):
        touched = [part for part in parts((*step.args, *step.kwargs.values(), *step.made)) if isinstance(part, Tensor)]
        if step.given is None and not any(map(on_host, touched)):
            rest.append(number)
            used |= step.reads | step.writes
            continue
        first.append(number)
        overwritten |= step.writes & used
    written = ends.union(*(steps[number].writes for number in rest))
    for number in first:
        if steps[number].reads & written or steps[number].writes & overwritten:
            name = getattr(steps[number].function, "__qualname__", None) or str(steps[number].function)
            raise Ungraphed(f"{name} needs the host, and what the device computes before it")
    return first, rest
