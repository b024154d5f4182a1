"""Random numbers: the same address gives the same draws; Beta and Dirichlet follow their distributions."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from complementary.rng import address, dirichlet, generator, seeded

CPU = torch.device("cpu")


def test_address_is_stable():
    # blake2b of "0/step/3/7": a change would silently change every published run
    assert address(0, "step", 3, 7) == 3_536_006_110_930_329_561
    assert address(1126, "labels") == 160_116_831_555_493_334


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.integers(-(2**70), 2**70), st.text(max_size=20), st.lists(st.integers(0, 10**9), max_size=4))
def test_generator_starts_at_its_address(seed, purpose, counters):
    place = address(seed, purpose, *counters)
    assert 0 <= place < 2**63
    assert generator(seed, purpose, *counters).initial_seed() == place


def test_address_differs_between_neighbors():
    places = [
        address(seed, purpose, epoch, step)
        for seed in range(5)
        for purpose in ("step", "init", "1")
        for epoch in range(20)
        for step in range(20)
    ]
    places += [address(0, "step"), address(0, "step", 1), address(0, "step", 11), address(0, "step", 1, 1, 0)]
    assert len(set(places)) == len(places)


def test_generator_is_new_each_time_and_leaves_the_global_one_alone():
    before = torch.random.get_rng_state()
    first = torch.rand(5, generator=generator(3, "x", 1))
    again = torch.rand(5, generator=generator(3, "x", 1))
    other = torch.rand(5, generator=generator(3, "x", 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    dirichlet(0.4, (10, 2), CPU, generator(0, "b"))[:, 0]
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("alpha", [0.4, 1.0, 3.0, 50.0])
def test_dirichlet_of_two_follows_scipys_beta(alpha):
    lam = dirichlet(alpha, (20_000, 2), CPU, generator(0, "beta"))[:, 0].double().numpy()
    assert stats.kstest(lam, stats.beta(alpha, alpha).cdf).pvalue > 0.01


@pytest.mark.parametrize("alpha", [0.1, 0.2])
def test_dirichlet_of_two_follows_scipys_beta_for_small_alpha(alpha):
    # float32 cannot represent 1 - 1e-9, so only the lower half is compared
    lam = dirichlet(alpha, (40_000, 2), CPU, generator(1, "beta"))[:, 0].double().numpy()
    low = lam[lam < 0.5]
    assert abs(len(low) / len(lam) - 0.5) < 0.01
    assert stats.kstest(low, lambda x: 2 * stats.beta(alpha, alpha).cdf(x)).pvalue > 0.01
    assert np.mean(lam < 1e-9) == pytest.approx(stats.beta(alpha, alpha).cdf(1e-9), abs=0.01)


@pytest.mark.parametrize("members", [2, 3, 5])
@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_dirichlet_has_scipys_marginals_and_covariance(members, alpha):
    draws = dirichlet(alpha, (20_000, members), CPU, generator(2, "d")).double().numpy()
    np.testing.assert_allclose(draws.sum(1), 1, atol=1e-6)
    marginal = stats.beta(alpha, alpha * (members - 1)).cdf
    assert min(stats.kstest(draws[:, k], marginal).pvalue for k in range(members)) > 0.005
    wanted = stats.dirichlet([alpha] * members).cov()
    np.testing.assert_allclose(np.cov(draws.T), wanted, atol=0.004)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.floats(1e-3, 1e4), st.integers(1, 50), st.integers(2, 4), st.integers(0, 1000))
def test_dirichlet_is_finite_and_sums_to_one_for_any_alpha(alpha, rows, members, seed):
    weight = dirichlet(alpha, (rows, members), CPU, generator(seed, "w"))
    assert weight.shape == (rows, members)
    assert weight.dtype == torch.float32
    assert bool(torch.isfinite(weight).all() and (weight >= 0).all())
    torch.testing.assert_close(weight.sum(1), torch.ones(rows))


def test_dirichlet_without_a_generator_uses_the_global_one():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        first = dirichlet(1.0, (4, 2), CPU, None)[:, 0]
        torch.manual_seed(5)
        assert torch.equal(first, dirichlet(1.0, (4, 2), CPU, None)[:, 0])


def test_seeded_restores_the_global_generator():
    before = torch.random.get_rng_state()
    with seeded(3):
        first = torch.rand(4)
        with seeded(4):  # nested
            torch.rand(1)
        second = torch.rand(4)
    assert torch.equal(before, torch.random.get_rng_state())
    with seeded(3):
        assert torch.equal(torch.rand(8), torch.cat([first, second]))


def test_seeded_lets_one_thread_in_at_a_time():
    found, inside = [], threading.Event()

    def draw():
        inside.set()
        with seeded(5):
            found.append(torch.rand(3))

    with seeded(3):
        thread = threading.Thread(target=draw)
        thread.start()
        inside.wait()
        first = torch.rand(3)
        assert not found
    thread.join()
    with seeded(3):
        assert torch.equal(first, torch.rand(3))
