"""Models of one linear layer on CPUs: the loops that numba compiles for `layer_kernel`.

One thread computes a client from its records to the result, a run after another, so that records
are read from memory once for all runs. For a block of the client's records,

    z = W x                 the outputs (`vectors.outputs`)
    s = dl/dz               re-weighted where records' gradients are clipped: ||s|| ||x|| <= C
    G += s (x) x            (`vectors.accumulate`)

All of it is float64, whatever the records' and parameters' own type. The order of every sum is
fixed by the client's own records: results do not depend on threads, on other clients or on other
runs.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from dpfl_cli.models.vectors import (
    LANES,
    accumulate,
    aligned,
    exp_of_negative,
    inner,
    outputs,
    transposed,
)

CROSS_ENTROPY, LOGISTIC, SQUARED = range(3)  # losses
ROUNDING = 1e3 * np.finfo(np.float64).eps  # see `curvature.clippable_norms`
UNDERFLOW = 1e4 * np.finfo(np.float64).tiny

_aligned = njit(aligned)


@njit(inline="always")
def _lay_out(rows, first, count, batch, begin, size, features):  # type: ignore[no-untyped-def]
    """features[i, k, lane] = the client's record begin + 8 i + lane, or the one that a batch names;
    zeros for a number that is none of the client's `count`, from row `first` on.
    """
    tiles, own = rows.shape[1] // LANES, np.empty(LANES, np.int64)
    for i in range((size + LANES - 1) // LANES):
        for lane in range(LANES):
            j = i * LANES + lane
            number = begin + j
            if len(batch):
                number = batch[number] if j < size else -1
            own[lane] = first + number if j < size and 0 <= number < count else -1
        transposed(rows, np.maximum(own, 0), tiles, features, i)
        for lane in range(LANES):
            for k in range(tiles * LANES, rows.shape[1]):
                features[i, k, lane] = rows[own[lane], k]
            if own[lane] < 0:
                features[i, :, lane] = 0.0


@njit(inline="always")
def _labelled(  # type: ignore[no-untyped-def]
    targets, norms, first, count, batch, begin, size, y, norm
):
    """y[j] and norm[j] of the same records."""
    for j in range((size + LANES - 1) // LANES * LANES):
        number = begin + j
        if len(batch):
            number = batch[number] if j < size else -1
        there = j < size and 0 <= number < count
        y[j] = targets[first + number] if there else 0.0
        norm[j] = norms[first + number] if there else 0.0


@njit(inline="always")
def _softmax(z, n, top, total):  # type: ignore[no-untyped-def]
    """z <- their softmax over a, j < n."""
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
        total[j] = 1.0 / total[j]
    for a in range(len(z)):
        for j in range(n):
            z[a, j] *= total[j]


@njit(inline="always")
def _slopes(loss, scale, z, y, n, work, squares):  # type: ignore[no-untyped-def]
    """z <- s = dl/dz, squares[j] = ||s_j||^2, j < n."""
    if loss == CROSS_ENTROPY:
        _softmax(z, n, work[0], work[1])
        for a in range(len(z)):
            for j in range(n):
                z[a, j] -= 1.0 if y[j] == a else 0.0
    elif loss == LOGISTIC:
        for j in range(n):  # -y / (1 + exp(y z)), by exp(-|y z|) so that nothing overflows
            margin = y[j] * z[0, j]
            e = exp_of_negative(-abs(margin))
            z[0, j] = -y[j] * (e if margin > 0.0 else 1.0) / (1.0 + e)
    else:
        for j in range(n):
            z[0, j] = 2.0 * scale * (z[0, j] - y[j])
    squares[:n] = 0.0
    for a in range(len(z)):
        for j in range(n):
            squares[j] += z[a, j] * z[a, j]


@njit(inline="always")
def _reweighted(z, n, norm, squares, clipped, bound):  # type: ignore[no-untyped-def]
    """z <- shares of the records times s; a record that is not finite makes a gradient what it is,
    and counts as zero where it is clipped.
    """
    for j in range(n):
        size = np.sqrt(squares[j]) * norm[j]
        share = min(bound / size, 1.0) if size < np.inf else 0.0
        squares[j] = share if clipped else 1.0 + 0.0 * norm[j]
    for a in range(len(z)):
        for j in range(n):
            z[a, j] = 0.0 if clipped and squares[j] == 0.0 else z[a, j] * squares[j]


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
      x, start, drift: [width]; drift may be empty.
    """
    z, turn, along = inner(x, start, len(x)), 0.0, 0.0
    if len(drift):
        turn = rate * inner(x, drift, len(x))
    for _ in range(steps):
        here = z + along * norm * norm
        slope = 2.0 * scale * (here - y)  # numbers, as `_slopes` has them for vectors
        if loss == LOGISTIC:
            e = exp_of_negative(-abs(y * here))
            slope = -y * (e if y * here > 0.0 else 1.0) / (1.0 + e)
        along -= rate * slope
        z -= turn
    for k in range(len(out)):
        out[k] = along * x[k]
        if len(drift):
            out[k] -= steps * rate * drift[k]


