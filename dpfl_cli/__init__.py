"""dpfl: a command-line laboratory for differentially private federated learning."""

import os

# A round alternates between torch's OpenMP threads and dpfl's own (noise, kernels). GNU OpenMP's
# threads spin for milliseconds after each parallel region and take the cores from the others; so
# many turns are some ten microseconds. torch reads it once.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

__version__ = "0.1.0"
