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
