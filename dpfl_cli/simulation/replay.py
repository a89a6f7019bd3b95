"""Replay: a round as a flat list of torch calls on fixed memory, for rounds so small that Python is what they cost.

A round is recorded while it runs as usual, with every check of marks, state and releases: torch's dispatcher shows each
operation with the tensors that it reads and writes, and all of them are kept. The same operations on the same memory (new results
through their `out=` forms, views not at all) are the next round, once the state has been copied to where the round reads it. What
a round does beside torch (drawing noise, charging the ledger, a compiled kernel) passes through `Replay.host`; it is called anew
in every round, and its results are written over the recorded ones. What does not change from round to round is left out, and so
are the diagnostics where nobody looks at them.

Why nothing slips past the door: the rules about client values depend on functions, shapes and marks, never on values, so a list
of operations that passed them once passes always. Releases go through the mechanism's own `_charge`: same checks, same charge,
same addresses of noise.

Why the numbers are the same: two rounds in a row are recorded and must be the same list, scalars included, reading nothing but
the state, results of `host`, each other's results, and memory from outside that is the same in both. What could tell rounds apart
later is refused: using `rounds`, reading a tensor out to Python, drawing from a generator, releasing for some runs only. At last
the second round is done again by the first one's list and must give the same bits. What does not pass goes on as before, and
`Replay.refused` says why.

Where a round is smaller still than the calls of torch that it takes, a stretch of them whose diagnostics nobody looks at is done
by one call of a compiled program, a leap: see `tape`. On a GPU, the calls that touch its memory alone are one CUDA graph: see
`graph`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from dpfl_cli.algorithms.base import State
from dpfl_cli.data.devices import refill
from dpfl_cli.data.streams import Streams
from dpfl_cli.privacy.client_values import READERS, client_values, opened
from dpfl_cli.privacy.separation import parts
from dpfl_cli.simulation.graph import CudaGraphs, Ungraphed, split

if TYPE_CHECKING:
    from dpfl_cli.simulation.tape import Tape

WORTHWHILE = 100  # rounds that must be left, for recording costs some rounds
SMALL = 16 << 20  # bytes that a round may make for torch's own threads to cost more than they save
LARGEST = 64 << 20  # bytes that a round may make on a CPU: a larger one costs arithmetic, not Python
_ALLOCATING = frozenset(["empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"])  # they write nothing
_OVERWRITING = frozenset(["copy_", "fill_", "zero_"])  # in place, without reading what was there
_FACTORY = frozenset(["dtype", "layout", "device", "pin_memory"])  # of new tensors; `out=` forms have them from `out`
# functions and methods by the names of operations, called in half of torch.ops' time
_BINDINGS = torch._C._VariableFunctions, torch._C.TensorBase, torch._C._linalg, torch._C._nn  # type: ignore[attr-defined]

KERNEL = "SingleOutput._compiled"  # what a tape is for

Call = Callable[[], Any]
Compute = Callable[[State, Any], tuple[State, Mapping[str, Tensor]]]


class Refused(Exception):
    """Why a round is not replayed."""


class Untaped(Exception):
    """Why rounds that are replayed are not put on a tape (`tape`)."""


class RoundNumbers:
    """[R] whole numbers `times` those of the rounds, `plus` some, which notice any use but being handed on to a mechanism or to
    streams.

    Sums and products with whole numbers are such numbers again: they address what is drawn for the steps of a round.
    """

    def __init__(self, rounds: np.ndarray, notice: Callable[[], None], times: int = 1, plus: int = 0) -> None:
        self.rounds, self.times, self.plus, self.shape = rounds, times, plus, rounds.shape
        self.__notice = notice

    @property
    def plain(self) -> np.ndarray:
        """The numbers of the round that it is; the array of rounds itself where they are these."""
        return self.rounds if (self.times, self.plus) == (1, 0) else self.rounds * self.times + self.plus

    def __mul__(self, other: Any) -> Any:
        return self.__with(self.times * other, self.plus * other) if type(other) is int else self.used("__mul__")(other)

    def __add__(self, other: Any) -> Any:
        return self.__with(self.times, self.plus + other) if type(other) is int else self.used("__add__")(other)

    def __sub__(self, other: Any) -> Any:
        return self.__with(self.times, self.plus - other) if type(other) is int else self.used("__sub__")(other)

    __rmul__, __radd__ = __mul__, __add__

    def __with(self, times: int, plus: int) -> RoundNumbers:
        return RoundNumbers(self.rounds, self.__notice, times, plus)

    def __str__(self) -> str:
        return f"{self.times} rounds + {self.plus}"

    def used(self, name: str) -> Any:
        self.__notice()
        return getattr(self.plain.copy(), name)  # one's own, as in rounds that run as they are


def _noticed(name: str) -> Any:
    if callable(getattr(np.ndarray, name)):
        return lambda self, *args, **kwargs: self.used(name)(*args, **kwargs)
    return property(lambda self: self.used(name))


_COMPARISONS = {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"}
_PROTOCOLS = {"__array_ufunc__", "__array_function__"}  # without them numpy asks for the array
_ADDRESSES = {"shape", "__mul__", "__rmul__", "__add__", "__radd__", "__sub__", "__str__"}
for _attribute in set(dir(np.ndarray)) - set(dir(object)) - _ADDRESSES - _PROTOCOLS | _COMPARISONS:
    setattr(RoundNumbers, _attribute, _noticed(_attribute))


@dataclass
class Step:
    """One operation of torch, or one call on the host.

    Attributes:
      made: the tensors that it made in memory of their own (torch), or the arrays and tensors that it fills (host).
      reads, writes: where memory begins that it reads and writes.
      given: what a call on the host gave, as copies; None for operations of torch.
    """

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    made: list[Any]
    reads: set[int]
    writes: set[int]
    given: list[Any] | None = None


@dataclass
class Recording:
    """One round: the state that it began with, the bytes that it may make, what it did, and the plain tensors that it ended with,
    by name."""

    state: State
    most: int
    steps: list[Step] = field(default_factory=list)
    after: dict[str, Tensor] = field(default_factory=dict)
    diagnostics: dict[str, Tensor] = field(default_factory=dict)
    threads: int = field(default_factory=torch.get_num_threads)
    bytes: int = 0

    def add(self, func: Any, args: Any, kwargs: Any, result: Any) -> str | None:
        """Notes an operation of torch; the reason where it cannot be done again."""
        taken = [part for part in parts((*args, *kwargs.values())) if isinstance(part, Tensor)]
        targets = _targets(func, args, kwargs)
        results = [part for part in parts(result) if part is not None]
        problem = _problem(func, taken, results)
        if problem is not None:
            return f"{func} {problem}"
        if torch.get_num_threads() != self.threads:
            return "changes the number of threads"
        made = [part for part in results if address(part) not in _addresses(taken) | {0}]
        if not made and not targets:
            return None  # a view
        name = func.overloadpacket.__name__
        overwritten = targets if name in _OVERWRITING or func._overloadname.endswith("out") else []
        read = [part for part in taken if all(part is not target for target in overwritten)]
        reads = set() if name.startswith("new_") or name.endswith("_like") else _addresses(read)
        writes = _addresses(targets) | (set() if name in _ALLOCATING else _addresses(made))
        self.steps.append(Step(func, args, kwargs, made, reads, writes))
        return self.makes(made)

    def makes(self, made: Sequence[Any]) -> str | None:
        """Counts what a step has made; the reason where a round makes too much."""
        self.bytes += sum(part.untyped_storage().nbytes() if isinstance(part, Tensor) else part.nbytes for part in made)
        return "a round makes too much to be worth it" if self.bytes > self.most else None

    def described(self) -> tuple[list[Any], list[Any]]:
        """What was done, with memory named by its origin; and the tensors and arrays from outside, in the order of their use."""
        origin: dict[int, Any] = {address(value): name for name, value in named(self.state).items()}
        outside: list[Any] = []

        def told(value: Any) -> Any:
            if isinstance(value, RoundNumbers):
                return str(value)
            if not isinstance(value, Tensor | np.ndarray):
                return str(value)  # of a float: every digit
            if address(value) not in origin:
                origin[address(value)] = len(outside)
                outside.append(value)
            place = (value.stride(), value.storage_offset()) if isinstance(value, Tensor) else value.strides
            return origin[address(value)], str(value.dtype), tuple(value.shape), place

        lines = []
        for number, step in enumerate(self.steps):
            line = [_name(step.function), *map(told, parts((*step.args, *step.kwargs.items())))]
            origin.update({address(value): (number, place) for place, value in enumerate(step.made)})
            lines.append((*line, *map(told, step.made)))
        lines += [(name, told(value)) for part in (self.after, self.diagnostics) for name, value in part.items()]
        return lines, outside

    def changing(self) -> set[int]:
        """Memory whose contents differ from round to round."""
        own = {address(value) for step in self.steps for value in step.made}
        writers = Counter(place for step in self.steps for place in step.writes)
        changing = {address(value) for value in named(self.state).values()}
        # an outsider may write to what is from outside; what is written in pieces is not followed piece by piece
        changing |= {place for place, count in writers.items() if count > 1 or place not in own}
        for step in self.steps:
            if step.given is not None or (step.reads | step.writes) & changing:
                changing |= step.writes
        return changing

    def needed(self, wanted: set[int]) -> list[int]:
        """Which steps a round takes: calls on the host, and what the wanted memory depends on and changes."""
        changing, wanted, chosen = self.changing(), set(wanted), []
        for number in reversed(range(len(self.steps))):
            step = self.steps[number]
            if step.given is not None or step.writes & wanted & changing:
                chosen.append(number)
                wanted |= step.reads
        return chosen[::-1]

    def checked(self) -> Recording:
        """Refuses a round that cannot be the next one's too: its state has another layout, or it keeps something elsewhere."""
        before = named(self.state)
        if {name: _layout(v) for name, v in self.after.items()} != {name: _layout(v) for name, v in before.items()}:
            raise Refused("changes the layout of its state")
        own = {address(value) for step in self.steps for value in step.made}
        own |= {address(value) for value in before.values()}
        read: set[int] = set()
        written: set[int] = set()
        for step in self.steps:
            read |= step.reads - own - written
            written |= step.writes
            if read & written:
                raise Refused("changes what it reads from outside of its state")
        return self


