import pytest

from complementary.errors import UserError
from complementary.paper.page import check_page, write_page
from complementary.paper.results import Results, read
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
        "cifar10, protocol paper: within 1 point of 36.21: **icm swapped, λ per batch, Adam re-created**. Nearest: icm "
        "swapped, λ per batch, Adam re-created (+0.30), of 2 that were run."
    ) in text
    assert "| as-coded | not in the paper | 28 | 0 of 28 |  |  | 2 of 28 | 0 to 2 | 300 |" in text
    assert "### as-coded, protocol paper" in text
    assert "### main, protocol paper" in text  # which has the same run
    assert "### main, protocol ours" not in text
    assert "| mnist |" not in text[text.index("### main, protocol paper") : text.index("## Left to run")]
    assert "main (159 of 160 settings)" in text
    assert "simsiam, pretrained for 800 epochs with the run's seed (4 runs)" in text


def test_the_page_says_where_clusters_came_from(fake, store):
    assert "Clusters:" not in write_page(Results())
    fake(STUDIES["intra"].entries[0], 0.3)
    assert "Clusters:" not in write_page(read([store]))


def test_a_page_that_is_not_what_the_store_gives_is_noticed(tmp_path):
    path, text = tmp_path / "page.md", write_page(Results())
    with pytest.raises(
        UserError, match=r"page.md is not what the store gives; make it anew with 'cll paper page --out"
    ):
        check_page(text, path)
    path.write_text(text)
    check_page(text, path)
