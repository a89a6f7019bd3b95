"""The loop that numba compiles for `client_values.descended`: each number is read and written once,
where torch would pass over memory for every sum.
"""


def descent(  # type: ignore[no-untyped-def]
    start, rates, slope, drift, origin, lengths, out, first, last
):
    """out = start - rate (slope + drift) for the pairs first ... last - 1 of (run, client); where
    there is an origin, (origin - that) / length - drift.

    Args:
      start, slope, drift, out: [R, M, d]; start [R, 1, d] where all clients' are the same, and
        drift empty where there is none.
      origin: [R, 1, d], or empty.
      rates, lengths: [R].
    """
    clients = out.shape[1]
    for pair in range(first, last):
        run, client = pair // clients, pair % clients
        into, rate, own_slope = out[run, client], rates[run], slope[run, client]
        own_start = start[run, client % start.shape[1]]
        if len(drift):
            own_drift = drift[run, client]
            for k in range(len(into)):
                into[k] = own_start[k] - rate * (own_slope[k] + own_drift[k])
        else:
            for k in range(len(into)):
                into[k] = own_start[k] - rate * own_slope[k]
        if len(origin):
            own_origin, length = origin[run, 0], lengths[run]
            for k in range(len(into)):
                into[k] = (own_origin[k] - into[k]) / length - own_drift[k]
