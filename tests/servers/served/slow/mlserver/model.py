"""A model that answers after some seconds."""

import asyncio

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Slow(MLModel):
    async def load(self) -> bool:
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        await asyncio.sleep(8)
        output = NumpyCodec.encode_output("y", np.array([1.0]))
        return InferenceResponse(model_name=self.name, outputs=[output])
