"""The environments' folders are not packages: hud loads their files by path, so the tests import them as hud does."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from turngrad.pool import ServerPool

ENVS = Path(__file__).parents[2] / "envs"
sys.path.append(str(ENVS / "bfcl"))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def bfcl_pool() -> AsyncIterator[ServerPool]:
    async with ServerPool(ENVS / "bfcl" / "env.py") as pool:
        await pool.warm()
        yield pool
