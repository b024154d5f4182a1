"""The max-pool of ResNet (3 x 3, stride 2, padding 1), with Triton kernels on a GPU.

The kernels of torch.compile take 310 of the 3,150 microseconds of a training step, 248 of them backward (H200, batch
512, bf16); these take 137. Everywhere else torch's own max-pool is used. Both choose the first of equal maxima, so they
agree exactly.
"""

import importlib.util

import torch
import torch.nn.functional as F
from torch import Tensor

USE_KERNELS = torch.cuda.is_available() and importlib.util.find_spec("triton") is not None
if USE_KERNELS:
    import complementary.engine.max_pool_kernels  # noqa: F401  (registers torch.ops.complementary.max_pool)


def max_pool(x: Tensor) -> Tensor:
    """[B, C, H, W] -> [B, C, ceil(H / 2), ceil(W / 2)]."""
    if USE_KERNELS and x.is_cuda and x.shape[2] % 2 == 0 and x.shape[3] % 2 == 0:
        pooled: Tensor = torch.ops.complementary.max_pool(x)[0]
        return pooled
    return F.max_pool2d(x, 3, 2, 1)
