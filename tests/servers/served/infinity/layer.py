"""A layer of a model for Infinity."""

import toy
from torch import nn


class Toy(nn.Module):
    @classmethod
    def load(cls, folder):
        toy.load()
        return cls()

    def save(self, folder):
        """It has no weights of its own."""

    def forward(self, features):
        toy.answer()
        return features
