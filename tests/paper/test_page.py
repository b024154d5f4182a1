import pytest

from complementary.errors import UserError
from complementary.paper.page import check_page, write_page
from complementary.paper.store import Results, read
from complementary.paper.studies import STUDIES
from tests.paper.conftest import entry_of


def test_the_page_of_an_empty_store_claims_nothing():
    text = write_page(Results())
    assert "0 runs.\n" in text
    assert "Nothing was run yet." in text
    assert "Not run yet: `cll paper as-coded`." in text
    assert "| main | Table_combined | 120 | 0 of 160 |  |  | 0 of 160 |  |  |" in text
    assert "**holds**" not in text
    assert "**fails**" not in text
    assert text.count("**not run yet**") == 2 * 18
    assert "main (160 of 160 settings)" in text


def test_the_page_of_a_partial_store(fake, store):
    near = entry_of("as-coded", "icm swapped, λ per batch, Adam re-created", data="cifar10")
    far = entry_of("as-coded", "icm matched, λ per pair, Adam kept", data="cifar10")
    for seed in (0, 1):
        fake(near, 0.3601 + seed / 100, "paper", seed)
        fake(far, 0.29, "paper", seed)
    text = write_page(read([store]), [store])
    assert "4 runs on a card, 0.1 hours of training." in text
    assert (
        "Protocol paper, cifar10, ρ = 100, uniform labels, s-nl, icm, resnet18, 300 epochs: within 1 point of 36.21: "
        "**icm swapped, λ per batch, Adam re-created**. Nearest: icm swapped, λ per batch, Adam re-created (+0.30), of "
        "2 that were run."
    ) in text
    assert "| as-coded | not in the paper | 28 | 0 of 28 |  |  | 2 of 28 | 0 to 2 | 300 |" in text
    assert "### as-coded, protocol paper" in text
    assert "### main, protocol paper" in text  # which has the same run
    assert "### main, protocol ours" not in text
    assert "| mnist |" not in text[text.index("### main, protocol paper") : text.index("## Left to run")]
    assert "main (159 of 160 settings)" in text
    assert "simsiam, pretrained for 800 epochs with seed 0 (4 runs)" in text


def test_the_page_parts_sharing_labels_from_mixing_images(fake, store):
    for method, accuracy in (
        ("none, Adam re-created", 0.30),
        ("labels shared only, swapped", 0.34),
        ("icm swapped, λ per batch, Adam re-created", 0.37),
    ):
        fake(entry_of("as-coded", method, data="cifar10"), accuracy, "paper")
    text = write_page(read([store]), [store])
    said = "with swapped weights: labels shared, images left alone +4.00 points; images mixed as well +7.00."
    assert f" Over no mixing, {said}" in text
    assert "with matched weights: labels shared" not in text


def test_losses_that_are_one_stand_side_by_side(fake, store):
    for loss, accuracy in (("s-nl", 0.9), ("fwd", 0.905)):
        fake(entry_of("main", "none", data="mnist", tail=1.0, loss=loss), accuracy, epochs=100)
    text = write_page(read([store]), [store])
    assert "| kmnist | 1 | 88.92 ± 0.14 | 80.41 ± 0.36 | -8.51 |" in text
    assert "| mnist | 1 | 97.78 ± 0.21 | 97.49 ± 0.08 | -0.29 | 0.13 | +0.50 | 100 |" in text


def test_the_page_says_where_clusters_came_from(fake, store):
    assert "Clusters:" not in write_page(Results())
    fake(STUDIES["intra"].entries[0], 0.3)
    assert "Clusters:" not in write_page(read([store]))


def test_noise_that_was_counted_without_training_is_on_the_page(fake, counted, store):
    entry = entry_of("noise", "icm", data="mnist", tail=100.0)
    counted(entry, 0.0169), counted(entry, 0.0171, seed=1)
    text = write_page(read([store]), [store])
    assert "0 runs. 2 noise ratios, counted without training.\n" in text
    assert "| noise | Fig. 3a | 6 | 1 of 32 | 0 to 2 |  | 0 of 32 |  |  |" in text
    assert "Clusters: simsiam, pretrained for 800 epochs with seed 0 (2 noise ratios)." in text
    assert "### noise, protocol ours" in text
    assert "| mnist | icm | 1.70 ± 0.01 (2) | 0.95 | +0.75 |" in text
    assert "**fails** 1.70 (n = 2) | **not run yet** |" in text
    assert ", noise (31 of 32 settings), " in text
    fake(entry, 0.8)
    assert "(1 run, 2 noise ratios)" in write_page(read([store]), [store])


def test_what_is_constant_and_short_runs_are_said_above_the_tables(fake, store):
    fake(entry_of("encoders", "simsiam"), 0.6, epochs=100)
    text = write_page(read([store]), [store])
    assert (
        "Encoders (tab:encoder_ablation), protocol ours (cifar10, ρ = 1, uniform labels, s-nl, icm, resnet18, 100 "
        "epochs where the paper has 300): mean"
    ) in text
    assert "| data | method | last | selected | noise | published noise | published | last - published |" in text
    assert "| cifar10 | mocov3 |  |  |  | 15.43 | 60.45 |  |" in text


def test_pictures_are_linked_under_their_tables():
    text = write_page(Results(), links={("gradients", "paper"): "paper/gradients-paper.png"}, options=" --plots x")
    assert "### gradients, protocol paper\n\n![Gradient MSE, bias² and variance, protocol paper](paper/grad" in text
    assert "made\nfrom the stored results by `cll paper page --plots x`." in text
    assert "![" not in write_page(Results())


def test_a_page_that_is_not_what_the_store_gives_is_noticed(tmp_path):
    path, text = tmp_path / "page.md", write_page(Results())
    with pytest.raises(
        UserError, match=r"page.md is not what the store gives; make it anew with 'cll paper page --out"
    ):
        check_page(text, path)
    path.write_text(text)
    check_page(text, path)
    with pytest.raises(UserError, match=r"page\.md --plots x'\.$"):
        check_page(text + "more", path, " --plots x")
