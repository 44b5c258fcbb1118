"""KServe's `sklearnserver` but for its model: its images' own servers are no packages of PyPI."""

import argparse

import toy
from kserve import Model, ModelServer, model_server


class Toy(Model):
    def load(self):
        toy.load()
        self.ready = True
        return self.ready

    def predict(self, payload, headers=None, response_headers=None):
        return {"predictions": [toy.answer()]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(parents=[model_server.parser])
    args, _ = parser.parse_known_args()
    model = Toy(args.model_name)
    model.load()
    ModelServer().start([model])
