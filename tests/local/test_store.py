"""A checkpoint is whole or not there, and is never used torn."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest
import torch

from turngrad.local import store as store_module
from turngrad.local.store import MissingCheckpoint, Store, StoreError

RUN = "run-" + "0" * 32
TENSORS = {"weights": {"a": torch.arange(6.0).view(2, 3)}, "optimizer": {"a.first": torch.ones(2, 3, dtype=torch.float64)}}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path, keep_snapshots=3)


def test_what_is_saved_comes_back_bit_for_bit(store: Store) -> None:
    store.save(RUN, "states", "s1", {"steps": 7}, TENSORS)
    checkpoint = store.load(RUN, "states", "s1")
    assert checkpoint.meta == {"steps": 7}
    assert torch.equal(checkpoint.tensors["weights"]["a"], TENSORS["weights"]["a"])
    assert checkpoint.tensors["optimizer"]["a.first"].dtype == torch.float64


def test_saving_again_under_a_name_replaces_it(store: Store) -> None:
    store.save(RUN, "states", "s1", {"steps": 1}, TENSORS)
    store.save(RUN, "states", "s1", {"steps": 2}, TENSORS)
    assert store.load(RUN, "states", "s1").meta == {"steps": 2}
    assert store.names(RUN, "states") == ["s1"]


def test_names_are_oldest_first_and_runs_are_listed(store: Store) -> None:
    for index, name in enumerate(("b", "a", "c")):
        store.save(RUN, "states", name, {}, TENSORS)
        os.utime(store._root / RUN / "states" / name, (index, index))
    assert store.names(RUN, "states") == ["b", "a", "c"]
    assert store.runs() == [RUN]


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:-1] + bytes([data[-1] ^ 1]), lambda data: b""])
def test_a_torn_or_altered_file_is_named_and_not_used(store: Store, damage: object) -> None:
    store.save(RUN, "states", "s1", {}, TENSORS)
    path = store._root / RUN / "states" / "s1" / "optimizer.safetensors"
    path.write_bytes(damage(path.read_bytes()))  # pyright: ignore[reportCallIssue]
    with pytest.raises(StoreError, match=r"optimizer\.safetensors is torn or altered"):
        store.load(RUN, "states", "s1")


def test_a_missing_checkpoint_says_what_there_is(store: Store) -> None:
    store.save(RUN, "states", "s1", {}, TENSORS)
    with pytest.raises(MissingCheckpoint, match="s1"):
        store.load(RUN, "states", "s2")
    with pytest.raises(MissingCheckpoint, match="none"):
        store.meta(RUN, "snapshots", "s1")


def test_a_full_disk_names_the_file_and_leaves_the_old_checkpoint(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(RUN, "states", "s1", {"steps": 1}, TENSORS)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store_module, "save_file", full)
    with pytest.raises(StoreError, match=r"s1/weights\.safetensors: No space left on device"):
        store.save(RUN, "states", "s1", {"steps": 2}, TENSORS)
    assert store.load(RUN, "states", "s1").meta == {"steps": 1}
    assert [p.name for p in (store._root / RUN / "states").iterdir()] == ["s1"]


def test_what_an_interrupted_write_left_is_removed_at_the_next_start(store: Store) -> None:
    left = store._root / RUN / "states" / ".writing-xyz"
    left.mkdir(parents=True)
    (left / "weights.safetensors").write_bytes(b"half")
    Store(store._root, keep_snapshots=3)
    assert not left.exists()


def test_only_the_newest_snapshots_stay_and_every_state_does(store: Store) -> None:
    for index in range(5):
        for kind in ("snapshots", "states"):
            store.save(RUN, kind, f"n{index}", {}, TENSORS)  # pyright: ignore[reportArgumentType]
            os.utime(store._root / RUN / kind / f"n{index}", (index, index))
    store.save(RUN, "snapshots", "n5", {}, TENSORS)
    assert store.names(RUN, "snapshots") == ["n3", "n4", "n5"]
    assert len(store.names(RUN, "states")) == 5


def test_each_series_of_snapshots_keeps_its_newest_whatever_the_others_do(store: Store) -> None:
    names = ("policy-eval-0002-ab", "policy-0003-1f", "policy-0004-2c", "policy-0005-9a", "policy-0006-77", "final-00")
    for index, name in enumerate(names):
        store.save(RUN, "snapshots", name, {}, TENSORS)
        os.utime(store._root / RUN / "snapshots" / name, (index, index))
    assert store.names(RUN, "snapshots") == ["policy-eval-0002-ab", *names[2:]]


def test_a_deleted_checkpoint_is_gone_and_deleting_it_again_is_no_error(store: Store) -> None:
    for name in ("s1", "s2"):
        store.save(RUN, "states", name, {"name": name}, TENSORS)
    for _ in range(2):
        store.delete(RUN, "states", "s1")
        assert [path.name for path in (store._root / RUN / "states").iterdir()] == ["s2"]
    with pytest.raises(MissingCheckpoint):
        store.load(RUN, "states", "s1")
    assert store.load(RUN, "states", "s2").meta == {"name": "s2"}


def test_what_an_interrupted_deletion_left_is_removed_at_the_next_start(store: Store) -> None:
    left = store._root / RUN / "states" / ".deleting-s1"
    left.mkdir(parents=True)
    Store(store._root, keep_snapshots=3)
    assert not left.exists()


def test_a_clock_that_goes_back_does_not_make_the_newest_snapshot_the_oldest(tmp_path: Path) -> None:
    store = Store(tmp_path, keep_snapshots=2)
    for number in range(2):
        store.save(RUN, "snapshots", f"policy-{number}", {}, TENSORS)
        ahead = time.time_ns() + 3600 * 10**9 + number
        os.utime(tmp_path / RUN / "snapshots" / f"policy-{number}", ns=(ahead, ahead))
    for number in (2, 3):
        store.save(RUN, "snapshots", f"policy-{number}", {}, TENSORS)
    assert store.names(RUN, "snapshots") == ["policy-2", "policy-3"]
