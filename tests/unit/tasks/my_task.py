import torch
from sklearn.datasets import load_wine
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Subset, TensorDataset

from orchestrator.training.task import Task, TaskConfig

x, y = load_wine(return_X_y=True)
wine = TensorDataset(torch.tensor((x - x.mean(0)) / x.std(0), dtype=torch.float32), torch.tensor(y))


class WineConfig(TaskConfig):
    hidden: int = 32


class Wine(Task):
    Config = WineConfig

    def model(self):
        return nn.Sequential(nn.Linear(13, self.config.hidden), nn.ReLU(), nn.Linear(self.config.hidden, 3))

    def train_data(self):
        return Subset(wine, [i for i in range(len(wine)) if i % 5])

    def val_data(self):
        return Subset(wine, range(0, len(wine), 5))

    def loss(self, model, batch):
        features, label = batch
        return F.cross_entropy(model(features), label, reduction="sum"), len(label)
