"""Strict types for the options of the built-in tasks: no "64" taken for 64, no true taken for 1."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Count = Annotated[int, Field(ge=1, strict=True)]
"""A whole number of at least 1."""

Dropout = Annotated[float, Field(ge=0.0, lt=1.0, strict=True)]
"""A share of activations set to zero in training."""

Share = Annotated[float, Field(gt=0.0, lt=1.0, strict=True)]
"""A share that is neither nothing nor all."""

Positive = Annotated[float, Field(gt=0.0, strict=True, allow_inf_nan=False)]
"""A finite number above 0."""

NotNegative = Annotated[float, Field(ge=0.0, strict=True, allow_inf_nan=False)]
"""A finite number of at least 0."""
