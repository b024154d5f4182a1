"""Partners: always of the same group, uniform, never oneself where that is promised."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from complementary import mixing
from complementary.rng import generator

IDS = st.lists(st.integers(-5, 5), min_size=1, max_size=40).map(torch.tensor)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(IDS)
def test_groups_lay_members_side_by_side(ids):
    order, start, size, rank = mixing.group(ids)
    assert sorted(order.tolist()) == list(range(len(ids)))
    for i, own in enumerate(ids.tolist()):
        members = [j for j, other in enumerate(ids.tolist()) if other == own]
        assert order[start[i] : start[i] + size[i]].tolist() == members
        assert int(order[start[i] + rank[i]]) == i


@settings(max_examples=60, deadline=None, derandomize=True)
@given(IDS, st.integers(1, 2), st.booleans(), st.integers(0, 99), st.data())
def test_partners_share_the_group_and_are_distinct_where_there_is_room(ids, count, distinct, seed, data):
    index = torch.tensor(data.draw(st.lists(st.integers(0, len(ids) - 1), min_size=1, max_size=20)))
    groups = mixing.group(ids)
    chosen = mixing.draw(groups, index, count, distinct, generator(seed, "p"))
    assert chosen.shape == (len(index), count)
    assert bool((ids[chosen] == ids[index][:, None]).all())
    for i, row in zip(index.tolist(), chosen.tolist(), strict=True):
        size = int((ids == ids[i]).sum())
        if size == 1:
            assert set(row) == {i}
        elif distinct:
            assert i not in row
            assert len(set(row)) == min(count, size - 1)  # in a group of two the partner comes twice
    assert torch.equal(chosen, mixing.draw(groups, index, count, distinct, generator(seed, "p")))


@pytest.mark.parametrize("size", [2, 3, 7])
@pytest.mark.parametrize("distinct", [True, False])
def test_one_partner_is_uniform_over_the_group(size, distinct):
    ids = torch.tensor([9] + [4] * size + [1])
    index = torch.full((7000,), 2)
    chosen = mixing.draw(mixing.group(ids), index, 1, distinct, generator(0, "u"))[:, 0]
    wanted = [i for i in range(1, size + 1) if not (distinct and i == 2)]
    counts = Counter(chosen.tolist())
    assert set(counts) == set(wanted)
    assert len(wanted) == 1 or stats.chisquare([counts[i] for i in wanted]).pvalue > 1e-3


@pytest.mark.parametrize("size", [3, 4, 6])
@pytest.mark.parametrize("distinct", [True, False])
def test_two_partners_are_uniform_over_ordered_pairs(size, distinct):
    index = torch.full((30_000,), 1)
    chosen = mixing.draw(mixing.group(torch.zeros(size)), index, 2, distinct, generator(1, "u"))
    pairs = Counter(map(tuple, chosen.tolist()))
    wanted = [(a, b) for a in range(size) for b in range(size) if not distinct or len({a, b, 1}) == 3]
    assert set(pairs) == set(wanted)
    assert stats.chisquare([pairs[w] for w in wanted]).pvalue > 1e-3


def test_at_fifty_clusters_and_a_batch_of_512_a_tenth_of_any_partners_are_oneself():
    wanted = 50 * (1 - (1 - 1 / 50) ** 512) / 512  # one in each non-empty cluster: the protocol's 9.8 %
    assert wanted == pytest.approx(0.098, abs=5e-4)
    own = torch.zeros(200)
    for turn in range(200):
        source = generator(turn, "self")
        groups = mixing.group(torch.randint(50, (512,), generator=source))
        mine = torch.arange(512)
        own[turn] = (mixing.draw(groups, mine, 1, False, source)[:, 0] == mine).float().mean()
    assert float(own.mean()) == pytest.approx(wanted, abs=0.003)


def test_a_random_number_of_almost_one_picks_the_last_and_not_the_one_after(monkeypatch):
    almost = 1 - 2**-24
    monkeypatch.setattr(torch, "rand", lambda *shape, device, generator: torch.full(shape, almost))
    ids = torch.zeros(1000, dtype=torch.long)
    index = torch.arange(1000)
    both = mixing.draw(mixing.group(ids), index, 2, True)
    assert torch.equal(both[:, 0], (index - 1) % 1000)
    assert torch.equal(both[:, 1], (index - 2) % 1000)
    assert torch.equal(mixing.draw(mixing.group(ids), index, 1, False)[:, 0], (index - 1) % 1000)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(1, 12), st.integers(0, 999))
def test_pick_where_finds_only_allowed_partners(size, seed):
    source = generator(seed, "w")
    allowed = torch.rand(size, size, generator=source) < 0.3
    chosen, found = mixing.pick_where(allowed, torch.rand(size, size, generator=source))
    assert torch.equal(found, allowed.any(1))
    rows = torch.arange(size)
    assert bool((allowed[rows, chosen] | ~found).all())
    assert bool(((chosen >= 0) & (chosen < size)).all())


def test_pick_where_is_uniform_over_the_allowed():
    row = torch.tensor([True, False, True, True, False])
    chosen, _ = mixing.pick_where(row.expand(9000, 5), torch.rand(9000, 5, generator=generator(4, "w")))
    counts = torch.bincount(chosen, minlength=5).tolist()
    assert counts[1] == counts[4] == 0
    assert stats.chisquare([counts[0], counts[2], counts[3]]).pvalue > 1e-3
