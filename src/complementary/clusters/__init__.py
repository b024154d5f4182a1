"""Clusters that examples are mixed within: features, k-means, spectral embedding, evaluation."""
