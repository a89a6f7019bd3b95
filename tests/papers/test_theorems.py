"""Statements of the papers with numbers in them, checked exactly or by simulation on small
quadratic problems, from the papers' listings. (Theorem 1 of scaffnew: tests/algorithms.)
"""

from __future__ import annotations

import numpy as np
import pytest

from dpfl_cli import run

CLIENTS, DIMENSION = 5, 3
Array = np.ndarray


def quadratics(seed: int) -> tuple[Array, Array]:
    """Hessians Q_i with eigenvalues from 0.5 to 4, and minimisers a_i, of f_i."""
    draws = np.random.default_rng(seed)
    bases = np.linalg.qr(draws.normal(size=(CLIENTS, DIMENSION, DIMENSION)))[0]
    spectra = draws.uniform(0.5, 4.0, (CLIENTS, DIMENSION))
    spectra[:, 0], spectra[:, -1] = 0.5, 4.0
    return np.einsum("nij,nj,nkj->nik", bases, spectra, bases), draws.normal(
        size=(CLIENTS, DIMENSION)
    )


def gradients(problem: tuple[Array, Array], at: Array) -> Array:
    """Of every f_i, at points [..., clients, d]."""
    hessians, minimisers = problem
    return np.einsum("nij,...nj->...ni", hessians, at - minimisers)


def consensus(values: Array) -> Array:
    """L = I - 11^T / n, over the clients' axis."""
    return values - values.mean(axis=-2, keepdims=True)


@pytest.mark.parametrize("weight", [0.0, 0.3])
@pytest.mark.parametrize("step", [0.05, 0.25])
def test_lemma_4_4_of_dynamic(step: float, weight: float) -> None:
    """E Phi^{t+1} <= (1 - gamma min(mu_f, 1)) Phi^t + (5/2) n d gamma^2 xi^2 along a run of
    equations 6 and 18, smooth and with an l1 term; the mean of 4000 draws at every point.
    """
    problem, draws, noise = quadratics(1), np.random.default_rng(2), 0.4

    def next_one(x: Array, y: Array, zeta: Array) -> tuple[Array, Array]:
        moved = x - step * (gradients(problem, x) / CLIENTS + y + zeta)  # y = L y
        z = moved - step * consensus(moved)
        shrunk = np.sign(z) * np.maximum(np.abs(z) - step * weight / CLIENTS, 0)
        return shrunk, y + consensus(moved)

    shape = (CLIENTS, DIMENSION)
    best, dual = np.zeros(shape), np.zeros(shape)
    for _ in range(6_000):
        best, dual = next_one(best, dual, np.zeros(shape))
    assert np.allclose(best, best.mean(axis=0), atol=1e-9)  # the clients agree

    def potential(x: Array, y: Array) -> Array:
        return ((x - best) ** 2).sum((-2, -1)) + step * ((y - dual) ** 2).sum((-2, -1))

    rate = 1 - step * min(0.5 / CLIENTS, 1)
    added = 2.5 * CLIENTS * DIMENSION * step**2 * noise**2
    x, y = draws.normal(size=shape) * 3, np.zeros(shape)
    for _ in range(30):
        many = noise * draws.normal(size=(4_000, *shape))
        following = potential(*next_one(x, y, many))
        error = following.std() / np.sqrt(len(following))
        assert following.mean() <= rate * potential(x, y) + added + 3 * error
        x, y = next_one(x, y, many[0])


def test_theorem_4_5_of_fedexp_privacy_terms() -> None:
    """What the O() of its privacy error hides: E||mean noise||^2 = d sigma^2 / M, and the error of
    the step's numerator has variance 2 d sigma^4 / M + 4 sigma^2 mean||Delta||^2 / M, of the order
    sqrt(d / M) sigma^2.
    """
    draws, clients, dimension, sigma, runs = np.random.default_rng(5), 50, 20, 0.7, 4000
    updates = draws.normal(size=(clients, dimension)) / np.sqrt(dimension)
    noise = sigma * draws.normal(size=(runs, clients, dimension))
    squared = (updates**2).sum() / clients
    error = ((updates + noise) ** 2).sum((-2, -1)) / clients - dimension * sigma**2 - squared
    variance = 2 * dimension * sigma**4 / clients + 4 * sigma**2 * squared / clients
    assert abs(error.mean()) < 4 * np.sqrt(variance / runs)
    assert error.var() == pytest.approx(variance, rel=0.1)
    mean = (noise.mean(axis=1) ** 2).sum(axis=-1)
    assert mean.mean() == pytest.approx(dimension * sigma**2 / clients, rel=0.05)


