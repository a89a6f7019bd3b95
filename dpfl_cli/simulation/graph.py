"""CUDA graphs of replayed rounds: what a round does on a GPU's memory alone, launched by one call.

A replayed round (`replay`) is a list of calls on fixed memory. What the host has a part in (charging the ledger, having noise
drawn, sending numbers) is done first, call by call and in its order; it fills fixed memory of the device. The rest is captured
once and played in every round. All of it is on one stream, so that the device does it in the order in which it was asked for, and
a graph still being played is not disturbed by what comes after it. What cannot be taken apart like this, or captured, is replayed
call by call.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

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
    _failed: ClassVar[str | None] = None  # why a capture of this process failed

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def on_host(self, tensor: Tensor) -> bool:
        """Whether this is the host's memory, which no graph may touch."""
        return tensor.device.type == "cpu"

    def captured(self, calls: Sequence[Call]) -> Call:
        """What plays the calls, in their order, on the current stream.

        They are done once for it, to have all that is made at a first use made by then: what they write is written, and it is for
        the caller to write it back.

        Raises:
          Ungraphed: an earlier capture of this process failed: it may have left torch's allocator in the middle of it.
          RuntimeError: the calls wait for the device, or cannot be captured.
        """
        if CudaGraphs._failed is not None:
            raise Ungraphed(f"an earlier capture failed: {CudaGraphs._failed}")
        caller = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(caller)
        try:
            with torch.cuda.stream(self._stream), _waiting_is_an_error():  # rather here than in a capture, which a wait spoils
                for call in calls:
                    call()
        finally:
            caller.wait_stream(self._stream)
        # cuBLAS keeps a workspace for every stream that it has worked on, and torch frees it with the first graph of this stream
        # that goes; made anew inside of a capture, a workspace is of its graph's own memory, and stays as long as the graph
        torch._C._cuda_clearCublasWorkspaces()
        graph = torch.cuda.CUDAGraph()
        # what other threads do meanwhile is nobody's business here
        one = torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local")
        try:
            with torch.cuda.stream(caller), one:  # a capture that fails leaves its own stream the current one
                for call in calls:
                    call()
        except RuntimeError as error:
            CudaGraphs._failed = str(error)
            raise
        finally:
            torch._C._cuda_clearCublasWorkspaces()  # nobody outside of the graph works in its memory
        kept = list(calls)  # and with them the memory that the graph reads and writes

        def play() -> None:
            assert kept
            graph.replay()

        return play


@contextmanager
def _waiting_is_an_error() -> Iterator[None]:
    """A wait for the device raises a RuntimeError."""
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


@cache
def graphs_of(device: torch.device) -> CudaGraphs | None:
    """What captures graphs for a device; None where rounds are not worth one, on a CPU."""
    return CudaGraphs(device) if device.type == "cuda" else None


def split(steps: Mapping[int, Step], ends: set[int], on_host: Callable[[Tensor], bool]) -> tuple[list[int], list[int]]:
    """Which steps of a round come first, on the host or with its memory, and which are left for a graph.

    Args:
      steps: by number, in their order.
      ends: where memory begins that is written once the steps are done.
      on_host: whether a tensor is of the host's memory.

    Returns:
      The numbers of the first ones and of the others, in their order.

    Raises:
      Ungraphed: a step on the host cannot come first. It reads what the graph writes, in this round or the last one (which
        it may tell by versions of tensors, and a graph leaves these as they are); or writes what the graph has used by then.
    """
    first: list[int] = []
    rest: list[int] = []
    used: set[int] = set()  # by the graph until then
    overwritten: set[int] = set()
    for number, step in steps.items():
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
