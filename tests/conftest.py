"""Hypothesis without time limits: on a busy machine a slow example is no failure."""

from hypothesis import settings

settings.register_profile("turngrad", deadline=None)
settings.load_profile("turngrad")
