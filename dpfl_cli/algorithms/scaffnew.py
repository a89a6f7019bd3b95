"""DP-ScaffNew and DP-FedAvg, iteration by iteration: local steps, and now and then one clipped and
noised communication.

References:
  Hou, Khirirat, Yaqub, Horváth, "Balancing Privacy and Performance for Private Federated Learning
    Algorithms", 2023, arXiv:2304.05127, section 2, Algorithm 2 (DP-ScaffNew), and with
    `control=none` Algorithm 1 (DP-FedAvg).
  Mishchenko, Malinovsky, Stich, Richtárik, "ProxSkip: Yes! Local Gradient Steps Provably Lead to
    Communication Acceleration! Finally!", ICML 2022, arXiv:2202.09357 (Scaffnew, without noise).

Round t is one local iteration, of T = `rounds`, with the last synchronised model x, local models
x_i and controls h_i:
    theta_t = whether clients communicate: t a multiple of tau (deterministic), or a coin of
              probability p = 1 / tau (bernoulli)
    xhat_i  = x_i - eta (g_i(x_i) - h_i)        g_i: the gradient of f_i, or of the mean loss of b
                                                fresh records
    theta_t:     Delta_i = CLIP(xhat_i - x),  m = what the mechanism makes of mean_i Delta_i
                 x <- x + m,  x_i <- x,  h_i <- h_i + (p / eta) (m - X_i)
    otherwise:   x_i <- xhat_i

X_i by `control`:
    sent     what the client transmitted: its noisy message where it adds noise itself (local),
             Delta_i where it does not (central, none), that with its share of the noise under
             secure aggregation;
    clipped  Delta_i;
    apart    (ours) Delta_i, with what the control contributed left out of the message, see below;
    none     every h_i is zero for ever: DP-FedAvg with tau local steps a communication. It has a
             file of its own in rounds of tau steps, `fedavg`, which gives the same models; here
             runs of different tau are one tensor program.
sum_i h_i = 0 for ever where the X_i average to m, clipped and noisy as they are (`sent` under local
trust, secure aggregation). Elsewhere the noise of the mean stays in the controls: of `clipped` ones
every later communication adds it once more, as in `scaffold`, so that the error grows with T.
`apart`, for central trust and secure aggregation, takes after L local steps since the last
communication
    Delta_i = CLIP(xhat_i - x - eta L h_i),  h_i <- h_i + (p / eta) (m - (Delta_i + eta L h_i))
so that a communication's noise is in x once. Unclipped and without noise it is the paper's, for
then sum_i h_i = 0.

The coins depend on the seed alone and are drawn before the run, so that the releases that will
really be made are known and priced. The model that counts is x, the last synchronised one; local
steps after the last communication are lost (`final_release=true` makes one at T, which is counted
as any other).

Releases:
    "update"  Delta_i in a ball of radius C, where theta_t shows: 2C when a client's data are
              replaced, C when its message is zeroed (the paper's relation) or left out.

Proved under local and central trust: given the past releases, Delta_i depends on the client's own
data and on no other's, whatever its local model and control are, and is clipped; theta depends on
no data. So every communication is the mechanism applied to a quantity of known sensitivity, and
adaptive composition applies. Under secure aggregation the same holds of `clipped`, `apart` and
`none`, given the sums that were released before; `sent` controls hold the client's share of the
noise, which no release of the sum shows (not proved), unless every message carries the whole noise.

Diagnostics: `local_steps` and `communications` so far, which are public; of what clients would
communicate now, before clipping, `update_norm` (their mean length) and `watched_norm`; of what they
communicated so far `longest_update` and `clipped_fraction`. These look at clients without a
release.
"""

from functools import partial
from typing import Literal

from dpfl_cli.algorithms.api import (
    CLIPPED,
    BatchSettings,
    BatchSize,
    Bound,
    ClientNumber,
    ClientSide,
    ConfigError,
    Field,
    Number,
    Positive,
    ReleaseSpec,
    Round,
    RoundResult,
    Setup,
    State,
    Streams,
    Tensor,
    algorithm,
    clip,
    kept_share_gaps,
    np,
    own_norms,
    own_values,
    per_run,
    torch,
)
from dpfl_cli.data.streams import stream_generator
from dpfl_cli.privacy.diagnostics import drift_diagnostics


class ScaffNewSettings(BatchSettings):
    """Settings of `scaffnew`."""

    local_steps: Number = Field(ge=1)  # tau = 1 / p
    local_lr: Positive  # eta
    clip_norm: Bound  # C
    batch_size: BatchSize  # b
    control: Literal["sent", "clipped", "apart", "none"]
    schedule: Literal["deterministic", "bernoulli"]
    final_release: bool
    watched_client: ClientNumber


