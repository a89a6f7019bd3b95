"""Noise by the closed forms of papers: what a target epsilon means there, and from where on it is
proved.

Notation: C clip norm, R number of releases of one client's contribution, l = ln(1/delta), sigma the
standard deviation of the noise in each coordinate, S the sensitivity, z = sigma / S the noise
multiplier. Lemma 1 of the ScaffNew paper (arXiv 2304.05127) is for clients that are left out, so
that its C is the sensitivity; under another relation S takes its place and z stays.

A target epsilon is nominal where what set the noise does not prove that it meets it: see
`why_nominal`. The epsilon of the ledger, which is priced as always, is what the noise is worth.
"""

import math

FORMULAS = ("lemma1", "record_heuristic")  # of papers
NOMINAL_SIGN = ": nominal"  # how the name of a calibration ends in reports where the target is
EXCEEDED = "the expected number of releases, which this run exceeds"


def why_nominal(
    calibration: str, v: float | None, epsilon: float, delta: float, planned: int = 1, made: int = 1
) -> str | None:
    """Why a target is nominal, or None where the noise is proved to meet it.

    Noise of the constant v for R releases is proved for as many as v R / `zcdp_v` (see there),
    noise by an accountant or a proved closed form for R. The heuristic of records speaks of no
    whole client, and is nominal even where it adds enough.

    Args:
      calibration: as `dp.calibration`.
      v: the constant of lemma1.
      planned: R, for how many releases the noise was set.
      made: how many there are.

    >>> why_nominal("lemma1", 1.0, 3.3, 1e-5), why_nominal("lemma1", 3.0, 3.3, 1e-5)
    ('lemma1 with v=1', None)
    >>> why_nominal("zcdp", None, 3.3, 1e-5) is None
    True
    """
    if calibration == "record_heuristic":
        return calibration
    enough = 1.0 if v is None else v / zcdp_v(epsilon, delta)
    if enough < 1:
        return f"lemma1 with v={v:g}"
    return f"noise for {EXCEEDED}" if made > enough * planned else None


def clipped_sensitivity(clip_norm: float, relation: str) -> float:
    """S of one vector clipped to C: 2 C under replace_one, where another one takes its place, else
    C.
    """
    return 2 * clip_norm if relation == "replace_one" else clip_norm


def zcdp_v(epsilon: float, delta: float) -> float:
    """The constant v with which Lemma 1 is proved, by zero-concentrated DP: (sqrt(l + epsilon) +
    sqrt(l))^2 / (2 l).

    R Gaussian releases are rho-zCDP with rho = R / (2 z^2), and so (epsilon, delta)-DP with epsilon
    = rho + 2 sqrt(rho l) (Bun and Steinke 2016, Propositions 1.6 and 1.3). Solved for z: z^2 = R /
    (2 a^2), a = sqrt(l + epsilon) - sqrt(l), which is z^2 = v R l / epsilon^2 with this v. It tends
    to 2 as epsilon does to 0.

    >>> round(zcdp_v(3.3, 1e-5), 4), round(zcdp_v(1e-9, 1e-5), 4)
    (2.2776, 2.0)
    """
    log = -math.log(delta)
    return (math.sqrt(log + epsilon) + math.sqrt(log)) ** 2 / (2 * log)


def proved_from(epsilon: float, delta: float) -> float:
    """`zcdp_v` to four decimals, rounded up: from which v on Lemma 1 is proved, to be read and
    written.

    >>> proved_from(3.3, 1e-5)
    2.2777
    """
    return rounded_up(zcdp_v(epsilon, delta), 4)


def lemma1(epsilon: float, delta: float, releases: int, v: float) -> float:
    """The noise multiplier of Lemma 1 (arXiv 2304.05127) as an equality: z^2 = v R l / epsilon^2,
    so sigma^2 = z^2 S^2.

    The paper leaves the constant v open. The target is proved from v = `zcdp_v` on, and nominal
    below it.

    >>> round(10 * lemma1(3.3, 1e-5, 100, zcdp_v(3.3, 1e-5)), 1)
    155.2
    """
    return math.sqrt(v) * math.sqrt(releases * -math.log(delta)) / epsilon


def record_heuristic(
    epsilon: float, delta: float, releases: int, records: int, relation: str
) -> float:
    """The noise multiplier of sigma = (2 C / m) sqrt(2 R l) / epsilon, for a client of m records.

    As if one of the m records moved the mean of m vectors clipped to C, by 2 C / m, with v = 2 (Wei
    et al., "Federated learning with differential privacy: algorithms and performance analysis",
    IEEE TIFS 2020). What is clipped here is the update of a whole client, often of several steps,
    which one record may move by 2 C: the target is nominal, for records as for clients.

    Args:
      records: m, of the client with the fewest.
      relation: decides which sensitivity z is relative to, 2 C or C; sigma does not depend on it.

    >>> both = [record_heuristic(1.0, 1e-5, 9, 100, one) for one in ("zero_out", "replace_one")]
    >>> both[0] == 2 * both[1]
    True
    """
    return (
        lemma1(epsilon, delta, releases, 2.0) * (2 / records) / clipped_sensitivity(1.0, relation)
    )


def rounded_up(value: float, decimals: int) -> float:
    """The value rounded up, as an epsilon has to be; but for what floating-point numbers lack."""
    return math.ceil(value * 10**decimals * (1 - 1e-12)) / 10**decimals


def epsilon_number(value: float | None, decimals: int = 4) -> str:
    """An epsilon to 4 decimals, rounded up; from a million on, where it says no more than that, and
    below a thousandth as a power of ten.

    >>> epsilon_number(15.658124), epsilon_number(500004264889.8), epsilon_number(1e-6)
    ('15.6582', '5.0001e+11', '1.0000e-06')
    >>> epsilon_number(0.07)
    '0.0700'
    """
    if value is None or not math.isfinite(value):
        return "none" if value is None else str(value)
    if value == 0 or 1e-3 <= value < 1e6:
        return f"{rounded_up(value, decimals):.{decimals}f}"
    up = rounded_up(value, decimals - math.floor(math.log10(value)))
    return f"{up:.{decimals}e}"
