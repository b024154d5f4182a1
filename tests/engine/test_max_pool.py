"""The max-pool: torch's own on a CPU, Triton kernels on a GPU."""

import pytest
import torch
import torch.nn.functional as F

from complementary.engine.max_pool import USE_KERNELS, max_pool


def test_max_pool_on_a_cpu():
    x = torch.randn(2, 3, 9, 8)
    assert torch.equal(max_pool(x), F.max_pool2d(x, 3, 2, 1))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 64, 32, 32), (3, 5, 8, 6), (1, 1, 2, 2), (2, 3, 7, 9)])
@pytest.mark.parametrize("compile", [False, True])
def test_max_pool_kernels_agree_with_torch_including_ties(shape, dtype, compile):
    assert USE_KERNELS
    pool = torch.compile(max_pool, dynamic=False) if compile else max_pool
    values = torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(0))  # many equal maxima
    x = values.to("cuda", dtype).contiguous(memory_format=torch.channels_last)
    ours, torchs = x.clone().requires_grad_(), x.clone().requires_grad_()
    found, wanted = pool(ours), F.max_pool2d(torchs, 3, 2, 1)
    assert torch.equal(found, wanted)
    grad = torch.randint(-4, 5, wanted.shape, device="cuda").to(dtype)  # whole numbers: sums are exact in bfloat16
    found.backward(grad)
    wanted.backward(grad)
    assert torch.equal(ours.grad, torchs.grad)


@pytest.mark.gpu
def test_max_pool_propagates_nan_as_torch_does():
    x = torch.zeros(1, 1, 4, 4, device="cuda")
    x[0, 0, 1, 1] = float("nan")
    assert torch.equal(max_pool(x).isnan(), F.max_pool2d(x, 3, 2, 1).isnan())
