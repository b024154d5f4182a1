"""``python -m complementary`` is ``cll``."""

from complementary.cli import main

main()
