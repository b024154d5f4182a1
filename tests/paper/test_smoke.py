import pytest

from complementary.paper.smoke import SMALL, small, smoke
from complementary.paper.store import RunSettings
from complementary.paper.studies import STUDIES


@pytest.mark.parametrize("name", STUDIES)
def test_small_study_keeps_the_methods_and_what_it_varies(name):
    study, tiny = STUDIES[name], small(STUDIES[name])
    assert {entry.method for entry in tiny.entries} == {entry.method for entry in study.entries}
    assert len({(entry.method, entry.group, entry.setting.loss) for entry in tiny.entries}) == len(tiny.entries)
    assert {entry.setting.data for entry in tiny.entries} == {"digits"}
    configs = [RunSettings(epochs=1).config(entry, study.protocol) for entry in tiny.entries]
    assert {config.network.model for config in configs} <= {SMALL["model"], "mlp"}
    assert all(config.cluster.encoder == "pixels" for config in configs if config.mixed_within == "clusters")
    if name not in ("encoders", "noise", "models", "models-tail"):  # encoders, and ResNet-18 beside the linear network
        assert len({config.hash() for config in configs}) == len(configs)


@pytest.mark.slow
def test_smoke_does_not_repeat_finished_runs(store):
    found = smoke(STUDIES["intra"], store)
    assert (found.runs, found.figure) == (2, True)
    before = {path: path.stat().st_mtime_ns for path in store.rglob("result.json")}
    assert len(before) == 2
    smoke(STUDIES["intra"], store)
    assert {path: path.stat().st_mtime_ns for path in store.rglob("result.json")} == before
