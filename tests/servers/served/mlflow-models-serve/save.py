"""Writes the folder `model`."""

from mlflow.pyfunc import save_model

save_model("model", python_model="model.py", pip_requirements=[])
