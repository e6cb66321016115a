"""Hypothesis settings of the property tests."""

from __future__ import annotations

from hypothesis import settings

# How long one example takes says nothing on a busy machine; pytest's own timeout catches what hangs.
settings.register_profile("headway", deadline=None)
settings.load_profile("headway")
