"""DP-ScaffNew and DP-FedAvg, iteration by iteration: local steps, and now and then one clipped and noised communication.

References:
  Hou, Khirirat, Yaqub, Horvath, "Balancing privacy and performance for private federated learning algorithms", 2023,
    arXiv:2304.05127, Algorithm 2 (DP-ScaffNew), and with `control=none` Algorithm 1 (DP-FedAvg).
  Mishchenko, Malinovsky, Stich, Richtarik, "ProxSkip: yes! local gradient steps provably lead to communication acceleration!
    Finally!", 2022, arXiv:2202.09357 (Scaffnew, without noise).

Round t is one local iteration, of T = `rounds`, with the last synchronised model x, local models x_i and controls h_i:
    theta_t = whether clients communicate: t a multiple of tau (deterministic), or a coin of probability p = 1 / tau (bernoulli)
    xhat_i  = x_i - eta (g_i(x_i) - h_i)           g_i: the gradient of f_i, or of the mean loss of b fresh records
    theta_t:     Delta_i = CLIP(xhat_i - x),  m = what the mechanism makes of mean_i Delta_i
                 x <- x + m,  x_i <- x,  h_i <- h_i + (p / eta) (m - X_i)
    otherwise:   x_i <- xhat_i
X_i by `control`: `sent` is what the client transmitted, its noisy message where it adds noise itself (local), Delta_i where it
does not (central, none), and that with its share of the noise under secure aggregation; `clipped` is Delta_i. With `none` every
h_i is zero for ever: DP-FedAvg with tau local steps a communication. It has a file of its own in rounds of tau steps, `fedavg`,
which gives the same models; here runs of different tau are one tensor program.

sum_i h_i = 0 for ever where the X_i average to m, clipped and noisy as they are (`sent` under local trust, secure aggregation).
Elsewhere the noise of the mean stays in the controls: of `clipped` ones every later communication adds it once more, as in
`scaffold`, so that the error grows with T. `apart` (ours, for central trust and secure aggregation) leaves what the control
contributed out of the message: after L local steps since the last communication
    Delta_i = CLIP(xhat_i - x - eta L h_i),  h_i <- h_i + (p / eta) (m - (Delta_i + eta L h_i))
so that a communication's noise is in x once. Unclipped and without noise it is the paper's, for then sum_i h_i = 0.

The coins depend on the seed alone and are drawn before the run, so that the releases that will really be made are known and
priced. The model that counts is x, the last synchronised one; local steps after the last communication are lost
(`final_release=true` makes one at T, which is counted as any other).

Release: "update", Delta_i in a ball of radius C, where theta_t shows. Replacing a client's data moves it by at most 2C, zeroing
  it (the paper's relation) or leaving it out by at most C.

Proved under local and central trust: given the past releases, Delta_i depends on the client's own data and on no other's,
whatever its local model and control are, and is clipped; theta depends on no data. So every communication is the mechanism
applied to a quantity of known sensitivity, and adaptive composition applies. Under secure aggregation the same holds of
`clipped`, `apart` and `none`, given the sums that were released before; `sent` controls hold the client's share of the noise,
which no release of the sum shows (not proved), unless every message carries the whole noise.

Diagnostics: `local_steps` and `communications` so far, which are public; of what clients would communicate now, before clipping,
`update_norm` (their mean length) and `watched_norm`; of what they communicated so far `longest_update` and `clipped_fraction`.
These look at clients without a release.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from dpfl_cli.algorithms.base import Diagnostics, State
from dpfl_cli.algorithms.local import batches_fit, check_clip_norm, kept_share_gap, local_batch, per_run
from dpfl_cli.config.component import Settings, component
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.devices import on_device
from dpfl_cli.data.streams import Streams, stream_generator
from dpfl_cli.models.objective import ClientSide
from dpfl_cli.privacy.bounded import Bounded, clip, own_norms
from dpfl_cli.privacy.client_values import client_values
from dpfl_cli.privacy.diagnostics import drift_diagnostics
from dpfl_cli.privacy.mechanism import Mechanism, Release, ReleaseSpec


class ScaffNewSettings(Settings):
    """Settings of `scaffnew`."""

    local_steps: float = Field(ge=1, allow_inf_nan=False)  # tau = 1 / p
    local_lr: float = Field(gt=0, allow_inf_nan=False)  # eta
    clip_norm: float | None = Field(gt=0, allow_inf_nan=False)  # C
    batch_size: int | None = Field(ge=1)  # b
    control: Literal["sent", "clipped", "apart", "none"]
    schedule: Literal["deterministic", "bernoulli"]
    final_release: bool
    watched_client: int | None = Field(ge=0)


def communicates(settings: ScaffNewSettings, seed: int, rounds: int) -> np.ndarray:
    """[T] theta_1, ..., theta_T: in which iterations clients communicate; with coins it may be none.

    Raises:
      ConfigError: there is no such iteration, and not by chance.
    """
    if settings.schedule == "bernoulli":
        coins = stream_generator(seed, "coins").random(rounds) < 1 / settings.local_steps
    else:
        coins = np.arange(1, rounds + 1) % settings.local_steps == 0
        if settings.local_steps > rounds and not settings.final_release:
            raise ConfigError(
                f"algorithm.local_steps={settings.local_steps:g}: clients would not communicate once in rounds={rounds}; "
                "take at most so many local steps, or algorithm.final_release=true"
            )
    coins[-1] |= settings.final_release
    return coins


def _expected(settings: ScaffNewSettings, rounds: int) -> float:
    """How many communications are to be expected in T iterations."""
    probability = 1 / settings.local_steps
    return probability * rounds + (1 - probability) * settings.final_release


@component("algorithm", "scaffnew", revision=2, settings=ScaffNewSettings)
class ScaffNew:
    """DP-ScaffNew: local steps with control variates, communication now and then (control=none: DP-FedAvg)."""

    trusts: ClassVar[frozenset[str]] = frozenset({"none", "local", "central", "secure_aggregation"})
    units: ClassVar[frozenset[str]] = frozenset({"client"})
    paper: ClassVar[str] = "DP-ScaffNew, 2023, arXiv:2304.05127; Mishchenko et al. 2022, arXiv:2202.09357"

    def __init__(self, hyper: Any) -> None:
        self.hyper = hyper

    @staticmethod
    def gap(settings: ScaffNewSettings, trust: str, whole_noise: bool) -> str | None:
        """See the docstring of the file."""
        return kept_share_gap(settings.control, trust, whole_noise, instead="apart")

    @staticmethod
    def releases(settings: ScaffNewSettings, trust: str) -> list[ReleaseSpec]:
        check_clip_norm(settings, trust)
        if settings.schedule == "deterministic" and settings.local_steps % 1:
            raise ConfigError(
                f"algorithm.local_steps={settings.local_steps:g} with algorithm.schedule=deterministic: must be a whole number; "
                "coins of any probability 1 / local_steps are schedule=bernoulli"
            )
        sent, random = settings.control == "sent", settings.schedule == "bernoulli"
        expected: Callable[[int], float] | None = partial(_expected, settings) if random else None
        return [
            ReleaseSpec(
                "update",
                occurs=partial(communicates, settings),
                expected=expected,
                settle=batches_fit(settings.batch_size),
                echo=sent,
                sums_suffice=not sent,
                note="where clients communicate: change clipped to C: sensitivity 2C (replace_one), C (zero_out, add_or_remove)",
            )
        ]

    def init(self, objective: ClientSide, streams: Streams) -> State:
        model = objective.initial(streams)
        local = client_values(model.unsqueeze(1).repeat(1, objective.clients, 1))
        control = {} if self.hyper.control == "none" else {"control": torch.zeros_like(local)}
        nothing = client_values(torch.zeros(*local.shape[:2], dtype=torch.float64, device=model.device))
        return State(
            server={"model": model, "communications": torch.zeros_like(model[:, 0]), "since": torch.zeros_like(model[:, 0])},
            clients={"local": local, "longest": nothing, "clipped": torch.zeros_like(nothing), **control},
        )

    def round(
        self, state: State, objective: ClientSide, mechanism: Mechanism, streams: Streams, rounds: np.ndarray
    ) -> tuple[State, Diagnostics]:
        hyper, server, clients = self.hyper, dict(state.server), dict(state.clients)
        model, control = server["model"], clients.get("control")  # x, h_i
        batch = None if hyper.batch_size is None else local_batch(objective, streams, hyper.batch_size, rounds)
        gradient = objective.gradient(clients["local"], batch)  # g_i(x_i)
        slope: Tensor = gradient if control is None else gradient - control
        clients["local"] = clients["local"] - per_run(hyper.local_lr, slope) * slope  # xhat_i
        server["since"] = server["since"] + 1  # L
        moved = clients["local"] - model.unsqueeze(1)
        inside: Tensor | float = 0.0  # eta L h_i, where it is left out of the message
        if control is not None and hyper.control == "apart":
            inside = per_run(server["since"] * hyper.local_lr, control) * control
            moved = moved - inside
        lengths: Tensor = own_norms(moved)

        due = mechanism.due("update", rounds)  # theta_t
        if due.any():
            update = clip(moved, hyper.clip_norm)  # Delta_i
            release = mechanism.release("update", update, rounds, charged=due)
            theta = on_device(due, model.device)
            server["model"] = model + release.mean  # m is zero where clients do not communicate
            server["communications"] = server["communications"] + theta.to(model.dtype)
            server["since"] = torch.where(theta, 0.0, server["since"])
            everywhere = theta.reshape(-1, 1, 1)
            clients["longest"] = torch.where(everywhere[..., 0], torch.maximum(clients["longest"], lengths), clients["longest"])
            clients["clipped"] = clients["clipped"] + everywhere[..., 0] * (lengths > hyper.clip_norm.unsqueeze(-1))
            if control is not None:
                rate = per_run(1 / (hyper.local_steps * hyper.local_lr), control)  # p / eta
                correction = rate * (release.mean.unsqueeze(1) - (self._remembered(update, release) + inside))
                clients["control"] = torch.where(everywhere, control + correction, control)
            clients["local"] = torch.where(everywhere, server["model"].unsqueeze(1), clients["local"])
        steps = on_device(np.asarray(rounds), model.device, model.dtype)
        told = drift_diagnostics(lengths, clients["longest"], clients["clipped"], server["communications"], hyper.watched_client)
        return State(server, clients), {"local_steps": steps, "communications": server["communications"], **told}

    def _remembered(self, update: Bounded, release: Release) -> Tensor:
        """[R, M, d] X_i."""
        return release.echo if self.hyper.control == "sent" else update.values
