from complementary.config import Config
from complementary.sweeps.grid import Cell
from complementary.sweeps.plan import make_plan


def cells(*options):
    return [Cell(Config.of(**o), str(o)) for o in options]


def kinds(units):
    return [unit.stage.kind if unit.stage else "cells" for unit in units]


def test_clusters_that_two_cells_share_are_one_stage_before_both():
    units = make_plan(cells({"mix": "icm"}, {"mix": "micm", "loss": "dm"}, {"mix": "icm", "seed": 1}))
    assert kinds(units) == ["clusters", "cells", "cells", "cells"]
    stage, first, second, other = units
    assert first.needs == second.needs == (stage.key,)
    assert other.needs == ()  # another seed, other clusters, and nobody to share them with


def test_an_encoder_is_made_before_the_clusterings_that_share_it():
    options = [{"encoder": "simsiam", "clusters": k, "loss": loss} for k in (10, 20) for loss in ("s-nl", "dm")]
    encoder, ten, twenty, *rest = make_plan(cells(*options, {"encoder": "simsiam", "clusters": 30}))
    assert kinds([encoder, ten, twenty]) == ["encoder", "clusters", "clusters"]
    assert ten.needs == twenty.needs == (encoder.key,)
    assert [unit.needs for unit in rest] == [(ten.key,)] * 2 + [(twenty.key,)] * 2 + [(encoder.key,)]


def test_a_long_tail_is_the_same_however_it_is_asked_for():
    (stage, *_) = make_plan(cells({"long_tail": 10.0}, {"labels": "setup-1:10"}))
    assert stage.stage is not None


def test_what_needs_no_clusters_shares_nothing():
    plain = cells({"mix": "none"}, {"mix": "none", "loss": "dm"}, {"mix": "mixup"}, {"mix": "intra-class"})
    filed = cells({"assignments": "a.safetensors"}, {"assignments": "a.safetensors", "loss": "dm"})
    assert kinds(make_plan([*plain, *filed])) == ["cells"] * 6


def test_cells_that_learn_from_features_share_the_encoder_whether_they_mix_or_not():
    options = [
        {"inputs": "features", "encoder": "simsiam", "mix": mix, "loss": loss}
        for mix in ("none", "icm")
        for loss in ("s-nl", "dm")
    ]
    encoder, clusters, *rest = make_plan(cells(*options, {"mix": "none"}))
    assert kinds([encoder, clusters, *rest]) == ["encoder", "clusters"] + ["cells"] * 5
    assert clusters.needs == (encoder.key,)
    assert [unit.needs for unit in rest] == [(encoder.key,)] * 2 + [(clusters.key,)] * 2 + [()]
    assert kinds(make_plan(cells(options[0]))) == ["cells"]  # nobody to share it with


def test_packs_hold_cells_that_wait_for_the_same():
    options = [{"mix": mix, "loss": loss} for mix in ("none", "icm") for loss in ("s-nl", "dm", "fwd")]
    units = [unit for unit in make_plan(cells(*options), pack=2) if unit.stage is None]
    assert [len(unit.cells) for unit in units] == [2, 1, 2, 1]
    assert sum((unit.cells for unit in units), ()) == tuple(cells(*options))
    assert all(len({cell.config.mixing.mix for cell in unit.cells}) == 1 for unit in units)
