"""A loss with what it needs: checks, decoding, functions from outside the package."""

import pytest
import torch

from complementary import losses, transitions
from complementary.errors import UserError
from complementary.losses import LOSSES, Method, build
from complementary.losses.registry import LOSS_METHODS
from tests.losses.references import FIXED, FIXED_LABELS, MATRIX

BIASED, PRIOR = transitions.biased(4, 10), torch.tensor([0.4, 0.3, 0.2, 0.1])


@pytest.mark.parametrize("name", LOSSES)
def test_bound_loss_equals_the_function(name):
    bound = build(name, BIASED, PRIOR)
    torch.testing.assert_close(bound(FIXED, FIXED_LABELS), LOSSES[name](FIXED, FIXED_LABELS, BIASED, PRIOR))
    assert bool(list(bound.parameters())) == (LOSS_METHODS[name].matrix == "learned")
    assert bound.state_dict().keys() <= {"learned"}  # checkpoints hold nothing that the configuration determines


@pytest.mark.parametrize("name", ["ure", "ure-nn", "ure-ga", "ure-t", "ure-tnn", "ure-tga", "s-nl-w"])
def test_bound_loss_passes_the_shares_of_labels_on(name):
    share = torch.tensor([0.1, 0.2, 0.3, 0.4])
    found = build(name, BIASED, share=share)(FIXED, FIXED_LABELS)
    torch.testing.assert_close(found, LOSSES[name](FIXED, FIXED_LABELS, BIASED, share=share))
    assert not torch.allclose(found, LOSSES[name](FIXED, FIXED_LABELS, BIASED))


@pytest.mark.parametrize("name", [n for n, m in LOSS_METHODS.items() if m.matrix != "not used"])
def test_build_requires_the_matrix(name):
    with pytest.raises(UserError, match=name) as error:
        build(name, None, PRIOR)
    assert error.value.option == "transition"


@pytest.mark.parametrize("name", [n for n, m in LOSS_METHODS.items() if m.prior])
def test_build_requires_the_prior(name):
    with pytest.raises(UserError, match=name) as error:
        build(name, BIASED)
    assert error.value.option == "prior"


def test_build_refuses_a_singular_matrix():
    with pytest.raises(UserError, match=r"ure-tnn.*rank 1 of 4"):
        build("ure-tnn", transitions.noisy(4, 0.25))


@pytest.mark.parametrize("matrix", [torch.ones(4, 4), torch.full((4, 4), torch.nan), torch.ones(3, 4) / 4], ids=str)
def test_build_refuses_what_is_not_a_transition_matrix(matrix):
    with pytest.raises(UserError, match="transition matrix"):
        build("fwd", matrix)


@pytest.mark.parametrize("prior", [torch.ones(4), BIASED, torch.tensor([1.5, -0.5])], ids=str)
def test_build_refuses_what_is_not_a_prior(prior):
    with pytest.raises(UserError, match="scarce") as error:
        build("scarce", None, prior)
    assert error.value.option == "prior"


def test_build_takes_arrays():
    found = build("fwd", BIASED.numpy())(FIXED, FIXED_LABELS)
    assert torch.equal(found, build("fwd", BIASED)(FIXED, FIXED_LABELS))


@pytest.mark.parametrize(
    "name", [n for n, m in LOSS_METHODS.items() if m.prior or m.matrix not in ("not used", "for decoding")]
)
def test_logits_of_another_width_than_the_matrix_are_named(name):
    with pytest.raises(UserError, match=r"\[4.*5 columns"):
        build(name, BIASED, PRIOR)(torch.zeros(3, 5), torch.eye(5)[:3])
    if LOSS_METHODS[name].decoding == "nearest row":
        with pytest.raises(UserError, match=r"\[4.*5 columns"):
            build(name, BIASED).decode(torch.zeros(3, 5))


def test_build_refuses_an_unknown_name():
    with pytest.raises(UserError, match="s-nll") as error:
        build("s-nll")
    assert error.value.option == "loss"


def two(logits, excluded):
    return (excluded * logits).sum(1)


def three(logits, excluded, transition):
    return two(logits, excluded) + transition.trace()


@pytest.mark.parametrize("function", [two, three, "tests.losses.test_bound:two"])
def test_build_takes_a_function_of_two_or_three_arguments(function):
    found = build(function, MATRIX)(torch.ones(3, 5), torch.eye(5)[:3])
    assert found.tolist() == [1, 1, 1]


def test_build_refuses_a_function_without_labels():
    with pytest.raises(UserError, match="1 argument"):
        build(lambda logits: logits)


def needy(logits, excluded, transition, prior):
    return (excluded * prior * logits).sum(1)


needy.method = Method("needy", "Needy", "test", prior=True)


def test_build_reads_what_a_function_declares():
    with pytest.raises(UserError, match="needy") as error:
        build("tests.losses.test_bound:needy", BIASED)
    assert error.value.option == "prior"
    assert build(needy, BIASED, PRIOR).method is needy.method


def test_build_knows_the_losses_of_the_package_by_their_function():
    assert build(losses.ure_tga, BIASED).method.name == "ure-tga"
    assert build(losses.ure_tga, BIASED).inverse is not None


def test_decoding_leaves_logits_of_classes_as_they_are():
    assert build("s-nl").decode(FIXED) is FIXED
    assert build("s-nl").decoder() is None
    assert build("fwd", BIASED).label_matrix(MATRIX) is MATRIX


def test_label_matrix_of_cpe_i_is_the_identity():
    assert torch.equal(build("cpe-i", BIASED).label_matrix(BIASED), torch.eye(4))


@pytest.mark.slow
def test_bound_losses_compile_to_one_graph():
    """As in training on a GPU: no part of a loss falls back to Python or waits for the device."""
    compiled = torch.compile(losses.apply, backend="aot_eager", fullgraph=True, dynamic=False)
    for name in ("ure-tga", "cpe-t", "scarce", "mcl-log", "op-w"):
        bound = build(name, BIASED, PRIOR, torch.tensor([0.1, 0.2, 0.3, 0.4]))
        logits = [FIXED.clone().requires_grad_() for _ in range(2)]
        for run, leaf in zip((compiled, losses.apply), logits, strict=True):
            run(bound, leaf, FIXED_LABELS.float()).sum().backward()
        torch.testing.assert_close(logits[0].grad, logits[1].grad, rtol=1e-5, atol=1e-6, msg=name)
