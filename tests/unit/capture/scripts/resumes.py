"""Resumes on the GPU from a file, evaluates in inference mode, and keeps in the model what it computed there."""

import io

import torch
from torch import nn

file = io.BytesIO()
torch.save(nn.Linear(6, 4).state_dict(), file)
model = nn.Sequential(nn.Linear(6, 4)).to("cuda")
for place in ("cuda", torch.device("cuda", 0), {"cpu": "cuda:0"}, lambda storage, _: storage.cuda(0)):
    file.seek(0)
    model[0].load_state_dict(torch.load(file, map_location=place))
with torch.inference_mode():
    model.register_buffer("mean", model(torch.ones(2, 6, device="cuda")).mean(0))
stream = torch.cuda.current_stream()
assert isinstance(stream, torch.cuda.Stream)
with torch.cuda.device(0), torch.cuda.stream(stream), torch.cuda.nvtx.range("steps"):
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(4):
        x = torch.randn(14, 6).to(next(model.parameters()).device)
        with torch.autocast(x.device.type, torch.bfloat16):
            loss = (model(x) - model.mean).square().mean()
        loss.backward()
        optimizer.step()
