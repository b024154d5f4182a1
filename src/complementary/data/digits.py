"""Scikit-learn's 1,797 handwritten digits, 8 x 8 pixels: a real set that needs no download."""

import numpy as np
import torch

from complementary.data.dataset import Dataset, Split
from complementary.errors import UserError


def digits() -> Dataset:
    """Every fifth image is for testing: 1,437 train and 360 test images, uint8 [N, 1, 8, 8]."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise UserError("The digits come with scikit-learn: pip install 'complementary[cli]'.") from None
    source = load_digits()
    images = torch.from_numpy(np.rint(source.images * (255 / 16)).astype(np.uint8))[:, None]
    truth = torch.from_numpy(source.target).long()
    test = torch.arange(len(images)) % 5 == 0
    train, held = (Split(images[part].contiguous(), truth[part]) for part in (~test, test))
    return Dataset("digits", train, held, tuple("0123456789"), mean=(0.3053,), std=(0.3762,), flip=False)
