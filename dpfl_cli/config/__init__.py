"""Config: typed settings, component registry, validation, run identity, user-facing errors."""
