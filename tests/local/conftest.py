from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local.tiny import base_model, write_folder
from turngrad.local.basemodel import BaseModel


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> BaseModel:
    return base_model(tmp_path_factory.mktemp("base"))


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
