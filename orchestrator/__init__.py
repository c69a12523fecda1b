"""A distributed experiment orchestrator for batch size: Ray Train, Ray Tune with Optuna, MLflow, PyArrow."""

__version__ = "0.1.0"
