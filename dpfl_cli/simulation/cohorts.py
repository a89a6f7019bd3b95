"""The clients of a round, where clients are drawn: their records and states, gathered from all and
put back.

What is gathered is as large as the cohort: a round costs what its cohort does, however many clients
there are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.data.devices import on_device
from dpfl_cli.data.federation import Federation
from dpfl_cli.models.client_side import ClientSide
from dpfl_cli.models.objective import Objective
from dpfl_cli.privacy.client_values import (
    check_cohort,
    client_values,
    is_raw,
    of_cohort,
    opened,
    own_values,
)
from dpfl_cli.privacy.draws import Cohort, members_of
from dpfl_cli.simulation.run_plan import Plan, federation_of

Tensors = Mapping[str, Tensor]  # by name


def held_by(plans: Sequence[Plan], given: Sequence[Federation] | None) -> list[Federation]:
    """[R] the federation of every run, as its plan or the caller has it, with private numbers of
    records where whole clients are protected.
    """
    found = list(given or [federation_of(plan) for plan in plans])
    if plans[0].dp.unit == "record" or plans[0].dp.trust == "none":
        return found
    own = {one: replace(one, counts_private=True) for one in dict.fromkeys(found)}
    return [own[one] for one in found]


def numbered(federations: Sequence[Federation]) -> tuple[list[Federation], np.ndarray]:
    """The distinct federations, and [R] which of them each run has."""
    place = {one: number for number, one in enumerate(dict.fromkeys(federations))}
    return list(place), np.array([place[one] for one in federations])


def view_of(cohort: Cohort, objective: Objective, federations: Sequence[Federation]) -> ClientSide:
    """What an algorithm sees of the clients that take part.

    Args:
      objective: of all clients.
      federations: of every run. Runs with one cohort share its records.
    """
    known: dict[tuple[Federation, bytes], Federation] = {}
    own = []
    for federation, members in zip(federations, members_of(cohort), strict=True):
        key = federation, members.tobytes()
        if key not in known:
            known[key] = replace(federation, partition=federation.partition.of(members))
        own.append(known[key])
    return ClientSide(objective.among(*numbered(own)), "client", cohort)


def taken(cohort: Cohort, states: Tensors) -> Tensors:
    """[R, K, ...] of the states [R, M, ...] of all clients; rows of nobody hold somebody's, and
    count for nothing.
    """
    members = members_of(cohort).clip(min=0)
    runs = np.arange(len(members))[:, None]
    found = {}
    for name, value in states.items():
        rows = opened(value)[on_device(runs, value.device), on_device(members, value.device)]
        found[name] = of_cohort(client_values(rows) if is_raw(value) else own_values(rows), cohort)
    return found


def put_back(cohort: Cohort, new: Tensors, states: Tensors) -> Tensors:
    """The states [R, M, ...] of all clients, written in place: of those that take part the new ones
    [R, K, ...]; of the others what they were.
    """
    members = members_of(cohort)
    runs, rows = np.nonzero(members >= 0)
    if new.keys() != states.keys():
        raise PrivacyError(
            "where clients are drawn, their states are the same in every round: set up in `init` "
            "all that `round` returns"
        )
    found = {}
    for name, value in states.items():
        check_cohort(new[name], cohort, f"the state '{name}'")
        whole = opened(value)
        run, client, row = (
            on_device(part, whole.device) for part in (runs, members[runs, rows], rows)
        )
        whole[run, client] = opened(new[name])[run, row]
        own = not (is_raw(value) or is_raw(new[name]))
        found[name] = own_values(whole) if own else client_values(whole)
    return found
