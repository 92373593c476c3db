"""Distillation, with a teacher that has no gradient, a graph that is drawn, and a validation after each epoch."""

import copy

import torch
from torch import nn

teacher = nn.Sequential(nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, 4)).to("cuda").eval()
student = nn.Linear(20, 4).to("cuda")
torch.jit.trace(student, torch.zeros(1, 20, device="cuda"))  # as TensorBoard does to draw it
optimizer = torch.optim.NAdam(student.parameters())
for _ in range(3):
    for _ in range(2):
        x = torch.randn(32, 20, device="cuda")
        with torch.no_grad():
            target = teacher(x).softmax(1)
        optimizer.zero_grad()
        nn.functional.cross_entropy(student(x), target).backward()
        optimizer.step()
    student.eval()
    student(torch.randn(100, 20, device="cuda"))
    student.train()
    best = copy.deepcopy(student)
