"""A model of KServe that answers after some seconds."""

import asyncio

from kserve import Model, ModelServer


class Slow(Model):
    def load(self):
        self.ready = True
        return self.ready

    async def predict(self, payload, headers=None, response_headers=None):
        await asyncio.sleep(8)
        return {"predictions": [1.0]}


if __name__ == "__main__":
    model = Slow("slow")
    model.load()
    ModelServer().start([model])