class _Readers(TorchFunctionMode):
    """Tells a replay of tensors that are read out to Python."""

    def __init__(self, replay: Replay) -> None:
        super().__init__()
        self._replay = replay

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in READERS:
            self._replay.refuse(f"reads a tensor out to Python by {name}()")
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    """Tells a replay of every operation."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch.compile is not used here, and importing what it needs takes longer than many a run."""
        return False

    def __init__(self, replay: Replay) -> None:
        super().__init__()
        self._replay = replay

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._replay.note(func, args, kwargs or {}, result)
        return result


class Replay:
    """Runs the rounds of a batch: one as it is, two that are recorded, and from then on the recording where it may.

    Args:
      rounds: how many rounds are to come.
      algorithm: the method that computes them; one that changes an attribute of its own in a round is not replayed.
      graphs: captures what a round does on a device; None on a CPU.

    Attributes:
      refused: why rounds are not replayed; None where they are, or may be.
      replaying: whether the next round is.
      untaped: why rounds that are replayed do not `leap`; None where they do, or may.
      ungraphed: why rounds that are replayed on a device, some or all, go call by call; None where they are graphs, or may be.
    """

    def __init__(self, rounds: int, algorithm: Any = None, graphs: CudaGraphs | None = None) -> None:
        self.refused = None if rounds >= WORTHWHILE else "too few rounds"
        self._algorithm, self._graphs = algorithm, graphs
        self.replaying = False
        self._warm = False  # whether a round has filled the caches of objective and mechanism
        self._recording: Recording | None = None  # in progress
        self._first: Recording | None = None
        self._paused = False
        self._calls: dict[bool, list[Call]] = {}  # of a round with diagnostics, and without
        self.untaped: str | None = None
        self.ungraphed: str | None = None
        self._tape: Tape | None = None

    def refuse(self, reason: str) -> None:
        """Ends the recording in progress, if there is one, and all replaying; the round itself goes on."""
        if self._recording is not None and not self._paused:
            self.refused, self._recording, self._first = reason, None, None

    def round(self, compute: Compute, state: State, rounds: np.ndarray, shown: bool) -> tuple[State, Mapping[str, Tensor]]:
        """The state after compute(state, rounds), and its diagnostics (perhaps none unless `shown`).

        Args:
          rounds: [R] round numbers, the same array in every round.
        """
        if self.replaying and self._first is not None:
            threads = torch.get_num_threads()
            torch.set_num_threads(1 if self._first.bytes < SMALL else threads)
            try:
                for call in self._calls[shown]:
                    call()
            finally:
                torch.set_num_threads(threads)
            return self._first.state, self._first.diagnostics
        if self._warm and any(_layout(value) != _layout(torch.empty_like(value)) for value in named(state).values()):
            self.refused = self.refused or "holds a state that is not dense"
        if self.refused is not None or not self._warm:
            self._warm = True
            return compute(state, rounds.copy())
        return self._recorded(compute, state, rounds)

    def close(self) -> None:
        """Gives back what is kept for replaying, after the last round; calls and this refer to each other: nobody else would."""
        self.replaying, self._first, self._tape = False, None, None
        self._calls.clear()

    def leap(self, rounds: np.ndarray, most: int) -> Tensor | None:
        """Does up to `most` rounds at once whose diagnostics nobody looks at; the state is where the last round left it.

        Args:
          rounds: [R] numbers of the last rounds.

        Returns:
          [k, R, d] the model after each of them, in memory that the next leap writes to; None where rounds are done one by one.
        """
        return self._tape.leap(rounds, most) if self._tape is not None and most > 1 else None

    def host(self, function: Callable[..., Any], *args: Any) -> Any:
        """function(*args), round numbers as plain arrays: done anew in every round.

        Args:
          function: returns an array or a tensor, or a tuple of them, that depend on `args` and on nothing else that changes; it
            leaves `args` as they are. One that takes `out` fills this tensor or array, if it is given, in place of a new one.
        """
        plain = [_plain(arg) for arg in args]
        if self._recording is None or self._paused:
            return function(*plain)
        with self._pause() as recording:
            result = function(*plain)
            given = [_copied(part) for part in parts(result)]
            made = [_copied(part) for part in given]
            recording.steps.append(Step(function, args, {}, made, _addresses(args), _addresses(made), given))
            problem = recording.makes(made)
        if problem is not None:
            self.refuse(problem)
        if any(isinstance(arg, np.ndarray) and arg.dtype == bool for arg in plain):
            self.refuse("releases for some runs only")
        return tuple(made) if isinstance(result, tuple) else made[0]

    def note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Records an operation of torch."""
        if self._recording is None or self._paused:
            return
        with self._pause() as recording:
            problem = recording.add(func, args, kwargs, result)
        if problem is not None:
            self.refuse(problem)

    @contextmanager
    def _pause(self) -> Iterator[Recording]:
        """What is done in the meantime is not part of the round."""
        assert self._recording is not None
        self._paused = True
        try:
            yield self._recording
        finally:
            self._paused = False

    def _recorded(self, compute: Compute, state: State, rounds: np.ndarray) -> tuple[State, Mapping[str, Tensor]]:
        """A round as it is, recorded; after the second one replaying may begin."""
        most = LARGEST if self._graphs is None else self._graphs.largest
        self._recording = recording = Recording(_own(state), most)
        before = named(recording.state)
        held = _attributes(self._algorithm)
        numbers = RoundNumbers(rounds, lambda: self.refuse("uses the number of the round"))
        try:
            with _Readers(self), _Operations(self):
                state, diagnostics = compute(recording.state, numbers)
                # computed here, where it is recorded; what is part of the old state is copied before the new one is written there
                diagnostics = {name: self._apart(value, None, before) for name, value in diagnostics.items()}
                after = {name: self._apart(value, name, before) for name, value in named(state).items()}
        finally:
            if _attributes(self._algorithm) != held:
                self.refuse("keeps something outside of its state")
            complete, self._recording = self._recording is not None, None
        recording.after, recording.diagnostics = after, diagnostics
        if not complete:
            return state, diagnostics
        try:
            if self._first is None:
                self._first = recording.checked()
                state = _own(state)  # the recording's memory will be written anew
            else:
                self._begin(self._first, recording.checked(), rounds)
                return self._first.state, diagnostics
        except Refused as reason:
            self.refused, self._first = str(reason), None
        return state, diagnostics

    def _apart(self, value: Tensor, name: str | None, before: Mapping[str, Tensor]) -> Tensor:
        """A value of the next state, or of none; a copy where the last one holds it under another name, or otherwise laid out."""
        if self._recording is None:
            return value
        with self._pause():
            own = None if name is None else before.get(name)
            held = address(value) in _addresses(before.values()) and not _same_memory(value, own)
        return value.clone() if held else value

    def _begin(self, first: Recording, second: Recording, rounds: np.ndarray) -> None:
        """Does the second round again by the first one's list; where all is the same, the next one is replayed."""
        (lines, outside), (again, outside_again) = first.described(), second.described()
        for one, other in zip_longest(lines, again):
            if one != other:
                raise Refused(f"does not do the same in every round: {one or other}")
        if not all(address(a) == address(b) or _same_bits(a, b) for a, b in zip(outside, outside_again, strict=True)):
            raise Refused("makes tensors of numbers that change")
        before = named(first.state)
        for name, value in named(second.state).items():
            before[name].copy_(value)
        calls: dict[int, Call] = {}
        shown = first.needed(_addresses([*first.after.values(), *first.diagnostics.values()]))
        for number in shown:
            step = first.steps[number]
            if step.given is None:
                calls[number] = _settled(step)
            else:
                _fill(step.made, second.steps[number].given or [])
                calls[number] = _host_call(step, first.threads)
        _compare({**first.after, **first.diagnostics}, second, Refused)
        ends = [
            partial(before[name].copy_, value) for name, value in first.after.items() if not _same_memory(value, before[name])
        ]
        hidden = first.needed(_addresses(first.after.values()))
        for look, numbers in ((False, hidden), (True, shown)):
            self._calls[look] = [*(calls[number] for number in numbers), *ends]
            if self._graphs is not None and self.ungraphed is None:
                try:
                    self._calls[look] = self._graphed(first, second, numbers, calls, ends)
                except (Ungraphed, RuntimeError) as reason:
                    self.ungraphed = str(reason)
        try:
            self._tape = self._taped(first, second, hidden, rounds)
        except Untaped as reason:
            self.untaped = str(reason)
        for name, value in second.after.items():
            before[name].copy_(value)
        for step in first.steps:
            step.given = None if step.given is None else []  # nobody reads what it gave any more
        self.replaying = True

    def _graphed(
        self, first: Recording, second: Recording, numbers: list[int], calls: Mapping[int, Call], ends: Sequence[Call]
    ) -> list[Call]:
        """The calls of a round, those that touch nothing but the device's memory played by one, on which the second round has
        given the same bits."""
        assert self._graphs is not None
        before = named(first.state)
        written = {address(before[name]) for name, value in first.after.items() if not _same_memory(value, before[name])}
        come_first, rest = split({number: first.steps[number] for number in numbers}, written, self._graphs.on_host)
        play = self._graphs.captured([*(calls[number] for number in rest), *ends])
        for name, value in named(second.state).items():
            before[name].copy_(value)
        for number in come_first:
            given = second.steps[number].given
            if given is None:
                calls[number]()
            else:
                _fill(first.steps[number].made, given)
        play()
        _compare({**before, **first.diagnostics}, second, Ungraphed)
        return [*(calls[number] for number in come_first), play]

    def _taped(self, first: Recording, second: Recording, hidden: list[int], rounds: np.ndarray) -> Tape:
        """The first round's steps as a tape, on which the second round has given the same bits."""
        if first.bytes >= SMALL:
            raise Untaped("makes more than it pays to do in one thread")
        if not any(getattr(step.function, "__qualname__", "") == KERNEL for step in first.steps):
            raise Untaped("computes no gradients by the kernel of linear models")
        from dpfl_cli.simulation.tape import Tape  # the compiler is here, for the kernel is

        before = named(first.state)
        ends = {name: value for name, value in first.after.items() if not _same_memory(value, before[name])}
        steps = [first.steps[number] for number in hidden]
        tape = Tape(steps, [(before[name], value) for name, value in ends.items()], first.after["server model"], rounds)
        given = {id(first.steps[number]): second.steps[number].given or [] for number in hidden}
        for (name, value), found in zip(ends.items(), tape.played(rounds, given), strict=True):
            if not _same_bits(found, value):
                raise Untaped(f"gives another {name}")
        return tape


