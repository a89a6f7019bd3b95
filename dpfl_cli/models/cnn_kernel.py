"""The CNN with weights of its own for every client, compiled for CPUs.

One thread computes one client from its first local step to its last, a block of as many records as
a vector has lanes at a time, by the routines of `cnn_layers`; all else here is plain numba,
compiled with them once for each shape of network. The order of every sum is fixed by the client's
own records: results do not depend on threads, on other clients or on other runs.
"""

from collections.abc import Callable

import numpy as np
from numba.extending import register_jitable

from dpfl_cli.data.programs import built
from dpfl_cli.models.cnn_layers import LANES, MASKS, compute_layer
from dpfl_cli.models.cnn_shape import DESCENT, EVALUATION, CnnShape
from dpfl_cli.models.vectors import aligned

SUMMED = 16  # sums over a client's records, every 16th of them, that are added up at the end
SETS = SUMMED // LANES  # of blocks in turn
# blocks of records whose images stay transposed between local steps (3 MB for 28x28)
KEPT_BLOCKS = 64 * SETS

_aligned = register_jitable(aligned)


@register_jitable
def vectors(count):  # type: ignore[no-untyped-def]
    """[count, LANES] of anything, as `aligned`."""
    return _aligned(count * LANES, np.float32, False).reshape(count, LANES)


