"""Data: sources, datasets, partitioners, the federation and the named random streams."""
