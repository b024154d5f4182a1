from pathlib import Path

import pytest

from complementary.errors import UserError
from complementary.paper.claims import CHECKS, NOT_FOR_PLAIN
from complementary.paper.page import check_page, status, write_page
from complementary.paper.store import Results, read
from complementary.paper.studies import PROTOCOLS, STUDIES
from tests.paper.conftest import entry_of


def test_page_of_an_empty_store_claims_nothing():
    text = write_page(Results())
    assert "0 runs.\n" in text
    assert "**0 of the 554 published numbers** have a run here" in text
    assert "Nothing was run yet." in text
    assert "- main (Table 2): Balanced and long-tailed, uniform labels; 160 settings, 120 published numbers\n" in text
    assert "**holds" not in text
    assert "**fails" not in text
    assert "in our runs**" not in text
    assert text.count("| **not run**") == 3 * (len(CHECKS) - 1) - len(NOT_FOR_PLAIN)  # human labels cannot be checked


def test_page_lists_what_was_run(add_run, store):
    near = entry_of("as-coded", "icm swapped, λ per batch, Adam re-created", data="cifar10", group="")
    for seed in (0, 1):
        add_run(near, 0.3601 + seed / 100, "paper", seed, precision="bf16")
    text = write_page(read([store]))
    assert "2 runs on a GPU: 0.0 hours of training.\n" in text
    assert "- Precision: bf16 (2 runs);" in text
    assert "- Epochs: 300 (2 runs) (published: 300)." in text
    assert "- Seeds: seed 0 (1 run), seed 1 (1 run) (published: 3 runs each)." in text
    assert "- Labels held out for the selection of an epoch: 0 % (2 runs)." in text
    assert "- Epochs of the encoder behind ICM and MICM: 800 (2 runs) (published: 800)." in text
    assert "**1 of the 554 published numbers** have a run here, 0 of them with 3 seeds" in text
    assert "| as-coded | not in the paper | 1 of 36 |  | 1 of 36; 0 to 2 seeds; 300 epochs |  |" in text
    assert "- intra (Table 3)" in text  # not run
    assert "- simsiam, encoder of 800 epochs (2 runs)" in text
    assert "- main (Table 2): Balanced and long-tailed, uniform labels; settings run: paper 1 of 160\n" in text
    assert "(study main" not in text  # one method is no comparison


def test_page_says_how_far_each_protocol_is_from_the_published_numbers(add_run, store):
    for mix, points in (("none", 1.0), ("icm", -3.0)):
        entry = entry_of("main", mix, data="mnist", tail=100.0, loss="s-nl")
        add_run(entry, (entry.published.mean + points) / 100, "plain")
    other = entry_of("main", "none", data="mnist", tail=100.0, loss="fwd")
    add_run(other, (other.published.mean - 2.0) / 100, "plain")
    add_run(other, 0.9, epochs=100)  # too short to count
    text = write_page(read([store]))
    assert "each protocol has other settings): plain: none 1.5 (2), icm 3.0 (1).\n" in text
    assert "| protocol | setup | none | icm |\n" in text
    assert "| plain | mnist, ρ = 100 | 1.5 (-2.0 to +1.0, 2) | -3.0 (s-nl) |\n" in text
    add_run(other, (other.published.mean + 6.0) / 100, "ours")
    assert "under two protocols: 6.0 (ours) and 2.0 (plain) on 1.\n" in write_page(read([store]))
    for title in ("Distance from the published", "How near are all runs?"):
        assert title not in write_page(Results())


def test_page_shows_losses_that_are_the_same_side_by_side(add_run, store):
    for loss, accuracy in (("s-nl", 0.9), ("fwd", 0.905)):
        add_run(entry_of("main", "none", data="mnist", tail=1.0, loss=loss), accuracy, epochs=100)
    text = write_page(read([store]))
    assert "| kmnist | 1 | 88.92 ± 0.14 | 80.41 ± 0.36 | -8.51 |" in text
    assert "| mnist | 1 | 97.78 ± 0.21 | 97.49 ± 0.08 | -0.29 | 0.13 | +0.50 | 100 |" in text


def test_page_names_the_origin_of_clusters(add_run, add_noise, store):
    assert "Clusters:" not in write_page(Results())
    add_run(STUDIES["intra"].entries[0], 0.3)
    assert "Clusters:" not in write_page(read([store]))
    entry = entry_of("noise", "icm", data="mnist", tail=100.0)
    add_run(entry, 0.8), add_noise(entry, 0.017)
    assert "- simsiam, encoder of 800 epochs (1 run, 1 noise ratio)" in write_page(read([store]))


def test_page_shows_noise_ratios_counted_without_training(add_noise, store):
    entry, mixup = (entry_of("noise", mix, data="mnist", tail=100.0) for mix in ("icm", "mixup"))
    add_noise(entry, 0.0169), add_noise(entry, 0.0171, seed=1), add_noise(mixup, 0.16)
    text = write_page(read([store]))
    assert "0 runs; 3 noise ratios counted without training.\n" in text
    assert "| noise | Fig. 3a | 2 of 6 | 2 of 32; 0 to 2 seeds | 0 of 32 |  |" in text
    assert "### Fig. 3a: Noise ratio per dataset (study noise, protocol ours)" in text
    assert "| mnist | icm | 1.70 ± 0.01 (2) | 0.95 | +0.75 |" in text
    assert "**fails so far** 1.70 (2 seeds) | **not run** |" in text


def test_page_has_figures_under_their_tables(add_run, store):
    add_run(STUDIES["intra"].entries[0], 0.3), add_run(STUDIES["intra"].entries[1], 0.4)
    text = write_page(read([store]), {("intra", "ours"): "paper/intra-ours.png"})
    assert "| s-nl | extra-class | 30.00 (1) / 37.17 |\n| s-nl | intra-class | 40.00 (1) / 48.59 |\n" in text
    assert "|\n\n![Intra-class against extra-class mixing (oracles), protocol ours](paper/intra-ours.png)\n" in text
    assert "![" not in write_page(read([store]))


def test_check_page_notices_another_page(tmp_path):
    path, text = tmp_path / "page.md", write_page(Results())
    with pytest.raises(UserError, match=r"page\.md"):
        check_page(text, path)
    path.write_text(text)
    check_page(text, path)
    with pytest.raises(UserError, match=r"page\.md"):
        check_page(text + "more", path)


def test_status_has_a_line_per_study_and_protocol(add_run, store):
    add_run(STUDIES["intra"].entries[0], 0.3)
    lines = status(read([store]), [store]).splitlines()
    assert lines[0].startswith(f"1 run and 0 noise ratios in {store}")
    assert len(lines) == 4 + 3 * len(STUDIES)
    (line,) = [line.split() for line in lines if line.startswith("intra") and "ours" in line]
    assert " ".join(line) == "intra ours 1 of 2 1 of 6 0 to 1 1.0"


def test_docs_match_the_stored_results():
    """The page in the repository is what `cll paper page` generates."""
    from complementary.paper import figures

    root = Path(__file__).parent.parent.parent
    found = read([root / "results" / "paper"])
    page = root / "docs" / "reproduction.md"
    drawn = dict.fromkeys(
        (study, protocol)
        for study in STUDIES
        for protocol in PROTOCOLS
        if (root / "docs" / "paper" / figures.file_name(study, protocol)).exists()
    )
    exact = read([path for path in [root / "results" / "paper-fp32"] if path.exists()]).rows
    check_page(write_page(found, figures.links(drawn, root / "docs" / "paper", page), exact), page)
