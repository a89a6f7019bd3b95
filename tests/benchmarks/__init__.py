"""Benchmarks; dpfl comes first, for it settles how torch's threads wait."""

import dpfl_cli  # noqa: F401