@register_jitable
def masks(count):  # type: ignore[no-untyped-def]
    """Bits of every lane."""
    return np.empty(count * MASKS * LANES // 8, np.uint8)


@register_jitable
def connect_gradient(x, delta, turned, gradient):  # type: ignore[no-untyped-def]
    """Adds sums of delta[o] x[f] and of delta[o] over a block's records to gradients of W and b."""
    inputs, outputs = len(x), len(delta)
    for f in range(inputs):
        for record in range(LANES):
            turned[record, f] = x[f, record]
    for o in range(outputs):
        row = gradient[o * inputs : (o + 1) * inputs]
        for record in range(0, LANES, 4):
            a, b = delta[o, record], delta[o, record + 1]
            c, d = delta[o, record + 2], delta[o, record + 3]
            gradient[outputs * inputs + o] += a + b + c + d
            p, q = turned[record], turned[record + 1]
            r, s = turned[record + 2], turned[record + 3]
            for f in range(inputs):
                row[f] += a * p[f] + b * q[f] + c * r[f] + d * s[f]


@register_jitable
def add_lanes(rows, sums):  # type: ignore[no-untyped-def]
    """sums[i] = the sum of rows [SETS, n, LANES] at i, which is lost."""
    for row in range(rows.shape[1]):
        for one in range(1, SETS):
            for lane in range(LANES):
                rows[0, row, lane] += rows[one, row, lane]
        half = LANES // 2
        while half:
            for lane in range(half):
                rows[0, row, lane] += rows[0, row, lane + half]
            half //= 2
        sums[row] = rows[0, row, 0]


def cnn_kernel(shape: CnnShape) -> Callable[..., None]:
    """The program for one shape, a loop over clients, steps and blocks of records: jobs first ...
    last - 1 of (run, client) pairs, clients innermost. Building it takes seconds the first time on
    a machine, later it is read from disk.

    Its arguments, numbers in float32:
      mode: DESCENT: out[r, i] = v - start after `steps` steps v <- v - rate * (gradient +
        drift[r, i]);
        GRADIENT: out[r, i] = gradient of the mean loss; EVALUATION: out[r, i] = (sum of losses,
        number of right answers).
      images: [N, pixels]; labels: [N] int64.
      indices, offsets: which of them are whose, as a `Partition` of M clients has them.
      runs: [q] int64, those of the R runs that hold these records.
      start: [R, M, d], or [R, 1, d], where the clients of a run start from.
      rates: [R] learning rates, looked at for DESCENT only.
      drift: [R, M, d], or [1, 1, d].
      out: [R, M, d], or [R, M, 2] for an evaluation.

    Raises:
      Exception: of any kind, where numba cannot compile; there is no list of what can go wrong in a
        compiler.
    """
    key, layers, hidden = repr(shape), shape.layers, shape.hidden or 0
    d, classes, top = shape.dimension, shape.classes, len(layers) - 1
    pixels, convolved = layers[0].plane, layers[1].stop
    between, features = layers[0].values, layers[1].values
    hidden_start, last_start = layers[2].start, layers[top].start

    def clients_of(  # type: ignore[no-untyped-def]
        mode, images, labels, indices, offsets, runs, start, rates, drift, steps, out, first, last
    ):
        clients, blocks = len(offsets) - 1, 1
        for client in range(clients):
            blocks = max(blocks, (offsets[client + 1] - offsets[client] + LANES - 1) // LANES)
        kept = min(blocks, KEPT_BLOCKS)
        x, targets = vectors(kept * pixels), np.empty((kept, LANES), np.int64)
        # outputs of the layers, gradients at them, and which position of a window won
        p1, d1, m1 = vectors(between), vectors(between), masks(between)
        p2, d2, m2 = vectors(features), vectors(features), masks(features)
        h, dh, z, dz = vectors(hidden), vectors(hidden), vectors(classes), vectors(classes)
        before, d_before = (h, dh) if hidden else (p2, d2)  # of the last layer
        # gradients of the convolutions, not yet added up over lanes, and of all parameters
        lanes = vectors(SETS * convolved).reshape(SETS, convolved, LANES)
        gradient = np.empty(d, np.float32)
        turned, v = np.empty((LANES, max(features, hidden)), np.float32), np.empty(d, np.float32)
        records = np.empty(LANES, np.int64)
        for job in range(first, last):
            run, client = runs[job // clients], job % clients
            begin, count = offsets[client], offsets[client + 1] - offsets[client]
            blocks = (count + LANES - 1) // LANES
            weight = np.float32(1.0) / np.float32(max(count, 1))
            loss, hits = 0.0, 0.0
            source = start[run, client % start.shape[1]]
            shift = drift[run % len(drift), client % drift.shape[1]]
            for t in range(d):  # not `v[:] = source`: see `layer_loops`
                v[t] = source[t]
            for step in range(steps):
                lanes[:] = 0
                gradient[:] = 0
                for block in range(blocks):
                    slot = block % kept
                    image = x[slot * pixels : (slot + 1) * pixels]
                    if step == 0 or blocks > kept:
                        for lane in range(LANES):
                            records[lane] = indices[begin + min(block * LANES + lane, count - 1)]
                            targets[slot, lane] = labels[records[lane]]
                        for pixel in range(pixels):
                            for lane in range(LANES):
                                image[pixel, lane] = images[records[lane], pixel]
                    compute_layer(key, 0, "convolve", image, v, p1, m1)
                    compute_layer(key, 1, "convolve", p1, v, p2, m2)
                    if hidden:
                        compute_layer(key, 2, "connect", p2, v, h, h)
                    compute_layer(key, top, "connect", before, v, z, z)
                    for lane in range(LANES):
                        label, best, total = targets[slot, lane], 0, 0.0
                        for c in range(1, classes):
                            if z[c, lane] > z[best, lane]:
                                best = c
                        for c in range(classes):
                            dz[c, lane] = np.exp(z[c, lane] - z[best, lane])
                            total += dz[c, lane]
                        there = block * LANES + lane < count
                        if there:
                            loss += np.log(total) + z[best, lane] - z[label, lane]
                            hits += best == label
                        share = weight if there else np.float32(0)
                        for c in range(classes):
                            dz[c, lane] *= share / np.float32(total)
                        dz[label, lane] -= share
                    if mode == EVALUATION:
                        continue
                    connect_gradient(before, dz, turned, gradient[last_start:])
                    compute_layer(key, top, "connect_back", dz, v, before, d_before)
                    if hidden:
                        connect_gradient(p2, dh, turned, gradient[hidden_start:])
                        compute_layer(key, 2, "connect_back", dh, v, p2, d2)
                    compute_layer(key, 1, "kernel_gradient", p1, d2, m2, lanes[block % SETS])
                    d1[:] = 0
                    compute_layer(key, 1, "input_gradient", d2, v, m2, d1)
                    compute_layer(key, 0, "kernel_gradient", image, d1, m1, lanes[block % SETS])
                add_lanes(lanes, gradient)
                if mode == DESCENT:
                    for t in range(d):
                        v[t] -= rates[run] * (gradient[t] + shift[t])
            if mode == EVALUATION:
                out[run, client, 0], out[run, client, 1] = loss, hits
            else:
                for t in range(d):
                    out[run, client, t] = v[t] - source[t] if mode == DESCENT else gradient[t]

    table, integers = "float32[:, :, ::1]", "int64[::1]"
    signature = (
        f"int64, float32[:, ::1], {integers}, {integers}, {integers}, {integers}, {table}, "
        f"float32[::1], {table}, int64, {table}, int64, int64"
    )
    name = "the CNN kernel of this network"
    return built(clients_of, name, 10, signature, fastmath={"contract"})
