"""Models of one linear layer on CPUs: the loops that numba compiles for `layer_kernel`.

One thread computes a client from its records to the result, a run after another, so that records
are read from memory once for all runs. For a block of the client's records,

    z = W x                 the outputs (`vectors.outputs`)
    s = dl/dz               re-weighted where records' gradients are clipped: ||s|| ||x|| <= C
    G += s (x) x            (`vectors.accumulate`)

z, s and the sums of a block are of the type of the records as they are laid out: the run's own for
`compute`, float64 for `solve`. Sums over blocks, and a client's parameters from step to step, are
float64. So are bounds, until they meet records. The order of every sum is fixed by the client's own
records: results do not depend on threads, on other clients or on other runs.

Arrays are copied by loops: numba compiles an assignment to `a[:]` many times as long, for the words
of the error that shapes differ.
"""

import numpy as np
from numba import njit

from dpfl_cli.models.curvature import ROUNDING_64
from dpfl_cli.models.losses import CROSS_ENTROPY, LOGISTIC
from dpfl_cli.models.vectors import (
    accumulate,
    aligned,
    exp_of_negative,
    inner,
    outputs,
    transposed,
)

_aligned = njit(aligned)


@njit(inline="always")
def _load(  # type: ignore[no-untyped-def]
    rows, targets, norms, first, count, batch, begin, size, anew, features, start, y, norm
):
    """y[j] and norm[j] of the client's record begin + j, or of the one that a batch names, and
    where they are to be laid out anew features[start + i, k, lane], j = i lanes + lane; zeros,
    which are row 0, for a number that is none of the client's `count`, from row `first` on.
    """
    lanes = features.shape[2]
    tiles, own = rows.shape[1] // lanes, np.empty(lanes, np.int64)
    for i in range((size + lanes - 1) // lanes):
        for lane in range(lanes):
            j = i * lanes + lane
            number = begin + j
            if len(batch):
                number = batch[number] if j < size else -1
            there = j < size and 0 <= number < count
            own[lane] = first + number if there else 0
            y[j], norm[j] = targets[own[lane]], norms[own[lane]]
        if not anew:
            continue
        transposed(features, start + i, rows, own, tiles)
        for lane in range(lanes):
            for k in range(tiles * lanes, rows.shape[1]):
                features[start + i, k, lane] = rows[own[lane], k]
            for k in range(rows.shape[1], features.shape[1]):
                features[start + i, k, lane] = 0.0


@njit(inline="always")
def _softmax(z, n, work):  # type: ignore[no-untyped-def]
    """z <- their softmax over a, j < n."""
    top, total, one = work[0], work[1], z.dtype.type(1.0)
    for j in range(n):
        top[j], total[j] = z[0, j], 0.0
    for a in range(1, len(z)):
        for j in range(n):
            top[j] = z[a, j] if z[a, j] > top[j] else top[j]
    for a in range(len(z)):
        for j in range(n):
            z[a, j] = exp_of_negative(z[a, j] - top[j])
            total[j] += z[a, j]
    for j in range(n):
        total[j] = one / total[j]
    for a in range(len(z)):
        for j in range(n):
            z[a, j] *= total[j]


@njit(inline="always")
def _slope(loss, scale, z, y, number):  # type: ignore[no-untyped-def]
    """dl/dz of an only output, of a type of numbers: a plain one would make it float64."""
    one = number(1.0)
    if loss == LOGISTIC:  # -y / (1 + exp(y z)), by exp(-|y z|) so that nothing overflows
        margin = y * z
        e = exp_of_negative(-abs(margin))
        return -y * (e if margin > number(0.0) else one) / (one + e)
    return number(2.0 * scale) * (z - y)


@njit(inline="always")
def _slopes(loss, scale, z, y, n, work, squares):  # type: ignore[no-untyped-def]
    """z <- s = dl/dz, squares[j] = ||s_j||^2, j < n."""
    number = z.dtype.type
    if loss != CROSS_ENTROPY:
        for j in range(n):
            z[0, j] = _slope(loss, scale, z[0, j], y[j], number)
            squares[j] = z[0, j] * z[0, j]
        return
    _softmax(z, n, work)
    squares[:n] = number(0.0)
    for a in range(len(z)):
        for j in range(n):
            z[a, j] -= number(1.0) if y[j] == number(a) else number(0.0)
            squares[j] += z[a, j] * z[a, j]


@njit(inline="always")
def _reweighted(z, n, norm, squares, clipped, bound):  # type: ignore[no-untyped-def]
    """z <- shares of the records times s; a record that is not finite makes a gradient what it is,
    and counts as zero where it is clipped.
    """
    number = z.dtype.type
    zero, one, limit = number(0.0), number(1.0), number(bound)
    for j in range(n):
        size = np.sqrt(squares[j]) * norm[j]
        share = min(limit / size, one) if size < number(np.inf) else zero
        squares[j] = share if clipped else one + zero * norm[j]
    for a in range(len(z)):
        for j in range(n):
            z[a, j] = zero if clipped and squares[j] == zero else z[a, j] * squares[j]


@njit(inline="always")
def _along_record(  # type: ignore[no-untyped-def]
    loss, scale, x, norm, y, start, drift, rate, steps, out
):
    """out = v - w after local steps of a client with one record (x, y) and one output, by a
    recursion in one number.

    Every iterate is v_j = w + a_j x - j rate g with the drift g, for the gradient is a multiple of
    x. So a_0 = 0 and, with z_j = x . v_j = x . w + a_j ||x||^2 - j rate x . g,

        a_{j+1} = a_j - rate l'(z_j, y).

    Args:
      x, start, drift: [width] float64; drift may be empty.
    """
    z, turn, along = inner(x, start, len(x)), 0.0, 0.0
    if len(drift):
        turn = rate * inner(x, drift, len(x))
    for _ in range(steps):
        along -= rate * _slope(loss, scale, z + along * norm * norm, y, np.float64)
        z -= turn
    for k in range(len(out)):
        out[k] = along * x[k]
        if len(drift):
            out[k] -= steps * rate * drift[k]


def compute(  # type: ignore[no-untyped-def]
    loss, scale, outs, laid_out, places, since, rows, targets, norms, firsts, counts, block, call,
    runs, parameters, batch, limits, l2, steps, rates, drift, out, first_job, last_job,
):  # fmt: skip
    """Jobs first_job ... last_job - 1 of (client, run) pairs, runs innermost."""
    batched, clipped, drifting = batch.shape[3] > 0, len(limits) > 0, len(drift) > 0
    alone = loss != CROSS_ENTROPY and outs == 1 and steps > 0 and not batched and not l2.any()
    number, (_, width, lanes) = laid_out.dtype.type, laid_out.shape
    kept, most_records = len(laid_out) > 0 and not batched, block * lanes
    p = parameters.shape[2] // outs
    z = _aligned(outs * (most_records + lanes), number).reshape(outs, -1)
    weights = _aligned(outs * width, np.float64).reshape(-1, width)
    totals = _aligned(outs * width, np.float64).reshape(-1, width)
    operand = _aligned(outs * width, number).reshape(-1, width)
    held = laid_out if kept else _aligned(most_records * width, number).reshape(block, width, lanes)
    work = _aligned(5 * most_records, number).reshape(5, -1)
    y, norm, squares = work[2], work[3], work[4]
    record = _aligned(width, np.float64)
    own_drift = _aligned(width if drifting else 0, np.float64)
    own = batch[0, 0, 0, :0]
    loaded = -1
    for job in range(first_job, last_job):
        client, run = job // len(runs), runs[job % len(runs)]
        records = batch.shape[3] if batched else counts[client]
        first, held_records, share = firsts[client], counts[client], 1.0 / max(records, 1)
        given = parameters[run, client % parameters.shape[1]]
        for a in range(outs):
            for k in range(p):
                weights[a, k] = given[a * p + k]
        if alone and records == 1:
            for k in range(p):
                record[k] = rows[first, k]
            for k in range(p if drifting else 0):
                own_drift[k] = drift[run, client, k]
            _along_record(
                loss, scale, record, norms[first], targets[first], weights[0], own_drift,
                rates[run], steps, out[run, client],
            )  # fmt: skip
            loaded = -1
            continue
        for step in range(max(steps, 1)):
            totals[:] = 0.0
            for a in range(outs):
                for k in range(width):
                    operand[a, k] = weights[a, k]
            if batched:
                own = batch[run, client, step]
            for begin in range(0, records, most_records):
                size = min(most_records, records - begin)
                some = (size + lanes - 1) // lanes
                start, filled = places[client] + begin // lanes if kept else 0, some * lanes
                if batched or loaded != client or records > most_records:
                    _load(
                        rows, targets, norms, first, held_records, own, begin, size,
                        not kept or since[client] >= call, held, start, y, norm,
                    )  # fmt: skip
                    loaded = client
                outputs(held, start, some, width, operand, outs, z)
                _slopes(loss, scale, z, y, filled, work, squares)
                _reweighted(z, filled, norm, squares, clipped, limits[run] if clipped else 0.0)
                accumulate(held, start, some, width, z, outs, totals)
            if kept:  # for the calls that follow: in this one others may still be filling them
                since[client] = min(since[client], call)
            decay = l2[run] if records > 0 else 0.0
            for a in range(outs):
                row, own_weights = totals[a], weights[a]
                own_out, own_given = out[run, client, a * p : (a + 1) * p], given[a * p :]
                for k in range(p):
                    slope = row[k] * share
                    if decay != 0.0:
                        slope += decay * own_weights[k]
                    if steps == 0:
                        own_out[k] = slope
                        continue
                    if drifting:
                        slope += drift[run, client, a * p + k]
                    own_weights[k] -= rates[run] * slope
                    if step == steps - 1:
                        own_out[k] = own_weights[k] - own_given[k]


@njit(inline="always")
def _probabilities(  # type: ignore[no-untyped-def]
    z, n, norm, limit, share, work, into, shares
):
    """into[a, j] = p_j, and the records' shares, their Hessians clipped (`curvature`), j < n."""
    _softmax(z, n, work)
    work[:2, :n] = 0.0
    for a in range(len(z)):
        for j in range(n):
            p = into[a, j] = z[a, j]
            work[1, j] += 2.0 * work[0, j] * p * p + (p - p * p) ** 2
            work[0, j] += p * p
    for j in range(n):
        squared = norm[j] * norm[j]
        size = squared * max(np.sqrt(work[1, j]), ROUNDING_64 * len(z))
        shares[j] = share * min(limit / size, 1.0) if size < np.inf else 0.0
    for a in range(len(z)):
        for j in range(n):
            into[a, j] = into[a, j] if shares[j] > 0.0 else 0.0


@njit(inline="always")
def _curved(z, n, p, shares, sums):  # type: ignore[no-untyped-def]
    """z <- w p (z - sum p z), j < n."""
    sums[:n] = 0.0
    for a in range(len(z)):
        for j in range(n):
            sums[j] += p[a, j] * z[a, j]
    for a in range(len(z)):
        for j in range(n):
            z[a, j] = shares[j] * p[a, j] * (z[a, j] - sums[j])


def solve(  # type: ignore[no-untyped-def]
    loss, scale, outs, laid_out, places, since, rows, targets, norms, firsts, counts, block, call,
    runs, parameters, right, damping, limits, tolerance, out, first_job, last_job,
):  # fmt: skip
    """As `compute`: (H + damping I)^-1 right by conjugate gradients, as in
    `curvature.conjugate_gradients`.
    """
    number, (_, width, lanes) = np.float64, laid_out.shape
    kept, most_records = len(laid_out) > 0, block * lanes
    p, longest = parameters.shape[2] // outs, 0
    for count in counts:
        longest = max(longest, (count + lanes - 1) // lanes * lanes)
    z = _aligned(outs * (most_records + lanes), number).reshape(outs, -1)
    held = laid_out if kept else _aligned(most_records * width, number).reshape(block, width, lanes)
    work = _aligned(4 * most_records, number).reshape(4, -1)
    y, norm, shares = work[2], work[3], np.zeros(longest)
    chances = _aligned(outs * longest, number).reshape(outs, -1)
    vectors = _aligned(5 * outs * width, number).reshape(5, -1)
    weights, solution, residual = vectors[0], vectors[1], vectors[2]
    direction, applied = vectors[3], vectors[4]
    own = np.empty(0, np.int64)
    loaded = -1
    for job in range(first_job, last_job):
        client, run = job // len(runs), runs[job % len(runs)]
        records, first = counts[client], firsts[client]
        for a in range(outs):
            for k in range(p):
                weights[a * width + k] = parameters[run, client, a * p + k]
                residual[a * width + k] = right[run, client, a * p + k]
        solution[:] = 0.0
        for k in range(len(residual)):
            direction[k] = residual[k]
        squared = inner(residual, residual, len(residual))
        goal = squared * tolerance * tolerance
        for step in range(2 * outs * p + 1):
            if step > 0 and not squared > goal:
                break
            operand = (direction if step > 0 else weights).reshape(outs, width)
            applied[:] = 0.0
            for begin in range(0, records, most_records):
                size = min(most_records, records - begin)
                some = (size + lanes - 1) // lanes
                start, filled = places[client] + begin // lanes if kept else 0, some * lanes
                part = slice(begin, begin + filled)
                if loaded != client or records > most_records:
                    _load(
                        rows, targets, norms, first, records, own, begin, size,
                        not kept or since[client] >= call, held, start, y, norm,
                    )  # fmt: skip
                    loaded = client
                outputs(held, start, some, width, operand, outs, z)
                if step == 0:
                    _probabilities(
                        z, filled, norm, limits[run], 1.0 / records, work, chances[:, part],
                        shares[part],
                    )  # fmt: skip
                    continue
                _curved(z, filled, chances[:, part], shares[part], work[0])
                accumulate(held, start, some, width, z, outs, applied.reshape(outs, width))
            if step == 0:
                since[client] = min(since[client], call)
                continue
            for k in range(len(applied)):
                applied[k] += damping[run] * direction[k]
            pace = squared / inner(direction, applied, len(applied))
            for k in range(len(applied)):
                solution[k] += pace * direction[k]
                residual[k] -= pace * applied[k]
            before, squared = squared, inner(residual, residual, len(residual))
            for k in range(len(applied)):
                direction[k] = residual[k] + squared / before * direction[k]
        for a in range(outs):
            for k in range(p):  # NaN where the right side is not finite
                out[run, client, a * p + k] = solution[a * width + k] + 0.0 * goal
