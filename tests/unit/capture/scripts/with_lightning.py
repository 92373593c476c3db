"""A module of Lightning, whose sanity check evaluates before the first step."""

import torch
from lightning import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Linear(20, 4)

    def training_step(self, batch, _):
        return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def validation_step(self, batch, _):
        self.layers(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


samples = TensorDataset(torch.randn(128, 20), torch.randint(0, 4, (128,)))
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
net = Net()
trainer = Trainer(max_epochs=1, accumulate_grad_batches=2, precision="bf16-mixed", devices=1, **quiet)
trainer.fit(net, DataLoader(samples, batch_size=16), DataLoader(samples, batch_size=32))
