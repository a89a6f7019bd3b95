"""Tape: several replayed rounds in one call of a compiled program, for rounds so small that calling torch is what they cost.

The list of a replayed round (`replay`) is translated into instructions for an interpreter that is compiled once
(`tape_program`): torch's arithmetic, the kernel of gradients, and noise. What else a round does on the host, charging the ledger
and drawing, is done for all rounds of a leap before the program starts: neither depends on what the rounds compute. The state
goes into the program's memory before, and out of it after.

Charging and computing the rounds of a leap is one act, as it is for a single round: nobody looks in between, an error leaves the
state as it was before the leap, and a leap is over before anybody waits for it. Rounds whose diagnostics somebody looks at are
replayed as before.

Why the numbers are the same: sums, differences, products and quotients of float64 are what IEEE 754 says; sums over clients are
added up in torch's order, which is tried out on random numbers of the same layout; the kernel is the same code. At last a
recorded round is played and must give the same bits. What the tape does not know is refused, and `Replay.untaped` says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpfl_cli.data.programs import built_or_none
from dpfl_cli.data.streams import Streams, client_tiles
from dpfl_cli.data.threads import in_threads, usable_threads
from dpfl_cli.models.single_output import SingleOutput
from dpfl_cli.models.single_output_kernel import SHARED_WORK, SingleOutputKernel, signature
from dpfl_cli.privacy.mechanism import Mechanism
from dpfl_cli.simulation.replay import Step, Untaped, address
from dpfl_cli.simulation.tape_program import (
    ADD,
    COPY,
    DIVIDE,
    GRADIENT,
    LAST,
    MULTIPLY,
    OPERAND,
    OPERANDS,
    SUBTRACT,
    SUM,
    TapeProgram,
    instruction,
    joined,
    settings,
)

LONGEST = 64  # rounds of a leap; as many as a tile of noise has
LARGEST = 1 << 20  # numbers of memory that a leap may copy
MOST_NOISE = 1 << 21  # numbers of noise that a leap may take
MOST_WORK = 1 << 28  # products and sums of a leap, some twenty milliseconds: nobody waits longer for its end
RUNS = 8  # that go through a leap together
ARITHMETIC = {"add": ADD, "sub": SUBTRACT, "mul": MULTIPLY, "div": DIVIDE}
ENOUGH_SUMS = 2000  # to tell orders apart
VECTORS = 4, 8, 2  # numbers in a vector of torch's sums, which differs between processors


class View:
    """Numbers of the program's memory, as a tensor lies there: shape, strides, and the step from round to round.

    `region` is where the memory begins that it is part of. A negative step says that the numbers lie elsewhere: those of run r in
    round i begin at tables[-1 - step, i, place + r].
    """

    def __init__(
        self, place: int, shape: Sequence[int], strides: Sequence[int], step: int = 0, region: int | None = None
    ) -> None:
        self.place, self.shape, self.strides, self.step = place, tuple(shape), tuple(strides), step
        self.region = place if region is None else region

    def like(self, shape: Sequence[int]) -> View:
        """Broadcast to a shape."""
        missing = len(shape) - len(self.shape)
        own = [0 if size == 1 else stride for size, stride in zip(self.shape, self.strides, strict=True)]
        return View(self.place, shape, [0] * missing + own, self.step, self.region)

    def of_clients(self, rows: slice) -> View:
        """Some of the clients, the second of three axes; of two axes, none of which is of clients, all."""
        if len(self.shape) < 3:
            return self
        place = self.place + rows.start * self.strides[1]
        return View(place, (self.shape[0], rows.stop - rows.start, self.shape[2]), self.strides, self.step, self.region)

    def moved(self, region: int) -> View:
        """The same numbers of another region."""
        return View(self.place - self.region + region, self.shape, self.strides, self.step, region)


def dense(place: int, shape: Sequence[int], step: int = 0) -> View:
    """Numbers that lie one after the other."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return View(place, shape, strides, step)


