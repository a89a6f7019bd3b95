"""Everything that the file of an algorithm needs, in one import."""

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from dpfl_cli.algorithms.base import (
    ALL_TRUSTS,
    EVERY_TRUST,
    Bound,
    Diagnostics,
    NoiseOrNone,
    NonNegative,
    Number,
    Positive,
    PositiveOrNone,
    Round,
    RoundResult,
    State,
    algorithm,
    projected,
    start,
    zeros_of,
)
from dpfl_cli.algorithms.local import (
    CLIPPED,
    BatchSettings,
    LocalSettings,
    bounded_local_update,
    first_round,
    kept_share_gaps,
    local_update,
)
from dpfl_cli.algorithms.record import (
    GRADIENT,
    RecordSettings,
    gradient_release,
    local_steps_gaps,
    noisy_steps,
)
from dpfl_cli.config.component import BatchSize, ClientNumber, Count, Settings
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.client_side import ClientSide
from dpfl_cli.privacy.bounded import (
    Bounded,
    clip,
    clip_symmetric,
    own_norms,
    per_run,
    scaled,
    squared_norms,
    vector_norms,
)
from dpfl_cli.privacy.client_values import ClientValues, own_values
from dpfl_cli.privacy.diagnostics import update_diagnostics
from dpfl_cli.privacy.mechanism import Mechanism
from dpfl_cli.privacy.releases import Release, ReleaseSpec, Setup

__all__ = [
    "ALL_TRUSTS",
    "BatchSettings",
    "BatchSize",
    "Bound",
    "Bounded",
    "CLIPPED",
    "ClientNumber",
    "ClientSide",
    "ClientValues",
    "ConfigError",
    "Count",
    "Diagnostics",
    "EVERY_TRUST",
    "Field",
    "GRADIENT",
    "LocalSettings",
    "Mechanism",
    "NoiseOrNone",
    "NonNegative",
    "Number",
    "RoundResult",
    "Positive",
    "PositiveOrNone",
    "RecordSettings",
    "Release",
    "ReleaseSpec",
    "Round",
    "Settings",
    "Setup",
    "State",
    "Streams",
    "Tensor",
    "algorithm",
    "bounded_local_update",
    "clip",
    "clip_symmetric",
    "first_round",
    "gradient_release",
    "kept_share_gaps",
    "local_steps_gaps",
    "local_update",
    "noisy_steps",
    "np",
    "own_norms",
    "own_values",
    "per_run",
    "projected",
    "scaled",
    "squared_norms",
    "start",
    "torch",
    "update_diagnostics",
    "vector_norms",
    "zeros_of",
]
