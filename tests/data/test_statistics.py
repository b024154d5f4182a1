import numpy as np
from hypothesis import given
from hypothesis.extra import numpy as hnp

from complementary.data.statistics import channel_moments, feature_moments


@given(hnp.arrays(np.uint8, hnp.array_shapes(min_dims=4, max_dims=4, max_side=4)))
def test_images(images):
    mean, std = channel_moments(images)
    assert np.allclose(mean, (images / 255).mean((0, 2, 3)), atol=1e-6)
    assert np.allclose(std, (images / 255).std((0, 2, 3)), atol=1e-5)


def test_vectors_and_constant_features():
    mean, std = feature_moments(np.array([[1, 5], [3, 5]], np.float32))
    assert mean == [2, 5]
    assert std == [1, 1]
