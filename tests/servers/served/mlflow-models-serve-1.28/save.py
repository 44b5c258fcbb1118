"""Writes the folder `model`, as MLflow did before it could save a model from its code."""

import toy
from mlflow.pyfunc import PythonModel, save_model


class Toy(PythonModel):
    def load_context(self, context):
        toy.load()

    def predict(self, context, model_input):
        return [toy.answer()]


save_model("model", python_model=Toy(), pip_requirements=[])
