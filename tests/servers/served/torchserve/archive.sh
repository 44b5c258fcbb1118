set -e
mkdir store
torch-model-archiver --model-name toy --version 1 --handler handler.py --config-file model.yaml --export-path store
