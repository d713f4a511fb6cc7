"""TRL's trainers of supervised fine-tuning, preferences (DPO) and rewards over libzero.HFTrainer, with
LoRA and gradient checkpointing as they come: numbers and adapters are those of TRL alone.

Usage: test_trl.py [NAME...], with PYTHONPATH and LIBZERO_LIBRARY_DIR. Exit code 77: there is no TRL.
"""

import os
import sys
import unittest
import warnings

os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")
os.environ["LIBZERO_POISON"] = "1"  # memory that is given back is overwritten
try:
    import datasets
    import peft
    import torch
    import transformers
    import trl
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
sys.path.insert(0, os.path.dirname(__file__))

import libzero
import models
from processes import run_as_ranks_first

torch.set_num_threads(1)
TEXT = "the quick brown fox jumps over the lazy dog and the slow red cat sleeps under a tall green tree"
WORDS = TEXT.split()


def phrase(first, n):
    return " ".join(WORDS[(first + 3 * i) % len(WORDS)] for i in range(n))


#: The kind: TRL's trainer, its arguments, the task of its model, and its data.
KINDS = {
    "sft": (trl.SFTTrainer, trl.SFTConfig, "CAUSAL_LM", [
        {"text": phrase(i, 3 + i % 3)} for i in range(16)]),
    "dpo": (trl.DPOTrainer, trl.DPOConfig, "CAUSAL_LM", [
        {"prompt": phrase(i, 3), "chosen": " " + phrase(i + 1, 2 + i % 2),
         "rejected": " " + phrase(i + 5, 3)} for i in range(16)]),
    "reward": (trl.RewardTrainer, trl.RewardConfig, "SEQ_CLS", [
        {"chosen": phrase(i + 1, 3 + i % 2), "rejected": phrase(i + 5, 4)} for i in range(16)]),
}
run_as_ranks_first(2)

transformers.utils.logging.set_verbosity_error()
datasets.disable_progress_bars()
warnings.simplefilter("ignore")
RANK, N_RANKS = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
ARGUMENTS = {
    "use_cpu": True, "per_device_train_batch_size": 4 // N_RANKS, "gradient_accumulation_steps": 2,
    "max_steps": 3, "learning_rate": 1e-2, "logging_steps": 1, "save_strategy": "no",
    "report_to": [], "disable_tqdm": True, "bf16": False, "seed": 1, "max_length": 24}
STAGE_3 = {"stage": 3, "offload_params": "cpu"}
NUMBERS = ("loss", "grad_norm", "mean_token_accuracy", "rewards/margins", "logps/chosen",
           "eval_loss", "train_loss")


class Same(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tokenizer = models.tiny_tokenizer(TEXT)
        cls.tokenizer.add_special_tokens({"pad_token": "<pad>", "eos_token": "<end>"})

    def model(self, task, seed=5):
        config = transformers.LlamaConfig(
            vocab_size=len(self.tokenizer), hidden_size=32, intermediate_size=64, num_labels=1,
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=32, pad_token_id=self.tokenizer.pad_token_id)
        kinds = {"CAUSAL_LM": transformers.LlamaForCausalLM,
                 "SEQ_CLS": transformers.LlamaForSequenceClassification}
        torch.manual_seed(seed)
        return kinds[task](config)

    def train(self, kind, stage, arguments, is_whole, make_reference):
        """A run of TRL's trainer, or, with a stage, of one on the engine. Returns the numbers that
        it has logged, and what it has trained."""
        trainer, make_arguments, task, rows = KINDS[kind]
        more = {}
        if stage is not None:
            trainer = type("Mine", (libzero.HFTrainer, trainer), {})
            more["libzero_config"] = stage
        if not is_whole:
            more["peft_config"] = peft.LoraConfig(
                task_type=task, r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"])
        if make_reference is not None:
            more["ref_model"] = make_reference()
        run = trainer(
            model=self.model(task), processing_class=self.tokenizer,
            args=make_arguments(os.environ["ZR_TEST_FOLDER"], **{**ARGUMENTS, **arguments}),
            train_dataset=datasets.Dataset.from_list(rows),
            eval_dataset=datasets.Dataset.from_list(rows[:6]), **more)
        run.remove_callback(transformers.PrinterCallback)
        self.assertTrue(run.args.gradient_checkpointing)
        run.train()
        run.evaluate()
        numbers = [{k: v for k, v in e.items() if k in NUMBERS} for e in run.state.log_history]
        trained = {n for n, p in run.model.named_parameters() if p.requires_grad}
        state = run.model.state_dict() if stage is None else run.engine.state_dict()
        if stage is not None:
            run.engine.close()
        return numbers, {name: state[name].clone() for name in trained}

    def check(self, kind, arguments=None, is_whole=False, make_reference=None):
        given = arguments or {}, is_whole, make_reference
        numbers, state = self.train(kind, None, *given)
        self.assertGreater(len(numbers), 3)
        self.assertGreater(len(state), 6)
        for stage in ({"stage": 2}, STAGE_3):
            with self.subTest(**stage):
                found, trained = self.train(kind, stage, *given)
                self.assertEqual([set(e) for e in found], [set(e) for e in numbers])
                for mine, plain in zip(found, numbers, strict=True):
                    for key in plain:
                        self.assertLess(abs(mine[key] - plain[key]), 1e-5, (key, mine, plain))
                self.assertEqual(set(trained), set(state))
                for name, value in state.items():
                    self.assertLess((trained[name] - value).abs().max().item(), 1e-4, name)

    def test_fine_tuning(self):
        self.check("sft")

    def test_preferences(self):
        """The reference is the model without its adapter."""
        self.check("dpo")

    def test_rewards(self):
        self.check("reward")

    @unittest.skipIf(N_RANKS > 1, "one rank says it")
    def test_whole_models(self):
        """Without LoRA; a reference model of its own, whose answers may be computed first."""
        self.check("sft", {"packing": True}, True)
        for is_first in (False, True):
            self.check("dpo", {"precompute_ref_log_probs": is_first}, True,
                       lambda: self.model("CAUSAL_LM", 7))


if __name__ == "__main__":
    unittest.main(verbosity=2 if RANK == 0 else 0)
