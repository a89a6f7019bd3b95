"""No noise, and Gaussian noise: on every client's message (local), on the mean (central), or in
shares (secure aggregation).

In all, noise multiplier z = std / sensitivity, where the sensitivity of one contribution comes with
the bounded values: 2C for vectors clipped to C under replace_one, C under add_or_remove and
zero_out. The noise of Takakura et al. (arXiv:2504.09850, section 5) in these terms, under
replace_one: local std 0.7 C = 0.35 * 2C, so z = 0.35; central std on the mean
5C / M = 2.5 * 2C / M, so z = 2.5.
"""

import math
from typing import Any, Literal

from torch import Tensor

from dpfl_cli.config.component import NoiseOrNone, Settings, component
from dpfl_cli.privacy.bounded import per_run
from dpfl_cli.privacy.client_values import ClientValues, client_values, own_values
from dpfl_cli.privacy.ledger import Scope
from dpfl_cli.privacy.mechanism import Call, Event, Mechanism, needs_noise
from dpfl_cli.privacy.releases import Release, ReleaseSpec, Setup


class GaussianSettings(Settings):
    """Settings of a Gaussian mechanism.

    Attributes:
      noise_multiplier: z = std / sensitivity; None where a target epsilon is to determine it.
    """

    noise_multiplier: NoiseOrNone


@component("mechanism", "none", Settings)
class NoNoise(Mechanism):
    """No mechanism: the server sees every contribution as it is; epsilon is infinite."""

    trusts = frozenset({"none"})
    needs_bound = False
    varies = True  # there is none to be charged for

    @classmethod
    def event(cls, settings: Any, spec: ReleaseSpec, setup: Setup) -> Event:
        return "nonprivate", None, "federation"

    def _released(self, call: Call) -> Release:
        """The values themselves, [R, M, d] or [R, M]."""
        received = call.values.checked()
        mean = self._mean(call.values)
        own = client_values(received)
        return Release(received=received, own=own, bound=call.values.bound, averaged=mean)

    def squared_norms(self, release: Release) -> Tensor:
        """[R, M] ||v_i||^2 exactly."""
        return release.received.square().sum(dim=-1)


class _Gaussian(Mechanism):
    """What the Gaussian mechanisms share: the event of a release, and noise."""

    noise_field = "noise_multiplier"
    varies = True
    _scope: Scope

    @classmethod
    def event(cls, settings: Any, spec: ReleaseSpec, setup: Setup) -> Event:
        """Gaussian, with the settings' noise multiplier or what the release makes of it."""
        multiplier = needs_noise(settings.noise_multiplier, "noise_multiplier")
        if spec.multiplier is not None:
            multiplier = spec.multiplier(multiplier)
        return "gaussian", multiplier, cls._scope

    def _noisy(self, call: Call, values: Tensor, std: Tensor) -> Tensor:
        """Values plus N(0, std^2): contributions [R, M, d] or [R, M], std [R] or [R, M]; or their
        mean [R, d] or [R], std [R], one draw per run.
        """
        vectors = values if call.values.is_vector else values.unsqueeze(-1)
        name, streams = f"noise/{call.spec.name}", self._site.streams
        clients = vectors.shape[1] if vectors.dim() == 3 else None
        where = name, call.address, clients, vectors.shape[-1], vectors.dtype, vectors.device
        noisy = streams.normal(*where).mul_(per_run(std, vectors)).add_(vectors)
        return noisy if call.values.is_vector else noisy.squeeze(-1)


def _of_mean(call: Call, mean: Tensor, own: ClientValues | None, std: Tensor) -> Release:
    """Of which the mean alone is seen."""
    return Release(received=mean, own=own, bound=call.values.bound, noise_std=std, averaged=mean)


@component("mechanism", "local_gaussian", GaussianSettings)
class LocalGaussian(_Gaussian):
    """Gaussian noise on every client's message (local trust).

    Client i sends c_i = v_i + N(0, std^2 I_d), std = z * sensitivity. The server, and anybody, may
    see every message; each is one Gaussian release of client i's data, and clients hold disjoint
    data.
    """

    trusts = frozenset({"local"})
    _scope = "client"

    def _released(self, call: Call) -> Release:
        """Messages [R, M, d] or [R, M]; a client's echo is its own message."""
        std = per_run(call.parameters, call.sensitivity) * call.sensitivity
        received = self._noisy(call, call.values.checked(), std)
        own = own_values(received)
        return Release(received=received, own=own, bound=call.values.bound, noise_std=std)

    def squared_norms(self, release: Release) -> Tensor:
        """[R, M] ||c_i||^2 - d std^2, whose expectation is ||v_i||^2 (Takakura et al., section 4.1;
        may be negative).
        """
        assert release.noise_std is not None
        size = release.received.shape[-1]
        noise = size * per_run(release.noise_std.square(), release.received[..., 0])
        return release.received.square().sum(dim=-1) - noise


