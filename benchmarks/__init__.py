"""Speed benchmarks of `complementary`; a part of the repository, not of the package."""
