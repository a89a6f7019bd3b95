"""dpfl: a command-line laboratory for differentially private federated learning."""

__version__ = "0.1.0"
