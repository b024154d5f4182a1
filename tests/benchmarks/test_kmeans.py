from benchmarks import kmeans as benchmark
from complementary.clusters import kmeans


def test_kmeans_benchmark_compares_one_stage_with_two(capsys, monkeypatch):
    for name, value in (("LARGE", 1000), ("SAMPLE", 800), ("PER_CLUSTER", 1)):
        monkeypatch.setattr(kmeans, name, value)
    benchmark.main(["3000"])
    assert kmeans.LARGE == 1000
    header, _, row = capsys.readouterr().out.splitlines()
    assert header.count("|") == row.count("|")
    assert row.startswith("| 3,000 |")
    assert abs(float(row.split("|")[4].split()[0])) < 5
