"""An application for Ray Serve."""

import toy
from ray import serve


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Toy:
    def __init__(self):
        toy.load()

    def __call__(self, request):
        return toy.answer()


app = Toy.bind()