def _attributes(owner: Any) -> list[tuple[str, Any]]:
    """An object's attributes, such that a change of one shows: plain values as they read, tensors with their version."""
    return [(name, [_told(part) for part in parts([value])]) for name, value in getattr(owner, "__dict__", {}).items()]


def _told(value: Any) -> Any:
    if isinstance(value, dict):
        return [(key, *map(_told, parts([held]))) for key, held in value.items()]
    plain = isinstance(value, bool | int | float | str | bytes | set | np.ndarray)
    return repr(value) if plain else (id(value), getattr(value, "_version", 0))


class HostStreams(Streams):
    """Streams of a batch whose rounds may be replayed."""

    def __init__(self, seeds: Sequence[int], replay: Replay, noise: torch.device | None = None) -> None:
        super().__init__(seeds, noise)
        self._replay = replay

    def generator(self, run: int, name: str, *key: int) -> np.random.Generator:
        self._replay.refuse("draws from a generator")
        return super().generator(run, name, *key)

    def subset(
        self,
        name: str,
        rounds: np.ndarray,
        clients: int,
        populations: np.ndarray,
        size: int,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        chosen: Tensor = self._replay.host(super().subset, name, rounds, clients, populations, size, device)
        return chosen

    def _draw(self, *args: Any) -> Tensor:
        drawn: Tensor = self._replay.host(super()._draw, *args)
        return drawn

    def _on_device(self, *args: Any) -> Tensor:
        """What a device draws itself is addressed on the host, in every round; what the host draws passes through `_draw`."""
        drawn: Tensor = self._replay.host(super()._on_device, *args) if self._drawing(args[-1]) else super()._on_device(*args)
        return drawn


def named(state: State) -> dict[str, Tensor]:
    """The plain tensors of a state."""
    sides = (("server", state.server), ("clients", state.clients))
    return {f"{side} {name}": opened(value) for side, values in sides for name, value in values.items()}


def _own(state: State) -> State:
    """The state in memory of its own."""
    clients = {name: client_values(opened(value).clone()) for name, value in state.clients.items()}
    return State({name: value.clone() for name, value in state.server.items()}, clients)


def address(value: Any) -> int:
    """Where the memory of a tensor or an array begins."""
    return value.untyped_storage().data_ptr() if isinstance(value, Tensor) else value.__array_interface__["data"][0]


def _addresses(values: Any) -> set[int]:
    return {address(part) for part in parts(list(values)) if isinstance(part, Tensor | np.ndarray)} - {0}


def _name(function: Any) -> Any:
    """What tells functions apart that are made anew in every round, as methods are."""
    return (getattr(function, "__qualname__", None) or str(function)), id(getattr(function, "__self__", None))


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value.copy()


def _plain(value: Any) -> Any:
    return value.plain if isinstance(value, RoundNumbers) else value


def _same_memory(one: Tensor, other: Tensor | None) -> bool:
    return other is not None and one.data_ptr() == other.data_ptr() and _layout(one) == _layout(other)


def _layout(value: Tensor) -> tuple[Any, ...]:
    """Shape and strides, which where there is one entry say nothing."""
    return value.dtype, tuple((size, stride) for size, stride in zip(value.shape, value.stride(), strict=True) if size > 1)


def _same_bits(one: Any, other: Any) -> bool:
    one, other = torch.as_tensor(one), torch.as_tensor(other)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    dense = (value.reshape(-1).clone(memory_format=torch.contiguous_format) for value in (one, other))
    return torch.equal(*(value.view(torch.uint8) for value in dense))


def _compare(found: Mapping[str, Tensor], expected: Recording, refusal: type[Exception]) -> None:
    """Refuses a round done anew that has not given the recorded one's state and diagnostics."""
    for name, value in {**expected.after, **expected.diagnostics}.items():
        if not _same_bits(found[name], value):
            raise refusal(f"the replayed round has another {name}")


def _fill(places: Sequence[Any], values: Sequence[Any]) -> None:
    """Writes values over arrays and tensors."""
    for place, value in zip(places, values, strict=True):
        if isinstance(place, Tensor):
            place.copy_(value)
        else:
            np.copyto(place, value)


def _host_call(step: Step, threads: int) -> Call:
    """Calls on the host, with all threads, and writes what that gives over what it gave when it was recorded."""
    function, args, places = step.function, step.args, step.made
    into = {"out": places[0]} if "out" in signature(function).parameters else {}

    def call() -> None:
        fewer = torch.get_num_threads()
        torch.set_num_threads(threads)
        result = function(*map(_plain, args), **into)
        torch.set_num_threads(fewer)
        if not into:
            _fill(places, result if type(result) is tuple else (result,))

    return call


def _targets(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors that an operation writes to."""
    found: list[Tensor] = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            found += [part for part in parts(value) if isinstance(part, Tensor)]
    return found


def _problem(func: Any, taken: list[Any], results: list[Any]) -> str | None:
    """Why an operation cannot be done again on the same memory."""
    if any(type(part) is not Tensor for part in results):
        return "reads a tensor out to Python"
    if any(type(part) is not Tensor or part.requires_grad for part in [*taken, *results]):
        return "is more than arithmetic on plain tensors"
    if torch.Tag.nondeterministic_seeded in func.tags:
        return "draws numbers"
    positions = func.overloadpacket.__name__ == "index" and all(part.dtype == torch.int64 for part in taken[1:])
    if torch.Tag.dynamic_output_shape in func.tags and not positions:
        return "gives a shape that depends on values"
    return None


def _settled(step: Step) -> Call:
    """Does an operation again on its memory; the call that did it."""
    name = step.function.overloadpacket.__name__
    if name in ("clone", "_to_copy"):
        place, source = step.made[0], step.args[0]
        calls = [partial(place.copy_, source) if place.device == source.device else partial(refill, place, source)]
    else:
        form, args, kwargs = step.function, step.args, step.kwargs
        if step.made:
            form, kwargs = _out_form(step)
        binding = next((getattr(space, name) for space in _BINDINGS if hasattr(space, name)), form)
        calls = [partial(function, *args, **kwargs) for function in (binding, form)]
    for call in calls:
        try:
            call()
            return call
        except (TypeError, RuntimeError):  # the binding takes its arguments in another way
            continue
    raise Refused(f"{step.function} cannot be called again")


def _out_form(step: Step) -> tuple[Any, dict[str, Any]]:
    """The overload of an operation that writes into given tensors, and its keyword arguments with them."""
    packet = step.function.overloadpacket
    wanted = [(one.name, str(one.type)) for one in step.function._schema.arguments if one.name not in _FACTORY]
    for form in (getattr(packet, overload) for overload in packet.overloads()):
        arguments = form._schema.arguments
        outs = [one.name for one in arguments if one.is_out]
        if outs and [(one.name, str(one.type)) for one in arguments if not one.is_out and one.name not in _FACTORY] == wanted:
            known = {one.name for one in arguments}
            kwargs = {key: value for key, value in step.kwargs.items() if key in known}
            return form, {**kwargs, **dict(zip(outs, step.made, strict=True))}
    raise Refused(f"{step.function} has no form that writes into given memory")
