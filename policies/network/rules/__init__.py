"""The rules about meshes and Services of model servers."""
