"""Nothing assumes that tensors lie on the CPU; what other devices run gives the CPU's numbers.

No test here runs on a GPU. The meta device refuses what mixes devices, which is the usual mistake, and computes nothing.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.local.tiny import VOCAB, config
from turngrad.local import kvcache
from turngrad.local.attention import BatchAttention
from turngrad.local.decoder import Decoder, RotaryTable, Spec
from turngrad.local.frozen import FrozenDecoder
from turngrad.local.kvcache import CacheAttention, KVCache
from turngrad.local.losses import LossTokens, loss_sum
from turngrad.local.packing import MicroBatch, pack
from turngrad.local.sampling import draw, widest

META = torch.device("meta")


def micro_batch() -> MicroBatch:
    rng = np.random.default_rng(0)
    head = rng.integers(2, VOCAB, 40)
    rows = [np.concatenate([head, rng.integers(2, VOCAB, n)]) for n in (9, 20, 14)]
    active = [np.arange(len(row)) >= 40 for row in rows]
    [micro] = pack(rows, active, 10**6, 10**6)
    assert micro.prefix
    return micro


@pytest.fixture
def positions_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def at(self: RotaryTable, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._cos[positions].unsqueeze(1), self._sin[positions].unsqueeze(1)

    monkeypatch.setattr(RotaryTable, "at", at)


@pytest.mark.usefixtures("positions_are_not_read")
def test_a_training_pass_stays_on_its_device() -> None:
    decoder = Decoder(Spec.from_config(config())).to(META)
    micro = micro_batch()
    tokens, positions, keep = (torch.from_numpy(x).to(META) for x in (micro.tokens, micro.positions, micro.keep))
    logits = decoder(tokens, positions, BatchAttention(micro, META), keep)
    assert logits.shape == (len(micro.keep), VOCAB)
    logits.sum().backward()
    assert {p.grad.device for p in decoder.parameters() if p.grad is not None} == {META}


@pytest.mark.usefixtures("positions_are_not_read")
def test_a_sampling_pass_stays_on_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = Spec.from_config(config())
    frozen = FrozenDecoder(spec, {name: p.data for name, p in Decoder(spec).to(META).named_parameters()})
    cache = KVCache(spec, META, torch.float32, 64 << 20)
    cache.slots[0].tokens = list(range(2, 130))
    cache.adopt(cache.slots[1], cache.slots[0], 128)
    cache.slots[2].tokens = [5, 6, 7]
    assert cache.slots[1].shared is not None

    def runs(decoding: list[kvcache.Slot], device: torch.device, dtype: torch.dtype) -> list[object]:
        return [(slice(0, 3), slice(0, 3), 4, torch.zeros(3, 1, 1, 4, device=device, dtype=dtype))]

    monkeypatch.setattr(CacheAttention, "_decode_runs", staticmethod(runs))
    attention = CacheAttention(cache, cache.slots[:3], [(cache.slots[3], 6)])
    tokens, positions, keep = (torch.zeros(n, dtype=torch.int64, device=META) for n in (9, 9, 4))
    assert frozen(tokens, positions, attention, keep).shape == (4, VOCAB)


def test_attention_of_other_devices_gives_the_cpus_numbers() -> None:
    micro = micro_batch()
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(len(micro.tokens), heads, 8, generator=generator, dtype=torch.float64) for heads in (4, 2, 2))
    own = BatchAttention(micro, torch.device("cpu"))
    other = BatchAttention(micro, torch.device("cpu"))
    other._mask = torch.ones(micro.width, micro.prefix + micro.width, dtype=torch.bool).tril(micro.prefix)
    real = torch.cat([torch.arange(micro.prefix), torch.from_numpy(micro.keep)])
    torch.testing.assert_close(other._masked(q, k, v)[real], own(0, q, k, v)[real])


@pytest.mark.parametrize(("n", "m", "causal"), [(1, 30, False), (7, 7, True), (5, 30, False)])
def test_cached_attention_of_other_devices_gives_the_cpus_numbers(n: int, m: int, causal: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, length, 8, generator=generator) for length in (n, m, m))
    mask = torch.zeros(2, 1, 1, m)
    mask[1, :, :, m - 4 :] = float("-inf")
    given = None if causal else mask
    for own, other in zip(
        kvcache._flash(q, k, v, causal=causal, mask=given), kvcache._plain(q, k, v, causal=causal, mask=given), strict=True
    ):
        torch.testing.assert_close(own, other)


def test_a_loss_stays_on_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    # Metrics are numbers, which meta tensors do not have.
    monkeypatch.setattr(torch.Tensor, "__float__", lambda self: 0.0)
    tokens = LossTokens(
        *(torch.zeros(3, device=META) for _ in range(2)),
        torch.zeros(3, dtype=torch.int64, device=META),
        *(torch.ones(3, device=META),) * 2,
    )
    for name in ("cross_entropy", "importance_sampling", "ppo", "cispo", "dro"):
        assert loss_sum(name, torch.zeros(3, device=META, requires_grad=True), tokens)[0].device == META


def test_where_there_is_no_fp64_a_draw_is_the_same_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    assert widest(torch.device("mps")) == torch.float32
    generator = torch.Generator().manual_seed(0)
    logits, uniform = torch.randn(64, 1000, generator=generator), torch.rand(64, generator=generator)
    arguments = (logits, torch.ones(64), [0] * 64, [1.0] * 64)
    wide = draw(*arguments, uniform.double())
    monkeypatch.setattr("turngrad.local.sampling.widest", lambda device: torch.float32)
    narrow = draw(*arguments, uniform)
    assert torch.equal(wide[0], narrow[0])
