"""A model for MLflow, saved from this code by `save.py`."""

import toy
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel


class Toy(PythonModel):
    def load_context(self, context):
        toy.load()

    def predict(self, context, model_input, params=None):
        return [toy.answer()]


set_model(Toy())
