"""Hypothesis without time limits: on a busy machine a slow example is no failure. No run outlives the test that started it."""

import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("turngrad", deadline=None)
settings.load_profile("turngrad")


@pytest.fixture(autouse=True)
def _no_run_outlives_its_test() -> Iterator[None]:
    yield
    # Only where a test has started one.
    if (processes := sys.modules.get("tests.processes")) is not None:
        processes.end_all()
