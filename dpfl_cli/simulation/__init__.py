"""Simulation: plans, the engine, metrics, checkpoints, the run store and the launcher."""
