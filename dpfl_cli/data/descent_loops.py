"""The loop that numba compiles for `client_values.descended`: each number is read and written once,
where torch would pass over memory for every sum.
"""


def descent(start, rates, slope, drift, out, first, last):  # type: ignore[no-untyped-def]
    """out = start - rate (slope + drift) for the pairs first ... last - 1 of (run, client).

    Args:
      start, slope, drift, out: [R, M, d]; start [R, 1, d] where all clients' are the same, and
        drift empty where there is none.
      rates: [R].
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