def test_theorem_4_6_of_fedexp_privacy_terms() -> None:
    """T_4 of CDP-FedEXP, whose step has the error xi of deviation d sigma^2 / M, stays below a
    constant times L sigma^2 q^2 / (eta_l tau) d / M, however many the clients, except with the
    probability that Lemmas C.1 and C.2 leave. With the error of LDP-FedEXP's step in place of xi,
    of the order sqrt(d / M), it does not.
    """
    draws, dimension, sigma, runs, smooth = np.random.default_rng(8), 20, 0.7, 4000, 4.0
    unit, q = 0.9 / (24 * smooth), 4.0  # eta_l tau
    left = np.exp(-(q**2) / 2) + np.exp(-(q**2) / 8)

    def over(clients: float, deviation: float) -> float:
        """The share of draws above; 1 / M sum ||h_i||^2, which only lowers T_4, is left out."""
        noise = sigma / np.sqrt(clients) * draws.normal(size=(runs, dimension))
        squared = (noise**2).sum(axis=-1) / unit**2
        shift = deviation * draws.normal(size=runs) / unit**2
        privacy = squared + unit * smooth / 2 * np.maximum(shift, 2 * squared)
        # ||noise||^2 <= (1 + q^2) d sigma^2 / M and xi <= q sigma_xi, and q >= 1
        constant = 2 * (1 + unit * smooth) / (unit * smooth) + 1 / 2
        order = smooth * sigma**2 * q**2 / unit * dimension / clients
        return float((privacy > constant * order).mean())

    for clients in (50, 1e4, 1e9):
        assert over(clients, dimension * sigma**2 / clients) <= left
    assert over(1e9, np.sqrt(2 * dimension / 1e9) * sigma**2) > left


@pytest.mark.parametrize(("trust", "times"), [("local", 0), ("central", 1), ("central", 1000)])
@pytest.mark.parametrize("sigma", [0.0, 0.02, 0.2, 20.0])
def test_equation_12_of_fedexp(sigma: float, trust: str, times: int) -> None:
    """The descent that Theorems 4.5 and 4.6 rest on holds in every round of LDP-FedEXP and of
    CDP-FedEXP, with the squares in T_4 that appendix F leaves out and eta_l < 1 / (24 L tau). It
    does for any sigma_xi: at 1000 `times` Theorem 4.6's it would not without T_4's part of xi.
    """
    problem, draws, steps, smooth = quadratics(6), np.random.default_rng(7), 5, 4.0
    eta = 0.9 / (24 * smooth * steps)
    unit = eta * steps
    hessians, minimisers = problem

    def loss(w: Array) -> float:
        away = w - minimisers
        return float(0.5 * np.einsum("ni,nij,nj->n", away, hessians, away).mean())

    w = 3 * draws.normal(size=DIMENSION)
    for _ in range(40):
        local = np.broadcast_to(w, (CLIENTS, DIMENSION))
        at_start = gradients(problem, local)
        for _ in range(steps):
            local = local - eta * gradients(problem, local)
        updates = local - w
        noisy = sigma * unit
        if trust == "local":  # equation 6
            sent = updates + noisy * draws.normal(size=updates.shape)
            estimated = (sent**2).sum() / CLIENTS - DIMENSION * noisy**2
            mean = sent.mean(axis=0)
        else:  # equation 7, and Theorem 4.6's sigma_xi = d sigma^2 / M
            mean = updates.mean(axis=0) + noisy / np.sqrt(CLIENTS) * draws.normal(size=DIMENSION)
            xi = times * DIMENSION * noisy**2 / CLIENTS * draws.normal()
            estimated = (updates**2).sum() / CLIENTS + xi
        server = max(1.0, estimated / (mean**2).sum())
        drift, gradient = -updates / unit, at_start.mean(axis=0)
        noise = (((mean - updates.mean(axis=0)) / unit) ** 2).sum()
        lengths = (drift**2).sum() / CLIENTS
        shift = (estimated - (updates**2).sum() / CLIENTS) / unit**2
        privacy = noise + unit * smooth / 2 * max(shift - lengths, 2 * noise)
        apart = ((at_start - drift) ** 2).sum() / CLIENTS
        bracket = (gradient**2).sum() / 4 - apart / 2 - unit * smooth * lengths - privacy
        after = w + server * mean
        assert loss(after) - loss(w) <= -server * unit * bracket + 1e-12
        w = after


def test_corollary_1_of_adaptdp() -> None:
    """What can be tested of an order without constants: around 500 records a client and epsilon 2
    the loss of x_out, the mean of all rounds' models, is larger at a fourth of epsilon, smaller at
    four times and smaller with four times the records, with every seed. (Where noise is all, as at
    epsilon 0.5, records tell little, and where it is little, as at 2000 and 2, epsilon.)
    """
    words = ["+experiment=adaptdp/quadratic", "dataset.dimension=10", "rounds=30", "seed=range(4)"]
    words += ["evaluation.every=30", "evaluation.average_last=30"]
    words += ["algorithm.local_steps=5", "algorithm.batch_size=50"]

    def losses(records: int, epsilon: float) -> Array:
        given = f"dataset.records_per_client={records}", f"dp.epsilon={epsilon}"
        runs = run(*words, *given, quiet=True)
        return np.array([one.result["metrics"]["last"]["objective"] for one in runs])

    middle = losses(500, 2)
    assert (losses(500, 0.5) > middle).all()
    assert (losses(500, 8) < middle).all()
    assert (losses(2000, 2) < middle).all()
