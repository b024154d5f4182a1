"""Training a classifier from complementary labels."""
