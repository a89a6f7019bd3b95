"""Privacy: clipping, mechanisms (the one way out), the ledger, accountants, calibration."""
