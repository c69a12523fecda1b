"""The probe: what fits a device, what is fast on it, and with a study what to run."""