def communicates(settings: ScaffNewSettings, seed: int, rounds: int) -> np.ndarray:
    """[T] theta_1, ..., theta_T: in which iterations clients communicate; with coins it may be
    none.

    Raises:
      ConfigError: there is no such iteration, and not by chance.
    """
    tau = settings.local_steps
    if settings.schedule == "bernoulli":
        coins = stream_generator(seed, "coins").random(rounds) < 1 / tau
    else:
        coins = np.arange(1, rounds + 1) % tau == 0
        if tau > rounds and not settings.final_release:
            raise ConfigError(
                f"algorithm.local_steps={tau:g}: clients would not communicate once in "
                f"rounds={rounds}; take at most so many local steps, or "
                "algorithm.final_release=true"
            )
    coins[-1] |= settings.final_release
    return coins


@algorithm(
    "scaffnew",
    revision=2,
    paper="Hou et al. 2023, arXiv:2304.05127; Mishchenko et al. 2022, arXiv:2202.09357",
    unit="client",
)
class ScaffNew:
    """DP-ScaffNew: local steps with control variates, communication now and then (control=none:
    DP-FedAvg).
    """

    hyper: ScaffNewSettings

    gaps = staticmethod(partial(kept_share_gaps, "apart"))

    @staticmethod
    def releases(settings: ScaffNewSettings, run: Setup) -> list[ReleaseSpec]:
        tau, random = settings.local_steps, settings.schedule == "bernoulli"
        if not random and tau % 1:
            raise ConfigError(
                f"algorithm.local_steps={tau:g} with algorithm.schedule=deterministic: must be a "
                "whole number; coins of any probability 1 / local_steps are schedule=bernoulli"
            )
        sent = settings.control == "sent"
        expected = run.rounds / tau + (1 - 1 / tau) * settings.final_release
        return [
            ReleaseSpec(
                "update",
                made=communicates(settings, run.seed, run.rounds),
                expected=expected if random else None,
                echo=sent,
                sums_suffice=not sent,
                note=f"where clients communicate: change {CLIPPED}",
            )
        ]

    def init(self, objective: ClientSide, streams: Streams) -> State:
        model = objective.initial(streams)
        local = own_values(model.unsqueeze(1).repeat(1, objective.clients, 1))
        control = {} if self.hyper.control == "none" else {"control": torch.zeros_like(local)}
        zero = torch.zeros_like(model[:, 0])
        server = {"model": model, "communications": zero, "since": zero}
        nothing = own_norms(torch.zeros_like(local))
        seen = {"longest": nothing, "clipped": nothing}
        return State(server, {"local": local, **seen, **control})

    def round(self, state: State, at: Round) -> RoundResult:
        hyper, server, clients = self.hyper, dict(state.server), dict(state.clients)
        model, control = server["model"], clients.get("control")  # x, h_i
        size = hyper.batch_size
        batch = None if size is None else at.batch(size, at.number)
        slope: Tensor = at.objective.gradient(clients["local"], batch)  # g_i(x_i)
        if control is not None:
            slope = slope - control
        clients["local"] = clients["local"] - per_run(hyper.local_lr, slope) * slope  # xhat_i
        server["since"] = server["since"] + 1  # L
        moved = clients["local"] - model.unsqueeze(1)
        inside: Tensor | float = 0.0  # eta L h_i, where it is left out of the message
        if control is not None and hyper.control == "apart":
            inside = per_run(server["since"] * hyper.local_lr, control) * control
            moved = moved - inside

        lengths, due = own_norms(moved), at.mechanism.due("update", at.number)  # theta_t
        if due.any():
            update = clip(moved, hyper.clip_norm)  # Delta_i
            release = at.release("update", update, charged=due)
            server["model"] = model + release.mean  # m is zero where clients do not communicate
            server["communications"] = server["communications"] + per_run(due, server["since"])
            server["since"] = server["since"] * per_run(~due, server["since"])
            if control is not None:
                rate = per_run(1 / (hyper.local_steps * hyper.local_lr), control)  # p / eta
                kept = release.echo if hyper.control == "sent" else update.values  # X_i
                change = rate * (release.mean.unsqueeze(1) - (kept + inside))
                clients["control"] = at.where(due, control + change, control)
            everywhere = at.at_clients(server["model"])
            clients["local"] = at.where(due, everywhere, clients["local"])
            sent = at.where(due, lengths, torch.zeros_like(lengths))
            clients["longest"] = torch.maximum(clients["longest"], sent)
            longer = sent > per_run(hyper.clip_norm, sent)
            clients["clipped"] = clients["clipped"] + longer
        steps = per_run(at.number, server["since"])
        public = {"local_steps": steps, "communications": server["communications"]}
        seen = drift_diagnostics(lengths, clients, server["communications"], hyper.watched_client)
        return State(server, clients), public | seen
