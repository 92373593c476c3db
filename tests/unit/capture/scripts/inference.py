"""Inference in half precision."""

import torch
from torch import nn

model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval().half().cuda()
with torch.inference_mode():
    for _ in range(10):
        model(torch.randn(5, 3, 8, 8, device="cuda", dtype=torch.float16)).cpu()
