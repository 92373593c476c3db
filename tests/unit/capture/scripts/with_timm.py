"""A model, an optimizer and an average of weights of timm."""

import timm
import torch
from timm.optim import create_optimizer_v2
from timm.utils import ModelEmaV3

model = timm.create_model("test_resnet", num_classes=10).to("cuda", memory_format=torch.channels_last)
average, optimizer = ModelEmaV3(model), create_optimizer_v2(model, opt="lamb", lr=1e-3)
scaler = torch.amp.GradScaler("cuda")
for step in range(4):
    x, y = torch.randn(4, 3, 32, 32, device="cuda"), torch.zeros(4, dtype=int, device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    average.update(model, step)
