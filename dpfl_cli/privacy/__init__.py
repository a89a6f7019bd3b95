"""Privacy: clipping, mechanisms (the one door), the ledger, accountants, calibration."""
