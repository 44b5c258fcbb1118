"""A model for MLServer."""

import toy
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse
from numpy import array


class Toy(MLModel):
    async def load(self):
        toy.load()
        return True

    async def predict(self, payload):
        outputs = [NumpyCodec.encode_output("y", array([toy.answer()]))]
        return InferenceResponse(model_name=self.name, outputs=outputs)
