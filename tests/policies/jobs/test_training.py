"""Which Jobs train: by the programs that their containers run, and who wrote their number of retries."""

from __future__ import annotations

import json

import pytest

from policies.core.facts import Facts
from policies.jobs.job_retries_settings import JobRetries
from policies.jobs.jobs import jobs_in, leaves_retries_open
from policies.jobs.training import training_containers
from policies.kube.json import Json
from policies.kube.metadata import LAST_APPLIED

TRAINING = [
    ["python", "train.py"],
    ["/usr/bin/python3", "-u", "/app/train.py"],
    ["python", "-m", "trainer.finetune", "--config=a"],
    ["python", "-m", "torch.distributed.run", "--nproc_per_node=2", "main.py"],
    ["torchrun", "--nproc-per-node=8", "main.py"],
    ["accelerate", "launch", "main.py"],
    ["tune", "run", "full_finetune_distributed"],
    ["bash", "-c", "set -e; cd /app && python fine_tune.py"],
    ["bash", "-c", "until (echo > /dev/tcp/db/5432) 2> /dev/null; do sleep 5; done; > log; torchrun main.py"],
    ["torchrun", "--nnodes=2", "--rdzv-id=7", "run_clm.py", "--model_name_or_path=gpt2"],
    ["deepspeed", "--num_gpus", "8", "sft_qwen.py"],
    ["accelerate", "launch", "--config_file", "fsdp.yaml", "-m", "axolotl.cli.train", "config.yml"],
    ["llamafactory-cli", "train", "config.yaml"],
]
RETRIED = [
    None,
    ["python", "main.py"],
    ["bash", "train.sh"],
    ["torchrun", "eval.py"],
    ["tune", "download", "llama"],
    ["python", "prepare_training_data.py"],
    ["python", "convert_checkpoint.py"],
    ["/kaniko/executor", "--destination=registry.example/train"],
    ["huggingface-cli", "download", "model"],
    ["bash", "-c", "pip install trainer && python train.py"],
    ["deepspeed", "--num_gpus", "8", "run_inference.py"],
    ["accelerate", "launch", "-m", "lm_eval", "--model", "hf"],
    ["accelerate", "launch", "caption_videos.py"],
    ["torchrun", "--nnodes=2", "scripts/extract_embeddings.py"],
    ["python", "-m", "torch.distributed.run", "--nnodes=2", "score.py"],
    ["tune", "run", "eleuther_eval"],
    ["python", "clean_train_set.py"],
    ["python", "validate_training_config.py"],
    ["python", "launch_training.py"],
    ["python", "-m", "train.extract_features"],
    ["bash", "-c", "python train.py && aws s3 cp out s3://bucket"],
]


def job(command: list[str] | None = None, *, gpus: int = 1, **spec: object) -> Json:
    container: Json = {"name": "main", "image": "registry.example/train:1"}
    container |= {"command": command} if command else {}
    container |= {"resources": {"limits": {"nvidia.com/gpu": gpus}}} if gpus else {}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {}, "spec": {**spec, "template": template}}


def trains(obj: Json) -> bool:
    (only,) = jobs_in(obj)
    return bool(training_containers(obj, only, JobRetries(), Facts("ml")))


@pytest.mark.parametrize("command", TRAINING, ids=" ".join)
def test_a_training_program_with_accelerators_trains(command: list[str]) -> None:
    assert trains(job(command))


@pytest.mark.parametrize("command", RETRIED, ids=str)
def test_everything_else_keeps_its_retries(command: list[str] | None) -> None:
    assert not trains(job(command))


@pytest.mark.parametrize(
    "arguments", [["--destination=registry.example/train:1"], ["--dockerfile", "train.py"], ["-c", "sft.py"]]
)
def test_an_option_names_no_program(arguments: list[str]) -> None:
    given = job()
    given["spec"]["template"]["spec"]["containers"][0]["args"] = arguments
    assert not trains(given)


def test_without_accelerators_only_a_label_marks_a_training() -> None:
    made = job(TRAINING[0], gpus=0)
    assert not trains(made)
    made["metadata"]["labels"] = {"mlchassis.dev/training": "true"}
    assert trains(made)


def open_retries(obj: Json) -> bool:
    (only,) = jobs_in(obj)
    return leaves_retries_open(obj, only)


UPDATED = {"operation": "Update", "fieldsV1": {"f:spec": {"f:backoffLimit": {}}}}
APPLIED = {"operation": "Apply", "fieldsV1": {"f:spec": {"f:backoffLimit": {}}}}
APPLIED_WITHOUT = {"operation": "Apply", "fieldsV1": {"f:spec": {"f:template": {}}}}


@pytest.mark.parametrize(
    ("managed", "last", "left_open"),
    [
        ([], None, False),  # a file
        ([UPDATED], None, True),  # kubectl create: perhaps the default
        ([UPDATED], {"spec": {"template": {}}}, True),
        ([UPDATED], {"spec": {"backoffLimit": 6}}, False),
        ([APPLIED], None, False),
        ([APPLIED_WITHOUT], None, True),
    ],
)
def test_a_written_number_of_retries_is_a_decision(
    managed: list[Json], last: Json | None, left_open: bool
) -> None:
    made = job(backoffLimit=6)
    made["metadata"] = {"managedFields": managed} if managed else {}
    if last is not None:
        made["metadata"]["annotations"] = {LAST_APPLIED: json.dumps(last)}
    assert open_retries(made) is left_open


def test_no_number_of_retries_leaves_them_open() -> None:
    assert open_retries(job())
    assert not open_retries(job(backoffLimit=2))


def test_the_api_server_sets_no_default_inside_a_cron_job() -> None:
    made = {"apiVersion": "batch/v1", "kind": "CronJob", "spec": {"jobTemplate": job(backoffLimit=6)}}
    assert not open_retries({**made, "metadata": {"managedFields": [UPDATED]}})
