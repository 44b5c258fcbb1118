"""A service that answers after some seconds."""

import time

import bentoml


@bentoml.service(traffic={"timeout": 120})
class Slow:
    @bentoml.api
    def predict(self) -> str:
        time.sleep(8)
        return "done"