def compute(  # type: ignore[no-untyped-def]
    loss, scale, outs, laid_out, places, rows, targets, norms, firsts, counts, block, runs,
    parameters, batch, limits, l2, steps, rates, drift, out, first_job, last_job,
):  # fmt: skip
    """Jobs first_job ... last_job - 1 of (client, run) pairs, runs innermost."""
    batched, clipped, drifting = batch.shape[3] > 0, len(limits) > 0, len(drift) > 0
    one_number = loss != CROSS_ENTROPY and outs == 1 and not l2.any()
    alone = one_number and steps > 0 and not batched
    kept, width = len(laid_out) > 0 and not batched, laid_out.shape[1]
    p = parameters.shape[2] // outs
    most = 2 if outs == 1 and not batched else 1  # runs that meet a record while it is loaded
    z = _aligned(most * outs * (block + 1) * LANES).reshape(most * outs, -1)
    weights = _aligned(most * outs * width).reshape(-1, width)
    totals = _aligned(most * outs * width).reshape(-1, width)
    held = laid_out if kept else _aligned(block * width * LANES).reshape(block, width, LANES)
    work = _aligned(7 * block * LANES).reshape(7, -1)
    y, norm, squares = work[4], work[5], work[6]
    record, own_drift = _aligned(width), _aligned(width if drifting else 0)
    own = batch[0, 0, 0, :0]
    job, loaded = first_job, -1
    while job < last_job:
        client, place = job // len(runs), job % len(runs)
        together = min(most, last_job - job, len(runs) - place)
        job += together
        records = batch.shape[3] if batched else counts[client]
        first, held_records = firsts[client], counts[client]
        for r in range(together):
            for a in range(outs):
                for k in range(p):
                    weights[r * outs + a, k] = parameters[runs[place + r], client, a * p + k]
        if alone and records == 1:
            for k in range(p):
                record[k] = rows[first, k]
            for r in range(together):
                run = runs[place + r]
                if drifting:
                    own_drift[:p] = drift[run, client]
                _along_record(
                    loss, scale, record, norms[first], targets[first], weights[r], own_drift,
                    rates[run], steps, out[run, client],
                )  # fmt: skip
            loaded = -1
            continue
        for step in range(max(steps, 1)):
            totals[:] = 0.0
            if batched:
                own = batch[runs[place], client, step]
            for begin in range(0, records, block * LANES):
                size = min(block * LANES, records - begin)
                some = (size + LANES - 1) // LANES
                start = places[client] + begin // LANES if kept else 0
                if batched or loaded != client or records > block * LANES:
                    if not kept:
                        _lay_out(rows, first, held_records, own, begin, size, held)
                    _labelled(targets, norms, first, held_records, own, begin, size, y, norm)
                    loaded = client
                outputs(held, start, some, width, weights, together * outs, z)
                for r in range(together):
                    mine = z[r * outs : (r + 1) * outs]
                    _slopes(loss, scale, mine, y, some * LANES, work, squares)
                    bound = limits[runs[place + r]] if clipped else 0.0
                    _reweighted(mine, some * LANES, norm, squares, clipped, bound)
                accumulate(held, start, some, width, z, together * outs, totals)
            share = 1.0 / max(records, 1)
            for r in range(together):
                run = runs[place + r]
                decay = l2[run] if records > 0 else 0.0
                for a in range(outs):
                    row, own_weights = totals[r * outs + a], weights[r * outs + a]
                    for k in range(p):
                        slope = row[k] * share
                        if decay != 0.0:
                            slope += decay * own_weights[k]
                        if steps == 0:
                            out[run, client, a * p + k] = slope
                            continue
                        if drifting:
                            slope += drift[run, client, a * p + k]
                        own_weights[k] -= rates[run] * slope
                        if step == steps - 1:
                            moved = own_weights[k] - parameters[run, client, a * p + k]
                            out[run, client, a * p + k] = moved


