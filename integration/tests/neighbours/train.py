"""Trains with Kubeflow's SDK on the TrainingRuntime `torch`, and prints what the SDK shows.

    train.py NAMESPACE
"""

import sys

from kubeflow.common.types import KubernetesBackendConfig
from kubeflow.trainer import CustomTrainerContainer, TrainerClient

client = TrainerClient(KubernetesBackendConfig(namespace=sys.argv[1]))
runtime = client.get_runtime("torch")
name = client.train(runtime=runtime, trainer=CustomTrainerContainer(image="none", num_nodes=2))
for status in ("Running", "Complete"):
    job = client.wait_for_job_status(name, status={status}, timeout=60, polling_interval=1)
    print(job.status, job.num_nodes, len(job.steps), flush=True)