@component("mechanism", "central_gaussian", GaussianSettings)
class CentralGaussian(_Gaussian):
    """Gaussian noise on the mean over clients, added by a trusted server (central trust).

    The mean of M contributions changes by at most sensitivity / M when one does, so the noise on it
    has the standard deviation std = z * sensitivity / M. M is public and fixed: under zero_out and
    add_or_remove a client that is absent counts as a zero vector (a zero) and the mean is still
    divided by M. Where clients are drawn, M is the size of a cohort, on average or exactly, and
    those who do not take part are absent; a cohort without clients is noise alone.
    """

    trusts = frozenset({"central"})
    _scope = "federation"

    def _released(self, call: Call) -> Release:
        """The noisy mean [R, d] or [R]; a client's echo is its own clipped contribution, which it
        sent to the server.
        """
        std = per_run(call.parameters, call.largest) * call.largest / self._site.setup.cohort
        mean = self._noisy(call, self._mean(call.values), std)
        return _of_mean(call, mean, call.values.values, std)


class SharedSettings(GaussianSettings):
    """Settings of `shared_gaussian`.

    Attributes:
      noise_share: each client adds its share of the noise of the sum; otherwise each adds all of
        it, so that the sum carries sqrt(M) times as much (the target epsilon is still that of
        shares: what is added beyond it shows in epsilon).
      sens_scale: the noise is for the largest sensitivity among the clients, or each client's share
        for its own (Krouka et al.).
    """

    noise_share: bool = True
    sens_scale: Literal["max", "own"] = "max"


@component("mechanism", "shared_gaussian", SharedSettings)
class SharedGaussian(_Gaussian):
    """Gaussian noise added in shares, of which only the sum is seen (secure aggregation).

    Client i adds N(0, std^2 / M) to its contribution, std = z * sensitivity, and sends the result
    into a secure sum, which shows sum_i (v_i + e_i) to everybody and nothing else to anybody. One
    privacy unit moves the sum by at most the largest sensitivity among the clients, and the noise
    on it is N(0, std^2): one Gaussian release of multiplier z. Handing out the mean, the sum over
    the public M, is post-processing. Each client's own message, which it knows, holds only a share
    of the noise: it is client state (the echo) and no epsilon covers it.

    A coalition of h clients knows its own shares, so that against it the multiplier is
    z sqrt((M - h) / M).

    With `noise_share=false` every client adds N(0, std^2): the sum is a release of multiplier
    z sqrt(M), and each message, by itself, one of multiplier z. Where the sums do not cover the
    method (`ReleaseSpec.sums_suffice`), it is the messages that are priced: clients hold disjoint
    data, and everything that anybody sees is computed from messages.

    With `sens_scale=own` (not proved) client i's share is N(0, z^2 s_i^2 / M) for its own
    sensitivity s_i: the sum has noise for the root mean square of the s_i, but moves by the
    largest.
    """

    trusts = frozenset({"secure_aggregation"})
    _scope = "federation"

    @classmethod
    def whole_noise(cls, settings: SharedSettings) -> bool:
        return not settings.noise_share

    @classmethod
    def gap(cls, settings: SharedSettings) -> str | None:
        if settings.sens_scale == "max":
            return None
        return (
            "mechanism.sens_scale=own: the noise of the sum is for the root mean square of the "
            "clients' sensitivities, but one record moves it by the largest"
        )

    @classmethod
    def as_calibrated(cls, settings: SharedSettings) -> SharedSettings:
        return settings.model_copy(update={"noise_share": True})

    @classmethod
    def event(cls, settings: Any, spec: ReleaseSpec, setup: Setup) -> Event:
        """As shares: multiplier z. With whole noise: z sqrt(M) for the sums, or z for messages
        where the sums do not suffice.
        """
        kind, multiplier, scope = super().event(settings, spec, setup)
        if settings.noise_share or multiplier is None:
            return kind, multiplier, scope
        if spec.sums_suffice:
            return kind, multiplier * math.sqrt(setup.clients), scope
        return kind, multiplier, "client"

    def _released(self, call: Call) -> Release:
        """The noisy mean [R, d] or [R]; a client's echo is its own contribution with its share of
        the noise.

        Noise is drawn per client where the method reads the echo, else once for the sum.
        """
        settings, clients = self.settings[0], self._site.setup.clients  # one choice in a batch
        multipliers = call.parameters
        priced = not settings.noise_share and not call.spec.sums_suffice  # as messages
        if priced:
            multipliers = multipliers * math.sqrt(clients)
        sizes = call.sensitivity if settings.sens_scale == "own" else call.largest
        std = per_run(multipliers, sizes) * sizes  # of the sum
        share = std / math.sqrt(clients)
        if share.dim() == 2:  # clients differ
            std = share.square().sum(dim=1).sqrt()
        echo: ClientValues | None = None
        if call.spec.echo:
            messages = self._noisy(call, call.values.checked(), share)
            echo = own_values(messages) if priced else client_values(messages)
            mean = messages.mean(dim=1)
        else:
            mean = self._noisy(call, self._mean(call.values), std / clients)
        return _of_mean(call, mean, echo, std / clients)