@njit(inline="always")
def _probabilities(z, n, norm, limit, share, work, into, shares):  # type: ignore[no-untyped-def]
    """into[a, j] = p_j, and the records' shares, their Hessians clipped (`curvature`), j < n."""
    _softmax(z, n, work[0], work[1])
    work[:2, :n] = 0.0
    for a in range(len(z)):
        for j in range(n):
            p = into[a, j] = z[a, j]
            work[1, j] += 2.0 * work[0, j] * p * p + (p - p * p) ** 2
            work[0, j] += p * p
    for j in range(n):
        squared = norm[j] * norm[j]
        size = squared * max(np.sqrt(max(work[1, j], UNDERFLOW)), ROUNDING * len(z))
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
    loss, scale, outs, laid_out, places, rows, targets, norms, firsts, counts, block, runs,
    parameters, right, damping, limits, tolerance, out, first_job, last_job,
):  # fmt: skip
    """As `compute`: (H + damping I)^-1 right by conjugate gradients, as in
    `curvature.conjugate_gradients`.
    """
    kept, width = len(laid_out) > 0, laid_out.shape[1]
    p, longest = parameters.shape[2] // outs, 0
    for count in counts:
        longest = max(longest, (count + LANES - 1) // LANES * LANES)
    z = _aligned(outs * (block + 1) * LANES).reshape(outs, -1)
    held = laid_out if kept else _aligned(block * width * LANES).reshape(block, width, LANES)
    work = _aligned(5 * block * LANES).reshape(5, -1)
    y, norm, shares = work[3], work[4], np.zeros(longest)
    chances = _aligned(outs * longest).reshape(outs, -1)
    all_weights = outs * width
    weights, solution, residual = (
        _aligned(all_weights),
        _aligned(all_weights),
        _aligned(all_weights),
    )
    direction, applied = _aligned(all_weights), _aligned(all_weights)
    own = np.empty(0, np.int64)
    loaded = -1
    for job in range(first_job, last_job):
        client, run = job // len(runs), runs[job % len(runs)]
        records, first = counts[client], firsts[client]
        for a in range(outs):
            for k in range(p):
                weights[a * width + k] = parameters[run, client, a * p + k]
                residual[a * width + k] = right[run, client, a * p + k]
        solution[:], direction[:] = 0.0, residual
        squared = inner(residual, residual, len(residual))
        goal = squared * tolerance * tolerance
        for step in range(2 * outs * p + 1):
            if step > 0 and not squared > goal:
                break
            operand = (direction if step > 0 else weights).reshape(outs, width)
            applied[:] = 0.0
            for begin in range(0, records, block * LANES):
                size = min(block * LANES, records - begin)
                some = (size + LANES - 1) // LANES
                part = slice(begin, begin + some * LANES)
                start = places[client] + begin // LANES if kept else 0
                if loaded != client or records > block * LANES:
                    if not kept:
                        _lay_out(rows, first, records, own, begin, size, held)
                    _labelled(targets, norms, first, records, own, begin, size, y, norm)
                    loaded = client
                outputs(held, start, some, width, operand, outs, z)
                if step == 0:
                    _probabilities(
                        z, some * LANES, norm, limits[run], 1.0 / records, work, chances[:, part],
                        shares[part],
                    )  # fmt: skip
                    continue
                _curved(z, some * LANES, chances[:, part], shares[part], work[0])
                accumulate(held, start, some, width, z, outs, applied.reshape(outs, width))
            if step == 0:
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
