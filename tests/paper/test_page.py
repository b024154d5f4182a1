import itertools
import math
from pathlib import Path

import pytest
import torch

from complementary import losses, transitions
from complementary.errors import UserError
from complementary.paper import published
from complementary.paper.page import check_page, status, write_page
from complementary.paper.store import Results, RunSettings, read
from complementary.paper.studies import PROTOCOLS, STUDIES
from tests.paper.conftest import entry_of


def table_after(text, title):
    """The cells of the first table after a heading, without its header."""
    lines = text[text.index(title) :].splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("|"))
    found = itertools.takewhile(lambda line: line.startswith("|"), lines[first:])
    return [[cell.strip() for cell in line[1:-1].split(" | ")] for line in found]


def test_page_of_an_empty_store_claims_nothing():
    text = write_page(Results())
    assert "0 runs." in text
    assert "0 of the 554 published accuracies have a run here" in text
    assert "Nothing can be compared yet." in text
    assert (
        "| main | Table 2 | Balanced and long-tailed, uniform labels | 0 of 120 | 0 of 160 | 0 of 160 | 0 of 160 |"
        in text
    )
    for word in ("holds", "fails", "undecided because"):
        assert f"**{word}" not in text
    rows = table_after(text, "## Statements")[2:]
    assert {row[0] for row in rows} == set(published.claims())
    words = {row[3].partition(":")[0] for row in rows}
    assert words == {"not run", "a matter of theory", "cannot be checked"}


HOW = ("without augmentation", "with crop and flip (ours)")


def test_page_has_one_verdict_for_each_statement_in_four_columns(add_run, store):
    """The verdict is that of the protocol nearest to the published numbers without mixing; details have the others."""
    for protocol, far, icm in (("ours", 10, 0.9), ("plain", 1, 0.6)):
        for entry in STUDIES["main"].entries:
            if (entry.setting.data, entry.setting.tail) == ("mnist", 100.0) and entry.method != "micm":
                baseline = (entry.published.mean + far) / 100
                add_run(entry, {"none": baseline, "mixup": 0.5, "icm": icm}[entry.method], protocol)
    text = write_page(read([store]))
    header, _, *rows = table_after(text, "## Statements")
    assert len(header) == 4
    assert {len(row) for row in rows} == {4}
    (p1,) = [row for row in rows if row[0] == "P1"]
    assert p1[3].startswith("**fails so far** (plain): mean +10.00")
    details = text[text.index("All verdicts and numbers") :]
    assert "| P1 | mean gain over the losses at ρ = 100 reaches 29.5 | plain | **fails so far**: mean +10.00" in details
    assert "| P1 | mean gain over the losses at ρ = 100 reaches 29.5 | ours | **holds so far**: mean +40.00" in details
    short = text[text.index("## In short") : text.index("## Statements")]
    plain, ours = (f"**ICM {how}** is better than both Mixup and no mixing in 4 of 4 settings." for how in HOW)
    assert short.index(plain) < short.index(ours)
    assert "without mixing, in points: plain 1.0 (4 settings), ours 10.0 (4 settings)" in short
    assert short.count("\n- ") <= 12
    assert text.index("## Statements") < text.index("## Words")


def test_page_explains_the_words_it_uses():
    words = {row[0] for row in table_after(write_page(Results()), "## Words")}
    assert {"SCEL", "matched, swapped label weights", "Adam kept, re-created", "draws"} <= words


def test_page_describes_protocol_ours():
    rows = {row[0]: row[1:] for row in table_after(write_page(Results()), "| | plain | paper | ours |")}
    assert rows["crop with padding 4"] == ["no", "yes", "yes (not mentioned in the text)"]
    assert rows["held out for the selection of an epoch"][2] == "10 % of the labels (not in the paper)"


def test_page_lists_what_was_run(add_run, store):
    near = entry_of("as-coded", "icm swapped, λ per batch, Adam re-created", data="cifar10", group="")
    for seed in (0, 1):
        add_run(near, 0.3601 + seed / 100, "paper", seed, precision="bf16")
    text = write_page(read([store]))
    assert "2 runs on a GPU: 0.0 hours of training. bf16; encoder of 800 epochs; 0 % held out; 2 seeds. " in text
    assert "1 of the 554 published accuracies have a run here, 0 of them with 3 seeds" in text
    assert "No run: cifar20 (72 numbers), mnist (" in text
    title = STUDIES["as-coded"].title
    assert f"| as-coded | not in the paper | {title} | 1 of 36 |  | 1 of 36 |  |" in text
    assert "(study main" not in text  # one method is no comparison


def test_page_has_the_conditions_of_the_runs_in_captions(add_run, store):
    for mix in ("none", "icm"):
        entry = entry_of("main", mix, data="mnist", tail=100.0, loss="s-nl")
        add_run(entry, 0.5, precision="bf16", settings=RunSettings(pretrain_epochs=400))
    text = write_page(read([store]))
    caption = text[text.index("(study main, protocol ours)") :].split("\n")[2]
    assert caption.endswith("300 epochs. Runs: bf16; encoder of 400 epochs; 10 % held out; 1 seed.")


