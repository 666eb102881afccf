"""Train with TRL's ``GRPOTrainer`` on groups of a farm. The arguments are the farm's URL and an empty directory.

The last line that is printed is a JSON object for the test.
"""

import json
import sys
from pathlib import Path

from datasets import Dataset
from tiny_policy import save_model
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from farm.client import FarmClient
from farm.learners import Leasing
from farm.learners.trl_rollout_func import FarmRolloutFunc, farm_reward


def main(url: str, place: Path) -> None:
    save_model(place / "model", seed=4)
    with FarmClient(url) as farm, FarmRolloutFunc(farm, Leasing(run_id="run-a"), policy="main") as rollout_func:
        farm.put_policy("main", 4, endpoints=["http://127.0.0.1:1/v1"])
        trainer = GRPOTrainer(
            model=str(place / "model"),
            reward_funcs=farm_reward,
            args=GRPOConfig(
                output_dir=str(place / "out"),
                max_steps=2,
                per_device_train_batch_size=6,
                num_generations=3,
                max_completion_length=32,
                learning_rate=1e-3,
                bf16=False,
                use_cpu=True,
                gradient_checkpointing=False,
                logging_steps=1,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_dict({"prompt": ["the farm chooses the task"] * 8}),
            processing_class=AutoTokenizer.from_pretrained(place / "model"),
            rollout_func=rollout_func,
        )
        trainer.train()
        acked_before_end = farm.run("run-a").summary.groups_acked
    with FarmClient(url) as farm:
        report = {
            "log": trainer.state.log_history,
            "acked": [acked_before_end, farm.run("run-a").summary.groups_acked],
            "policy_version": farm.policy("main").version,
        }
    print(json.dumps(report))


main(sys.argv[1], Path(sys.argv[2]))