class Tape:
    """The steps of a round as a program.

    Args:
      steps: the round's steps, in order.
      ends: (the state's tensor, the new value's tensor), which are copied at the end of a round.
      model: [R, d] the model after the round.
      rounds: the array [R] that holds the numbers of the round, where it is an argument of a step.

    Raises:
      Untaped: a step is none that the tape knows.
    """

    def __init__(self, steps: Sequence[Step], ends: Sequence[tuple[Tensor, Tensor]], model: Tensor, rounds: Any) -> None:
        self._size = 0
        self._places: dict[int, int] = {}  # where memory begins -> its place in the program's
        self._sizes: dict[int, int] = {}  # place -> how many numbers
        self._inputs: list[tuple[int, np.ndarray]] = []  # place, all numbers of a memory that is read before it is written
        self._written: set[int] = set()
        self._lines: list[tuple[int, list[View], int]] = []  # instruction, operands, its last number
        self._constants: list[tuple[int, float]] = []
        self._kernel: SingleOutputKernel | None = None
        self._calls: list[tuple[Any, ...]] = []  # of the kernel, one for every federation
        self._work = 0
        self._numbers = rounds
        self._constant: list[Tensor] = []  # what the host reads for all rounds at once
        self._charges: dict[str, list[Step]] = {}
        self._charged: dict[int, tuple[str, int]] = {}  # memory of addresses -> the release's name, its number in the round
        self._draws: dict[tuple[Any, ...], list[Step]] = {}
        for step in steps:
            self._prepare(step)
        self.longest = self._longest()
        self._parameters = {name: self._room(self.longest * len(model)) for name in self._charges}
        self._tables = 0  # of noise: where it lies, for every draw and tile
        self._noise: dict[tuple[Any, ...], int] = {}  # the first one, of every kind of draw
        for key, draws in self._draws.items():
            self._noise[key] = self._tables
            self._tables += len(draws) * len(_tiles(draws[0]))
        for step in steps:
            self._translate(step)
        if self._kernel is None:
            raise Untaped("computes no gradients by the kernel")
        self._history = dense(self._room(self.longest * model.numel()), model.shape, model.numel())
        self._add(COPY, self._history, self._of(model))
        for target, value in ends:
            self._add(COPY, self._of(target, written=True), self._of(value))
        if any(address(value) in self._written for value in self._constant):
            raise Untaped("computes its clip norm")
        self._reuse_memory([self._places[address(target)] for target, _ in ends])
        self._memory: np.ndarray = np.zeros(self._size)
        for place, value in self._constants:
            self._memory[place] = value
        whole, first = torch.from_numpy(self._memory), self._history.place
        self._models: Tensor = whole[first : first + self.longest * model.numel()].view(self.longest, *model.shape)
        places = [(target, self._places[address(target)] + int(target.storage_offset())) for target, _ in ends]
        self._outputs: list[tuple[np.ndarray, np.ndarray]] = [  # numpy's copies wake up no thread
            (target.numpy(), whole.as_strided(target.shape, target.stride(), place).numpy()) for target, place in places
        ]
        self._fixed: tuple[Any, ...] = joined(self._calls)
        size = self._run_by_run(len(model))
        everything = self._code(apart=size > 0)
        self._parts: list[tuple[np.ndarray, np.ndarray, np.ndarray, int]] = [
            self._part(everything, first, min(first + (size or len(model)), len(model)), apart=size > 0)
            for first in range(0, len(model), size or len(model))
        ]
        self._player: TapeProgram = program()
        self._address: int = self._kernel.address

    def leap(self, rounds: np.ndarray, most: int) -> Tensor:
        """Charges and computes up to `most` rounds, those after `rounds` [R], in the state's tensors.

        Returns:
          [k, R, d] the model after each of them; overwritten by the next leap.
        """
        numbers = rounds + np.arange(1, 1 + min(most, self.longest)).reshape(-1, 1)
        charged = {}
        for name, charges in self._charges.items():
            told = [(step.args[1], step.args[2], step.args[5]) for step in charges]
            mechanism, spec = charges[0].function.__self__, charges[0].args[0]
            charged[name] = mechanism._charge_rounds(spec, told, numbers)
        self._play(numbers, charged)
        for target, value in self._outputs:
            target[...] = value
        return self._models[: len(numbers)]

    def played(self, rounds: np.ndarray, given: Mapping[int, Sequence[Any]]) -> list[Tensor]:
        """The state's tensors as they would be after the round of these numbers [R].

        Args:
          given: id of a step that charges -> the parameters [R] and addresses [R] that it gave.
        """
        charged = {}
        for name, charges in self._charges.items():
            parameters, addresses = zip(*(given[id(step)] for step in charges), strict=True)
            charged[name] = parameters[0].reshape(1, -1), np.stack(addresses)[None]
        self._play(rounds.reshape(1, -1), charged)
        return [torch.from_numpy(value) for _, value in self._outputs]

    def _play(self, rounds: np.ndarray, charged: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
        count, runs = rounds.shape
        memory = self._memory
        for name, (parameters, _) in charged.items():
            place = self._parameters[name]
            memory[place : place + parameters.size] = parameters.ravel()
        tables = np.empty((self._tables, count, runs), np.int64)
        for kind, draws in self._draws.items():
            law, name, clients, size = kind
            numbers = np.stack([self._addresses(step, rounds, charged) for step in draws], axis=1).reshape(-1, runs)
            found = draws[0].function.__self__.places(law, name, numbers, clients, size, memory.dtype)
            first = self._noise[kind]
            each = np.stack(found).reshape(len(found), count, len(draws), runs).transpose(2, 0, 1, 3)  # [draws, tiles, k, R]
            tables[first : first + len(found) * len(draws)] = (
                each.reshape(-1, count, runs) - memory.ctypes.data
            ) // memory.itemsize
        for place, values in self._inputs:
            memory[place : place + len(values)] = values
        jobs = [
            partial(self._player.play, memory, code, count, tables, self._address, some, starts, apart, self._fixed)
            for code, some, starts, apart in self._parts
        ]
        in_threads(jobs, usable_threads() if self._work * count >= SHARED_WORK else 1)

    def _addresses(self, step: Step, rounds: np.ndarray, charged: dict[str, tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        """[k, R] what a draw is addressed by."""
        source = self._charged.get(_key(step.args[2]))
        if source is None:
            return rounds
        name, number = source
        return charged[name][1][:, number]

    def _prepare(self, step: Step) -> None:
        """Notes what is done on the host for all rounds of a leap at once, and how much work a round is."""
        done = getattr(step.function, "__func__", None)
        if done is Mechanism._charge:
            charges = self._charges.setdefault(step.args[0].name, [])
            self._charged[address(step.made[1])] = step.args[0].name, len(charges)
            self._constant += step.args[1:3]
            charges.append(step)
        elif done is Streams._draw:
            if _key(step.args[2]) not in self._charged and getattr(step.args[2], "plain", None) is not self._numbers:
                raise Untaped("draws noise at an address of its own")
            if step.args[5] != torch.float64:
                raise Untaped("computes in single precision")
            self._draws.setdefault(_kind(step), []).append(step)
        elif done is SingleOutput._compiled:
            self._gradients(step)
        elif step.given is not None:
            raise Untaped(f"calls {getattr(step.function, '__qualname__', step.function)}")

    def _gradients(self, step: Step) -> None:
        """Notes what the kernel is called with."""
        kernel, mode, _, bounds, batch, _ = step.args
        calls = step.function.__self__.kernel_arguments(*step.args)
        if mode not in ("gradient", "clipped") or batch is not None:
            raise Untaped("computes gradients of batches")
        for one, other in zip(calls, self._calls or calls, strict=True):
            if self._kernel not in (None, kernel) or not all(map(_same, settings(one), settings(other))):
                raise Untaped("computes several kinds of gradients")
        self._kernel, self._calls = kernel, calls
        self._constant += [] if bounds is None else [bounds]
        self._work += sum(2 * int(call[10].sum()) * len(call[11]) * step.made[0].shape[-1] for call in calls)

    def _longest(self) -> int:
        """How many rounds a leap may have."""
        noise = sum(len(draws) * _values(draws[0]) for draws in self._draws.values())
        rounds = min(LONGEST, MOST_NOISE // max(1, noise), MOST_WORK // max(1, self._work))
        if rounds < 2:
            raise Untaped("has more work in a round than calls")
        return rounds

    def _translate(self, step: Step) -> None:
        done = getattr(step.function, "__func__", None)
        if done is Mechanism._charge:
            runs = len(step.made[0])
            given = dense(self._parameters[step.args[0].name], (runs,), runs)
            self._add(COPY, self._region(step.made[0], written=True), given)
        elif done is Streams._draw:
            self._noisy(step)
        elif done is SingleOutput._compiled:
            parameters, result = self._of(step.args[2]), self._of(step.made[0], written=True)
            self._lines.append((GRADIENT, [result, parameters], 0))
        else:
            self._operation(step)

    def _noisy(self, step: Step) -> None:
        """Draws; or values, plus scale [R] or [R, M] times the draws, as `streams._scaled` does it."""
        onto = step.args[6:]
        draws, tiles = self._draws[_kind(step)], _tiles(step)
        number = next(n for n, one in enumerate(draws) if one is step)
        out = self._of(step.made[0], written=True)
        given = [self._of(value) for value in onto if value is not None]
        if len(given) not in (0, 2):
            raise Untaped("scales values as it adds noise")
        if given:
            scale = given[1]
            missing = len(out.shape) - len(scale.shape)
            given[1] = View(scale.place, (*scale.shape, *[1] * missing), (*scale.strides, *[0] * missing), 0, scale.region)
        for table, rows in enumerate(tiles, start=self._noise[_kind(step)] + number * len(tiles)):
            into, *some = (view.like(out.shape).of_clients(rows) for view in (out, *given))
            drawn = View(0, into.shape, (1, *dense(0, into.shape).strides[1:]), -1 - table, region=-1)
            if not some:
                self._add(COPY, into, drawn)
            else:
                self._add(MULTIPLY, into, drawn, some[1])
                self._add(ADD, into, into, some[0])

    def _operation(self, step: Step) -> None:
        """An operation of torch."""
        name = step.function.overloadpacket.__name__
        args, kwargs = list(step.args), step.kwargs
        base = name.removesuffix("_")
        if not step.made and not name.endswith("_"):
            raise Untaped(f"takes {step.function}")
        out = self._of(step.made[0] if step.made else args[0], written=True)
        if base in ARITHMETIC and len(args) == 2 and kwargs.get("alpha", 1) == 1 and not kwargs.get("rounding_mode"):
            self._add(ARITHMETIC[base], out, *(self._of(arg) for arg in args))
        elif name == "reciprocal":
            self._add(DIVIDE, out, self._of(1.0), self._of(args[0]))
        elif name in ("clone", "_to_copy", "copy_"):
            self._add(COPY, out, self._of(args[-1] if name == "copy_" else args[0]))
        elif name in ("sum", "mean") and len(args) > 1 and args[0].dim() == 3 and [axis % 3 for axis in _axes(args[1])] == [1]:
            source = self._of(args[0])
            runs, rows, columns = source.shape
            if source.strides[2] != 1:
                raise Untaped("adds up tensors of another layout")
            result = View(out.place, (runs, 1, columns), (columns, 0, 1), 0, out.region)
            one_by_one = torch_order(runs, rows, columns, *source.strides[:2])
            self._lines.append((SUM, [result, source], one_by_one))
            if name == "mean":
                self._add(DIVIDE, result, result, self._of(float(rows)))
        else:
            raise Untaped(f"takes {step.function}")

    def _add(self, what: int, out: View, *operands: View) -> None:
        """An elementwise instruction."""
        self._lines.append((what, [out, *(one.like(out.shape) for one in operands)], 0))

    def _run_by_run(self, runs: int) -> int:
        """How many runs at a time may go through the whole leap on their own, which a cache thanks for, and in threads.

        0 where a part of one run's numbers may lie among another's.
        """
        written = {views[0].region for _, views, _ in self._lines}
        for _, views, _ in self._lines:
            for view in views:
                if view.step:
                    continue  # noise, parameters and models of the leap: read only, or written only
                if not view.shape or view.shape[0] != runs or (view.strides[0] == 0 and view.region in written):
                    return 0
                reach = sum((size - 1) * stride for size, stride in zip(view.shape[1:], view.strides[1:], strict=True))
                if view.region in written and (view.place - view.region) % view.strides[0] + reach >= view.strides[0]:
                    return 0
                if view.region in written and view.strides[0] * runs != self._sizes[view.region]:
                    return 0
        threads = usable_threads()
        return -(-runs // (threads * -(-runs // (threads * RUNS))))  # at most RUNS, the same number for every thread

    def _reuse_memory(self, lasting: Sequence[int]) -> None:
        """Lets what a round holds for some of its steps only share memory: a run's numbers then stay in the nearest cache.

        Args:
          lasting: regions that are needed after the round; what is read before it is written is needed from round to round too.
        """
        begins: dict[int, int] = {}
        ends: dict[int, int] = {}
        apart = {*lasting, *(place for place, _ in self._inputs)}
        for number, (_, views, _) in enumerate(self._lines):
            for view in reversed(views):  # what is written comes first
                ends[view.region] = number
                begins.setdefault(view.region, number)
                whole = view is views[0] and 0 not in view.strides and np.prod(view.shape) == self._sizes.get(view.region)
                if begins[view.region] == number and not whole:
                    apart.add(view.region)
        free: dict[int, list[int]] = {}  # size -> regions that nobody needs any more
        moved: dict[int, int] = {}
        for number, (what, views, last) in enumerate(self._lines):
            for region in (view.region for view in views if view.region not in apart and begins[view.region] == number):
                waiting = free.get(self._sizes[region])
                moved.setdefault(region, waiting.pop() if waiting else region)
            self._lines[number] = what, [view.moved(moved.get(view.region, view.region)) for view in views], last
            for region in {view.region for view in views if view.region not in apart and ends[view.region] == number}:
                free.setdefault(self._sizes[region], []).append(moved[region])

    def _code(self, apart: bool) -> np.ndarray:
        """[lines, WIDTH] the code for all runs."""
        code = []
        for what, views, number in self._lines:
            if what == GRADIENT:
                code.append(instruction(what, views[0].shape, *map(_operand, views)))
            elif what == SUM:
                code.append(instruction(what, views[1].shape, *map(_operand, views), last=number))
            else:
                laid = _axes_joined(views, apart)
                code.append(instruction(what, laid[0].shape, *map(_operand, laid)))
        return np.stack(code)

    def _part(self, code: np.ndarray, first: int, last: int, apart: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        """What `TapeProgram.play` takes for some of the runs: code, these runs by federation, where every federation's begin, and
        how many are `apart`."""
        if apart:
            code = code.copy()
            moving = code[:, 0] != GRADIENT  # it takes the numbers of its runs
            code[moving, 1] = last - first
            for operand in range(OPERANDS, LAST, OPERAND):
                code[moving, operand] += first * code[moving, operand + 2]
        runs = [call[11][(call[11] >= first) & (call[11] < last)] for call in self._calls]
        return code, np.concatenate(runs), np.cumsum([0, *map(len, runs)]), last - first if apart else 0

    def _room(self, size: int) -> int:
        """A place for so many numbers, on cache lines of its own."""
        place, self._size = self._size, self._size + -(-size // 8) * 8
        return place

    def _of(self, value: Any, written: bool = False) -> View:
        """A tensor or a number in the program's memory."""
        if isinstance(value, bool | int | float):
            place = self._room(1)
            self._constants.append((place, float(value)))
            return View(place, (), ())
        if type(value) is not Tensor or value.dtype != torch.float64:
            raise Untaped("computes with other numbers than float64")
        region = self._region(value, written)
        return View(region.place + int(value.storage_offset()), value.shape, value.stride(), 0, region.place)

    def _region(self, value: Any, written: bool) -> View:
        """All numbers of the memory of a tensor or an array."""
        where = address(value)
        if where not in self._places:
            numbers = _flat(value)
            if numbers.size > LARGEST:
                raise Untaped("reads more than it pays to copy")
            self._places[where] = self._room(numbers.size)
            self._sizes[self._places[where]] = numbers.size
            if not written:
                self._inputs.append((self._places[where], numbers))
        if written:
            self._written.add(where)
        return dense(self._places[where], _flat(value).shape)


def _axes_joined(views: Sequence[View], apart: bool) -> list[View]:
    """The operands of an elementwise instruction with three axes: those are joined that can be, and the last one is dense.

    `apart`: not the first one, along which something else happens in between.
    """
    axes: list[tuple[int, list[int]]] = []  # size, stride of every operand; from the last
    first = 1 if apart or any(view.step < 0 for view in views) else 0
    for axis in reversed(range(first, len(views[0].shape))):
        size, strides = views[0].shape[axis], [view.strides[axis] for view in views]
        if size == 1:
            continue
        if axes and strides == [stride * axes[-1][0] for stride in axes[-1][1]]:
            axes[-1] = axes[-1][0] * size, axes[-1][1]
        else:
            axes.append((size, strides))
    axes += [(1, [0 if axes else 1] * len(views))] * (3 - first - len(axes))
    axes += [(views[0].shape[0], [view.strides[0] for view in views])] * first
    if len(axes) > 3 or axes[0][1][0] != 1 or any(stride not in (0, 1) for stride in axes[0][1]):
        raise Untaped("takes tensors of another layout")
    shape = [size for size, _ in reversed(axes)]
    return [
        View(view.place, shape, [strides[number] for _, strides in reversed(axes)], view.step, view.region)
        for number, view in enumerate(views)
    ]


def _operand(view: View) -> tuple[int, int, Sequence[int]]:
    return view.place, view.step, view.strides


def _key(rounds: Any) -> int:
    """What tells arrays of addresses apart; 0 for what is none."""
    return address(rounds) if isinstance(rounds, np.ndarray) else 0


def _kind(step: Step) -> tuple[Any, str, int, int]:
    """Draws that share tiles: their law, stream, clients (1 for a server-side one) and coordinates."""
    law, name, _, clients, size = step.args[:5]
    return law, name, clients or 1, size


def _tiles(step: Step) -> list[slice]:
    """The clients of every tile of a draw; one row for a server-side one."""
    return client_tiles(step.args[3] or 1)


def _values(step: Step) -> int:
    """How many numbers a draw takes."""
    return int(step.made[0].numel())


def _flat(value: Any) -> np.ndarray:
    """All float64 numbers of the memory of a tensor or an array."""
    if isinstance(value, np.ndarray):
        if value.dtype != np.float64:
            raise Untaped("computes with other numbers than float64")
        return value.reshape(-1)
    return torch.empty(0, dtype=torch.float64).set_(value.untyped_storage()).numpy()


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return address(one) == address(other) and one.shape == other.shape
    return bool(one == other)


def _axes(given: Any) -> list[int]:
    return [given] if isinstance(given, int) else list(given or [])


@cache
def torch_order(runs: int, rows: int, columns: int, outer: int, middle: int) -> int:
    """How many of the first columns torch adds up one by one (see `tape_program._sum`): a sum over axis 1 of three.

    It depends on how long torch's vectors are on this processor, and is found by trying.

    Args:
      outer, middle: strides of the first two axes; the last one's is 1.

    Raises:
      Untaped: no number gives torch's bits.
    """
    nothing, no_tables = np.empty(0, np.int64), np.empty((0, 0, 0), np.int64)
    span = (runs - 1) * outer + (rows - 1) * middle + columns
    tries = max(1, min(8, ENOUGH_SUMS // (runs * columns)))
    numbers = np.random.default_rng(0).standard_normal((tries, span))
    tried = [torch.from_numpy(row).as_strided((runs, rows, columns), (outer, middle, 1)) for row in numbers]
    expected = np.stack([one.sum(dim=1).numpy() for one in tried])
    for vector in VECTORS:
        group = 4 * vector if columns >= vector else 4
        first = columns // group * group
        code = instruction(SUM, (runs, rows, columns), (span, 0, (columns,)), (0, 0, (outer, middle)), last=first).reshape(1, -1)
        found = []
        for row in numbers:
            memory = np.concatenate((row, np.zeros(runs * columns)))
            program().play(memory, code, 1, no_tables, 0, nothing, nothing, 0, _no_kernel())
            found.append(memory[span:].reshape(runs, columns))
        if np.array_equal(np.stack(found), expected):
            return first
    raise Untaped("adds up in an order that is not known")


@cache
def _no_kernel() -> tuple[Any, ...]:
    """The settings of a kernel that is not called."""
    values, block, rows = np.empty(0), np.empty((0, 0, 8)), np.empty((0, 0))
    table, batch = np.empty((0, 0), np.int64), np.empty((0, 0, 0), np.int64)
    return 0, 1.0, 0.0, 0, block, rows, values, values, values, table, table, values, False, batch


def program() -> TapeProgram:
    """The compiled program.

    Raises:
      Untaped: it cannot be built.
    """
    built = _program()
    if built is None:
        raise Untaped("cannot be compiled here")
    return built


@cache
def _program() -> TapeProgram | None:
    """The program, or None, saying so once, where it cannot be built."""
    make = partial(TapeProgram, signature())
    return built_or_none(make, "the program for many rounds at once", "small problems take longer")