def test_page_says_how_far_each_protocol_is_from_the_published_numbers(add_run, store):
    for mix, points in (("none", 1.0), ("icm", -3.0)):
        entry = entry_of("main", mix, data="mnist", tail=100.0, loss="s-nl")
        settings = RunSettings(pretrain_epochs=400) if mix == "icm" else None
        add_run(entry, (entry.published.mean + points) / 100, "plain", settings=settings, accuracy_last=0.4)
    other = entry_of("main", "none", data="mnist", tail=100.0, loss="fwd")
    add_run(other, (other.published.mean - 2.0) / 100, "plain", accuracy_last=0.4)
    add_run(other, 0.9, epochs=100)  # too short to count
    chance = entry_of("setup3-10", "none", data="cifar10", tail=100.0, loss="s-nl")
    add_run(chance, chance.published.mean / 100, "plain")
    text = write_page(read([store]))
    header, _, *rows = table_after(text, "### How near are all runs?")
    assert header == ["protocol", "data", "encoder epochs", "none", "icm", *header[5:]]
    assert rows[0][:6] == ["plain", "mnist", "400", "1.5 (2)", "3.0 (1)", "2.0 (3)"]
    assert rows[1][:6] == ["plain", "cifar10", "", "0.0 (1)", "", ""], "a number near chance does not count"
    assert "1 of 4 compared numbers are near chance" in text
    assert "mnist 3.0 (1 setting, encoder of 400 epochs); the paper has encoders of 800 epochs" in text
    add_run(other, (other.published.mean + 6.0) / 100, "ours")
    assert "all methods: ours 6.0 and plain 2.0 (1 setting).\n" in write_page(read([store]))
    assert "How near are all runs?" not in write_page(Results())


def test_page_shows_losses_that_are_the_same_side_by_side(add_run, store):
    for loss, accuracy in (("s-nl", 0.9), ("fwd", 0.905)):
        add_run(entry_of("main", "none", data="mnist", tail=1.0, loss=loss), accuracy, epochs=100)
    text = write_page(read([store]))
    assert "| kmnist | 1 | 88.92 ± 0.14 | 80.41 ± 0.36 | -8.51 |" in text
    assert "| mnist | 1 | 97.78 ± 0.21 | 97.49 ± 0.08 | -0.29 | 0.13 | +0.50 | 100 |" in text


def test_page_counts_the_rows_that_are_identical_for_both_losses(add_run, store):
    for loss, last in (("s-nl", 0.5), ("fwd", 0.5)):
        add_run(entry_of("models-tail", "none", loss=loss, group="linear"), last)
        add_run(entry_of("models-tail", "none", loss=loss, group="mlp"), last + 0.001 * (loss == "fwd"))
    assert "have exactly the same accuracies: 1 of 1 (linear), 0 of 1 (mlp)." in write_page(read([store]))


@pytest.mark.parametrize("mixed", [False, True])
def test_s_nl_and_fwd_have_the_same_gradient_with_the_uniform_matrix(mixed):
    """The reason for the identical rows: their difference is a constant, also for mixed labels."""
    logits = torch.randn(32, 10, generator=torch.manual_seed(0)).requires_grad_()
    labels = torch.nn.functional.one_hot(torch.arange(32) % 10, 10).float()
    labels = 0.3 * labels + 0.7 * labels.roll(1, 0) if mixed else labels
    matrices = (transitions.uniform(10).float(), transitions.biased(10, 5.0).float())
    s_nl, same, other = losses.s_nl(logits, labels, None), *(losses.fwd(logits, labels, m) for m in matrices)
    a, b, c = (torch.autograd.grad(each.sum(), logits, retain_graph=True)[0] for each in (s_nl, same, other))
    assert torch.allclose(a, b, atol=1e-5)
    assert torch.allclose(same - s_nl, torch.tensor(math.log(9.0)), atol=1e-4)
    assert not torch.allclose(a, c, atol=1e-3)


def test_page_shows_noise_ratios_counted_without_training(add_noise, store):
    entry, mixup = (entry_of("noise", mix, data="mnist", tail=100.0) for mix in ("icm", "mixup"))
    add_noise(entry, 0.0169), add_noise(entry, 0.0171, seed=1), add_noise(mixup, 0.16)
    text = write_page(read([store]))
    assert "0 runs; 3 noise ratios counted without training." in text
    assert "| noise | Fig. 3a | Noise ratio per dataset | 2 of 6 | 2 of 32 | 0 of 32 |  |" in text
    assert "### Fig. 3a: Noise ratio per dataset (study noise, protocol ours)" in text
    assert "| mnist | icm | 1.70 ± 0.01 (2) | 0.95 | +0.75 |" in text
    assert "| **fails so far** (ours): 1.70 (2 seeds) |" in text


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
    check_page(write_page(found, figures.links(drawn, root / "docs" / "paper", page)), page)
