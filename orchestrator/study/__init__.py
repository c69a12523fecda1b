"""A critical-batch study: what it plans, how its runs are trained and judged, and what it tells."""
