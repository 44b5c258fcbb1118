"""A model for BentoML."""

import bentoml
import toy


@bentoml.service
class Toy:
    def __init__(self):
        toy.load()

    @bentoml.api
    def predict(self) -> float:
        return toy.answer()
