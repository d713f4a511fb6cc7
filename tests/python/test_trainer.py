"""libzero.HFTrainer: losses, norms, rates, evaluation and weights are those of transformers' own Trainer, alone and, where
ranks have something to exchange, as two processes.

Usage: test_trainer.py [NAME...], with PYTHONPATH and LIBZERO_LIBRARY_DIR. Exit code 77: there is no PyTorch, transformers
or accelerate.
"""

import functools
import glob
import json
import os
import runpy
import sys
import unittest
import warnings

try:
    import torch
    import transformers
    from transformers import Trainer
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
if not transformers.utils.is_accelerate_available():
    print("skipped: there is no accelerate")
    sys.exit(77)

os.environ["LIBZERO_POISON"] = "1"  # memory that is given back is overwritten
sys.path.insert(0, os.path.dirname(__file__))

import libzero
import models
from processes import run_as_ranks_first

if transformers.utils.is_peft_available():
    import peft  # noqa: F401
torch.set_num_threads(1)
models.make("llama"), models.make("t5")  # imported once
run_as_ranks_first(2)

transformers.utils.logging.set_verbosity_error()
warnings.simplefilter("ignore")
RANK, N_RANKS = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
N_SAMPLES = 26  # an epoch ends with a step of fewer micro-batches, as one rank and as two
ARGUMENTS = {
    "use_cpu": True, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 3, "num_train_epochs": 2,
    "learning_rate": 1e-2, "weight_decay": 0.1, "adam_beta2": 0.99, "adam_epsilon": 1e-5, "warmup_steps": 1,
    "lr_scheduler_type": "cosine", "max_grad_norm": 0.5, "logging_steps": 1, "eval_strategy": "epoch", "save_strategy": "no",
    "disable_tqdm": True, "report_to": []}
STAGES = [{"stage": 0}, {"stage": 1}, {"stage": 2, "offload_optimizer": "cpu"}, {"stage": 3, "offload_params": "cpu"}]


def samples(n=N_SAMPLES):
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(61, (n, 12), generator=generator)
    return [{"input_ids": t, "labels": t} for t in tokens]


def make():
    return models.make("llama").model


def trainer_of(kind, model, folder, arguments=None, more=None, **keywords):
    make_arguments = libzero.HFTrainingArguments if (arguments or {}).get("deepspeed") else transformers.TrainingArguments
    trainer = kind(model=model, args=make_arguments(output_dir=folder, **{**ARGUMENTS, **(arguments or {})}),
                   train_dataset=samples(), eval_dataset=samples(7), **keywords, **(more or {}))
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


NUMBERS = ("loss", "grad_norm", "learning_rate", "eval_loss", "train_loss")


def numbers(trainer):
    return [{k: v for k, v in entry.items() if k in NUMBERS} for entry in trainer.state.log_history]


class Case(unittest.TestCase):
    def setUp(self):
        """A folder that is the same on all ranks."""
        self.folder = os.path.join(os.environ["ZR_TEST_FOLDER"], f"{self.id()}-{N_RANKS}")

    def assert_near(self, found, expected, most=1e-5):
        self.assertEqual([set(e) for e in found], [set(e) for e in expected])
        for a, b in zip(found, expected, strict=True):
            for key in a:
                self.assertLess(abs(a[key] - b[key]), most, (key, found, expected))

    def assert_same_weights(self, model, expected, most=1e-5):
        self.assertEqual(set(model.state_dict()), set(expected))
        for name, value in model.state_dict().items():
            self.assertLess((value - expected[name]).abs().max().item(), most, name)

    def plain(self, arguments=None, model=None):
        """What transformers' Trainer does."""
        model = make() if model is None else model
        trainer = trainer_of(Trainer, model, self.folder + "-plain", arguments)
        trainer.train()
        self.assertGreater(len(trainer.state.log_history), 8 if N_RANKS == 1 else 7)
        return trainer


class Parity(Case):
    def check(self, arguments=None, stages=STAGES, most=1e-5, most_of_weights=1e-5):
        plain = self.plain(arguments)
        expected = {n: v.clone() for n, v in plain.model.state_dict().items()}
        seen = set()
        for stage in stages:
            trainer = trainer_of(libzero.HFTrainer, make(), self.folder, arguments, libzero_config=stage)
            trainer.train()
            self.assert_near(numbers(trainer), numbers(plain), most)
            trainer.save_model()
            seen.add(trainer.engine.weights_xxh3())
            trainer.engine.close()
            self.assert_same_weights(transformers.AutoModelForCausalLM.from_pretrained(self.folder), expected, most_of_weights)
        return seen

    def test_stages(self):
        self.check()

    def test_recomputation(self):
        for is_reentrant in (False, True):
            self.check({"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": is_reentrant}}, STAGES[2:])

    def test_autocast(self):
        self.check({"bf16": True}, STAGES[::3], 1e-2, 5e-2)

    def test_one_micro_batch(self):
        """Of a step; all stages end in the same bits then."""
        seen = self.check({"gradient_accumulation_steps": 1, "max_grad_norm": 0.0, "optim": "sgd", "lr_scheduler_type": "linear"})
        self.assertEqual(len(seen), 1)


class Use(Case):
    def test_configuration(self):
        """DeepSpeed's, with "auto", as HFTrainingArguments(deepspeed=...)."""
        config = {
            "zero_optimization": {
                "stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": True}, "overlap_comm": True,
                "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto", "stage3_gather_16bit_weights_on_model_save": True},
            "bf16": {"enabled": "auto"}, "gradient_clipping": "auto", "gradient_accumulation_steps": 3,
            "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
            "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": 1e-5, "weight_decay": "auto",
                                                      "torch_adam": True, "adam_w_mode": True, "bias_correction": True}}}
        file = os.path.join(os.environ["ZR_TEST_FOLDER"], f"config-{N_RANKS}-{RANK}.json")
        with open(file, "w") as f:
            json.dump(config, f)
        seen = []
        for arguments, more in [({}, {"libzero_config": {"stage": 3, "offload_optimizer": "cpu"}}),
                                ({}, {"libzero_config": config}), ({"deepspeed": file}, {}), ({"deepspeed": json.dumps(config)}, {})]:
            trainer = trainer_of(libzero.HFTrainer, make(), self.folder, {**arguments, "max_steps": 2}, more)
            trainer.train()
            self.assertEqual(trainer.engine.stage, 3)
            seen.append((trainer.engine.weights_xxh3(), trainer.engine.memory()["host"]["tags"]["optimizer_state"]["live"] > 0))
            trainer.engine.close()
        self.assertEqual(seen, [(seen[0][0], True)] * 4)

    def test_refused(self):
        for config, words in [
            ({"gradient_clipping": 2.0}, "gradient_clipping is 2.0, the training arguments say 0.5"),
            ({"optimizer": {"type": "AdamW", "params": {"betas": [0.1, 0.2]}}}, r"optimizer.params.betas is \[0.1, 0.2\]"),
            ({"optimizer": {"type": "AdamW", "params": {"bias_correction": False}}}, "bias_correction"),
            ({"optimizer": {"type": "SGD", "params": {"momentum": 0.9}}}, "params.momentum is not supported"),
            ({"scheduler": {"params": {"warmup_num_steps": 7}}}, "scheduler.type is None"),
            ({"scheduler": {"type": "OneCycle"}}, "scheduler.type is OneCycle, must be one of WarmupLR, WarmupDecayLR, WarmupCosineLR"),
            ({"scheduler": {"type": "WarmupLR"}}, "lr_scheduler_type of the training arguments is cosine"),
            ({"scheduler": {"type": "WarmupCosineLR", "params": {"warmup_max_lr": 1}}}, "warmup_max_lr is 1, the training arguments say 0.01"),
            ({"scheduler": {"type": "WarmupCosineLR", "params": {"warmup_ratio": 1}}}, "warmup_ratio"),
            ({"clip": 2.0}, "clip is set by the training arguments"),
            ({"betas": [0.9, 0.9]}, "betas is set by the training arguments"),
        ]:
            with self.assertRaisesRegex(libzero.Error, words):
                trainer_of(libzero.HFTrainer, make(), self.folder, libzero_config=config)
        for config, words in [({"optimizer": {"type": "Lion"}}, "type is lion"), ({"staage": 3}, "staage"), ({"zero_optimization": {"stage": 7}}, "stage")]:
            trainer = trainer_of(libzero.HFTrainer, make(), self.folder, libzero_config=config)
            with self.assertRaisesRegex(libzero.Error, words):
                trainer.train()
        for arguments, words in [({"fp16_full_eval": True}, "fp16_full_eval"), ({"auto_find_batch_size": True}, "auto_find_batch_size"),
                                 ({"torch_compile": True}, "torch_compile")]:
            with self.assertRaisesRegex(libzero.UnsupportedError, words):
                trainer_of(libzero.HFTrainer, make(), self.folder, arguments)
        trainer = trainer_of(libzero.HFTrainer, make(), self.folder, {"optim": "adafactor"})
        with self.assertRaisesRegex(libzero.UnsupportedError, "Adafactor"):
            trainer.train()

    def test_schedules_of_deepspeed(self):
        """The rates of each update, as DeepSpeed has them: the first two are the lowest."""
        auto = {"warmup_num_steps": "auto"}
        for kind, asked, params, rates in [
            ("WarmupLR", "linear", {**auto, "warmup_min_lr": "auto", "warmup_max_lr": "auto"}, [0, 0, 1e-2, 1e-2, 1e-2, 1e-2]),
            ("WarmupLR", "constant_with_warmup", {**auto, "warmup_type": "linear", "warmup_min_lr": 2e-3},
             [2e-3, 2e-3, 6e-3, 1e-2, 1e-2, 1e-2]),
            ("WarmupDecayLR", "linear", {**auto, "warmup_max_lr": "auto", "total_num_steps": "auto"}, [0, 0, 1e-2, 1e-2, 7.5e-3, 5e-3]),
            ("WarmupCosineLR", "cosine", {**auto, "total_num_steps": "auto", "cos_min_ratio": 0.5},
             [0, 0, 1e-2, 1e-2 * (0.5 + 0.25 * (1 + 0.5**0.5)), 7.5e-3, 1e-2 * (0.5 + 0.25 * (1 - 0.5**0.5))]),
        ]:
            arguments = {"max_steps": 6, "warmup_steps": 2, "lr_scheduler_type": asked, "eval_strategy": "no"}
            trainer = trainer_of(libzero.HFTrainer, make(), self.folder, arguments,
                                 libzero_config={"scheduler": {"type": kind, "params": params}})
            trainer.train()
            seen = [log["learning_rate"] for log in trainer.state.log_history if "learning_rate" in log]
            for found, rate in zip(seen, rates, strict=True):
                self.assertAlmostEqual(found, rate, 9, (kind, seen))
            self.assertAlmostEqual(trainer.engine.get_lr()[0], trainer.lr_scheduler.get_last_lr()[0], 12)
            trainer.engine.close()
        config = {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 7}}}
        trainer = trainer_of(libzero.HFTrainer, make(), self.folder, {"lr_scheduler_type": "linear"}, libzero_config=config)
        with self.assertRaisesRegex(libzero.ArgumentError, "warmup_num_steps is 7, the training arguments say 1"):
            trainer.train()

    def test_go_on_with_betas(self):
        """Those that a scheduler has moved are of the checkpoint."""
        arguments = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3, "eval_strategy": "no"}

        def start(folder, checkpoint=None):
            model = make()
            optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
            scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=6)
            trainer = trainer_of(libzero.HFTrainer, model, folder, arguments, optimizers=(optimizer, scheduler))
            trainer.train(resume_from_checkpoint=checkpoint)
            weights = trainer.engine.weights_xxh3()
            trainer.engine.close()
            return weights

        whole = start(self.folder)
        self.assertEqual(start(self.folder + "-again", os.path.join(self.folder, "checkpoint-3")), whole)

    def test_go_on(self):
        """From a checkpoint, at another stage, as if nothing had been; one of the plain Trainer's is refused."""
        arguments = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 2}
        whole = trainer_of(libzero.HFTrainer, make(), self.folder, arguments, libzero_config=STAGES[3])
        whole.train()
        kept = sorted((n for n in os.listdir(self.folder) if n.startswith("checkpoint")), key=lambda n: int(n.split("-")[1]))
        self.assertEqual(len(kept), 2)
        self.assertTrue(os.path.exists(os.path.join(self.folder, kept[0], "model.safetensors")))
        for stage in STAGES[2:]:
            trainer = trainer_of(libzero.HFTrainer, make(), self.folder + "-again", {**arguments, "save_strategy": "no"}, libzero_config=stage)
            trainer.train(resume_from_checkpoint=os.path.join(self.folder, kept[0]))
            self.assertEqual(numbers(trainer)[:-1], numbers(whole)[:-1])
            self.assertEqual(trainer.engine.weights_xxh3(), whole.engine.weights_xxh3())
            trainer.engine.close()
        trainer = trainer_of(libzero.HFTrainer, make(), self.folder)
        os.makedirs(self.folder + "-other", exist_ok=True)
        with self.assertRaisesRegex(libzero.ArgumentError, "HFTrainer has not written it"):
            trainer.train(resume_from_checkpoint=self.folder + "-other")

    @unittest.skipUnless(transformers.integrations.is_tensorboard_available(), "there is no tensorboard")
    def test_reported(self):
        """report_to: TensorBoard gets from rank 0 what the plain Trainer gives it."""
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        found = []
        for kind, folder, more in ((Trainer, self.folder + "-plain", {}), (libzero.HFTrainer, self.folder, {"libzero_config": STAGES[3]})):
            os.environ["TENSORBOARD_LOGGING_DIR"] = folder + "-events"
            trainer = trainer_of(kind, make(), folder, {"report_to": ["tensorboard"]}, **more)
            trainer.train()
            if kind is libzero.HFTrainer:
                trainer.engine.close()
            if RANK == 0:
                events = EventAccumulator(folder + "-events").Reload()
                found.append({tag: [s.value for s in events.Scalars(tag)] for tag in ("train/loss", "train/grad_norm", "eval/loss")})
        del os.environ["TENSORBOARD_LOGGING_DIR"]
        for tag, values in found[0].items() if RANK == 0 else ():
            self.assertEqual(len(values), len(found[1][tag]))
            for a, b in zip(values, found[1][tag]):
                self.assertLess(abs(a - b), 1e-5, tag)

    def test_best_and_again(self):
        """The best model is loaded in the end, and train() goes on with the engine that is there."""
        arguments = {"save_strategy": "epoch", "load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "greater_is_better": True}
        trainer = trainer_of(libzero.HFTrainer, make(), self.folder, arguments, libzero_config=STAGES[3])
        trainer.train()
        losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
        self.assertGreater(losses[0], losses[1])
        self.assertAlmostEqual(trainer.evaluate()["eval_loss"], losses[0], delta=1e-6)
        engine = trainer.engine
        trainer.train()
        self.assertIs(trainer.engine, engine)

    def test_predictions(self):
        """Of evaluation, with metrics; and of generate."""
        def metrics(found):
            return {"hits": float((found.predictions.argmax(-1) == found.label_ids).mean())}

        plain = trainer_of(Trainer, make(), self.folder, {"max_steps": 3}, compute_metrics=metrics)
        plain.train()
        expected = plain.predict(samples(5))
        tokens = torch.tensor([[3, 1, 4]])
        said = plain.model.generate(tokens, max_new_tokens=5, do_sample=False, pad_token_id=0)
        trainer = trainer_of(libzero.HFTrainer, make(), self.folder, {"max_steps": 3}, libzero_config=STAGES[3], compute_metrics=metrics)
        before = trainer.evaluate()["eval_loss"]  # without an engine
        trainer.train()
        self.assertLess(trainer.evaluate()["eval_loss"], before)
        found = trainer.predict(samples(5))
        self.assertEqual(found.predictions.shape, (5, 12, 61))
        self.assertLess(abs(found.predictions - expected.predictions).max(), 1e-5)
        self.assertAlmostEqual(found.metrics["test_hits"], expected.metrics["test_hits"])
        for context in (trainer.engine.gathered(), trainer.engine.in_forward()):
            with context, torch.no_grad():
                self.assertTrue(torch.equal(trainer.model.generate(tokens, max_new_tokens=5, do_sample=False, pad_token_id=0), said))

    def test_generated_in_evaluation(self):
        """With another Trainer; ranks generate sequences of different lengths."""
        class Both(libzero.HFTrainer, transformers.Seq2SeqTrainer):
            pass

        def metrics(found):
            return {"sum": float(found.predictions.clip(0).sum())}

        results = []
        for kind, more in [(transformers.Seq2SeqTrainer, {}), (Both, {"libzero_config": STAGES[3]})]:
            arguments = transformers.Seq2SeqTrainingArguments(
                output_dir=self.folder, **{**ARGUMENTS, "max_steps": 3, "learning_rate": 0.1}, predict_with_generate=True, generation_max_length=9)
            model = models.make("t5").model
            model.generation_config.eos_token_id, model.generation_config.pad_token_id = 7, 0
            trainer = kind(model=model, args=arguments, train_dataset=samples(), eval_dataset=samples(6), compute_metrics=metrics, **more)
            trainer.remove_callback(transformers.PrinterCallback)
            trainer.train()
            results.append(trainer.evaluate())
        self.assertGreater(results[0]["eval_sum"], 0)
        for key in ("eval_sum", "eval_loss"):
            self.assertAlmostEqual(results[0][key], results[1][key], delta=1e-5)

    def test_without_values(self):
        """A model that no rank holds is trained as one that was loaded."""
        transformers.TrainingArguments(self.folder, use_cpu=True).device  # begins torch.distributed
        folder = self.folder + "-from"
        make().save_pretrained(folder)  # rank 0 alone
        if N_RANKS > 1:
            torch.distributed.barrier()
        seen = []
        for config in ({"stage": 3}, {"stage": 3, "pretrained": folder}):
            if "pretrained" in config:
                with libzero.init():
                    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder))
                self.assertEqual({p.device.type for p in model.parameters()}, {"meta"})
            else:
                model = transformers.AutoModelForCausalLM.from_pretrained(folder)
            trainer = trainer_of(libzero.HFTrainer, model, self.folder, {"max_steps": 2}, libzero_config=config)
            trainer.train()
            seen.append(trainer.engine.weights_xxh3())
        self.assertEqual(seen[0], seen[1])


@unittest.skipUnless(transformers.utils.is_peft_available(), "there is no peft")
class Adapters(Case):
    """PEFT: what is frozen is sharded and stays, adapters are trained."""

    @staticmethod
    def adapted():
        import peft

        torch.manual_seed(2)
        return peft.get_peft_model(make(), peft.LoraConfig(
            task_type="CAUSAL_LM", r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"], modules_to_save=["norm"]))

    def merged(self, folder):
        import peft

        return peft.PeftModel.from_pretrained(make(), folder).merge_and_unload()

    def test_trainer(self):
        plain = self.plain(model=self.adapted())
        plain.save_model()
        expected = plain.model.merge_and_unload().state_dict()
        first = make().state_dict()
        self.assertGreater((expected["model.layers.0.self_attn.q_proj.weight"] - first["model.layers.0.self_attn.q_proj.weight"]).abs().max(), 1e-3)
        for stage in STAGES[::3]:
            for arguments in ({}, {"gradient_checkpointing": True}):
                trainer = trainer_of(libzero.HFTrainer, self.adapted(), self.folder, arguments, libzero_config=stage)
                trainer.train()
                self.assert_near(numbers(trainer), numbers(plain))
                trainer.save_model()
                whole = trainer.engine.state_dict()
                trainer.engine.close()
                self.assertEqual(sorted(n for n in os.listdir(self.folder) if "model" in n), ["adapter_model.safetensors"])
                self.assert_same_weights(self.merged(self.folder), expected)
                for name, value in whole.items():
                    name = name.removeprefix("base_model.model.").replace(".base_layer", "")
                    if name in first and "norm" not in name:
                        self.assertTrue(torch.equal(value, first[name]), name)

    def test_loop(self):
        """Without a Trainer. Frozen parameters take their share of a rank's memory, and no gradients and state."""
        model = self.adapted()
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
        batches = [torch.stack([s["input_ids"] for s in samples()[i : i + 4]]) for i in range(0, 20, 4)]
        expected = []
        for batch in batches:
            optimizer.zero_grad()
            loss = model(input_ids=batch, labels=batch).loss
            loss.backward()
            optimizer.step()
            expected.append(loss.item())
        for stage in STAGES:
            model, losses = self.adapted(), []
            n_frozen = sum(p.numel() for p in model.parameters() if not p.requires_grad)
            n_trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
            optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
            with libzero.initialize(model, optimizer=optimizer, **stage) as engine:
                for batch in batches:
                    own = batch[RANK * 4 // N_RANKS : (RANK + 1) * 4 // N_RANKS]
                    loss = engine(input_ids=own, labels=own).loss
                    engine.backward(loss)
                    engine.step()
                    losses.append(engine.average(loss.item()))
                tags = engine.memory()
            self.assertLess(max(abs(a - b) for a, b in zip(losses, expected, strict=True)), 1e-5)
            held = tags["host" if "offload_params" in stage else "device"]["tags"]
            n_shards = N_RANKS if stage["stage"] == 3 else 1
            padding = 1.5 if n_shards > 1 else 1.1
            self.assertGreaterEqual(held["parameters"]["live"], 4 * (n_frozen + n_trained) / n_shards)
            self.assertLess(held["parameters"]["live"], padding * 4 * (n_frozen + n_trained) / n_shards)
            state = tags["device"]["tags"]["optimizer_state"]["live"] + tags["host"]["tags"]["optimizer_state"]["live"]
            self.assertLess(state, 12 * (n_trained + n_frozen) / 4)


def adapter_kinds():
    """Ways to adapt a Llama: the configuration of PEFT, and what is done to the model then."""
    import peft

    def freeze(model):
        for name, p in model.named_parameters():
            if "lora_A" in name:
                p.requires_grad_(False)

    def add_second(model):
        model.add_adapter("second", peft.LoraConfig(**linear, bias="none"))
        model.set_adapter("second")

    of = {"task_type": "CAUSAL_LM"}
    linear = {**of, "r": 4, "target_modules": ["q_proj", "v_proj"]}
    prompt = {**of, "num_virtual_tokens": 3}
    return {
        "frozen A": (peft.LoraConfig(**linear), freeze),
        "an inactive adapter": (peft.LoraConfig(**linear), add_second),
        "DoRA, saved modules": (
            peft.LoraConfig(**linear, use_dora=True, modules_to_save=["norm", "lm_head"]), None),
        "embeddings": (
            peft.LoraConfig(**{**linear, "target_modules": ["q_proj", "embed_tokens"]}), None),
        "all biases": (peft.LoraConfig(**linear, bias="all"), None),
        "tokens": (peft.LoraConfig(**linear, trainable_token_indices=[1, 2]), None),
        "IA3": (peft.IA3Config(**of, target_modules=["k_proj", "down_proj"],
                               feedforward_modules=["down_proj"]), None),
        "VeRA": (peft.VeraConfig(**of, r=4, target_modules=["q_proj"]), None),
        "LoHa": (peft.LoHaConfig(**linear), None),
        "VB-LoRA": (peft.VBLoRAConfig(**linear, num_vectors=16, vector_length=4, topk=2,
                                      save_only_topk_weights=True), None),
        "prompt tuning": (peft.PromptTuningConfig(**prompt), None),
        "p-tuning": (peft.PromptEncoderConfig(**prompt, encoder_hidden_size=8), None),
        "prefix tuning": (
            peft.PrefixTuningConfig(**prompt, prefix_projection=True, encoder_hidden_size=8), None),
        "adaption prompt": (peft.AdaptionPromptConfig(**of, adapter_len=3, adapter_layers=2), None),
    }


@unittest.skipUnless(transformers.utils.is_peft_available(), "there is no peft")
class SavedAdapters(Case):
    """Files are those that PEFT and transformers write of a model with the same values."""

    @staticmethod
    def read(folder):
        from safetensors.torch import load_file

        files = glob.glob("**/*.safetensors", root_dir=folder, recursive=True)
        return {(file, name): value for file in files
                for name, value in load_file(os.path.join(folder, file)).items()}

    def check(self, make_model, folder, options, **keywords):
        """Returns the names of tensors."""
        model, tokens = make_model(), samples(2)[0]["input_ids"][None]
        with libzero.initialize(model, lr=0.1, **options) as engine:
            for _ in range(2):
                engine.backward(engine(input_ids=tokens, labels=tokens).loss)
                engine.step()
            engine.save_pretrained(f"{folder}-saved", **keywords)
            state = engine.state_dict()
        if RANK:
            return set()
        plain = make_model()
        plain.load_state_dict(state)
        plain.save_pretrained(f"{folder}-expected", **keywords)
        found, expected = self.read(f"{folder}-saved"), self.read(f"{folder}-expected")
        self.assertEqual(set(found), set(expected))
        self.assertGreater(len(expected), 0)
        for name, value in expected.items():
            self.assertEqual(found[name].dtype, value.dtype, name)
            self.assertTrue(torch.equal(found[name], value), name)
        return {name for _, name in expected}

    def test_kinds(self):
        import peft

        for kind in adapter_kinds():
            def adapted(kind=kind):
                torch.manual_seed(3)
                config, then = adapter_kinds()[kind]
                model = peft.get_peft_model(make(), config)
                if then is not None:
                    then(model)
                return model

            if N_RANKS > 1 and kind not in ("an inactive adapter", "embeddings", "prefix tuning"):
                continue
            for i, options in enumerate(STAGES[::3]):
                with self.subTest(kind=kind, **options):
                    self.check(adapted, f"{self.folder}-{kind}-{i}", options)

    def test_resized(self):
        """Embeddings with more rows than the published model has."""
        import peft
        from safetensors.torch import save_file

        base = f"{self.folder}-base-{RANK}"
        make().config.save_pretrained(base)
        save_file(make().state_dict(), f"{base}/model.safetensors", {"format": "pt"})

        def adapted(is_more=True):
            torch.manual_seed(3)
            model = transformers.AutoModelForCausalLM.from_pretrained(base)
            if is_more:
                model.resize_token_embeddings(64)
            return peft.get_peft_model(model, peft.LoraConfig(
                task_type="CAUSAL_LM", r=4, target_modules=["q_proj"]))

        embedding = "base_model.model.model.embed_tokens.weight"
        for is_more, choice, is_there in [(True, "auto", True), (True, False, False),
                                          (False, "auto", False), (False, True, True)]:
            names = self.check(
                functools.partial(adapted, is_more), f"{self.folder}-{is_more}-{choice}", STAGES[3],
                save_embedding_layers=choice)
            self.assertEqual(embedding in names, is_there and RANK == 0)

    def test_whole_models(self):
        """Tied weights are saved once, also in bf16; several files; an adapter that transformers
        has added."""
        import peft

        def with_adapter():
            model = make()
            torch.manual_seed(3)
            model.add_adapter(peft.LoraConfig(r=4, target_modules=["q_proj"]))
            return model

        def tied(dtype=torch.float32):
            return models.make("qwen3").model.to(dtype)

        for what, make_model, options, keywords in [
                ("tied", tied, {}, {}), ("files", make, {}, {"max_shard_size": "10KB"}),
                ("trained in bf16", tied, {"dtype": "bf16"}, {}), ("added", with_adapter, {}, {}),
                ("bf16", functools.partial(tied, torch.bfloat16), {"dtype": "bf16"}, {})]:
            with self.subTest(what):
                names = self.check(
                    make_model, f"{self.folder}-{what}", {**STAGES[3], **options}, **keywords)
                self.assertEqual("lm_head.weight" in names, what == "files" and RANK == 0)

    def test_refused(self):
        with libzero.initialize(torch.nn.Linear(2, 2)) as engine:
            with self.assertRaisesRegex(libzero.ArgumentError, "Linear has no save_pretrained"):
                engine.save_pretrained(self.folder)
        with libzero.initialize(make()) as engine:
            with self.assertRaisesRegex(libzero.UnsupportedError, "convert the adapter with PEFT"):
                engine.save_pretrained(
                    self.folder, path_initial_model_for_weight_conversion="first")

    def test_trainer(self):
        """save_model() and checkpoints of a Trainer."""
        import peft

        def adapted():
            torch.manual_seed(3)
            return peft.get_peft_model(make(), peft.PromptTuningConfig(
                task_type="CAUSAL_LM", num_virtual_tokens=3))

        arguments = {"max_steps": 2, "save_strategy": "steps", "save_steps": 2}
        trainer = trainer_of(libzero.HFTrainer, adapted(), self.folder, arguments,
                             libzero_config=STAGES[3])
        trainer.train()
        state = trainer.engine.state_dict()
        trainer.save_model()
        trainer.engine.close()
        if RANK == 0:
            plain = adapted()
            plain.load_state_dict(state)
            plain.save_pretrained(self.folder + "-expected")
            expected = self.read(self.folder + "-expected")
            for folder in (self.folder, os.path.join(self.folder, "checkpoint-2")):
                found = self.read(folder)
                self.assertLessEqual(set(expected), set(found))
                for name, value in expected.items():
                    self.assertTrue(torch.equal(found[name], value))


def run_script(path, arguments, output):
    """A script, as a process that torchrun has started."""
    with open(f"{output}{os.environ['RANK']}", "w") as file:
        sys.stdout, sys.argv = file, [path, *arguments]
        runpy.run_path(path, run_name="__main__")
        libzero.close()


@unittest.skipIf(N_RANKS > 1, "it starts its own ranks")
class Example(unittest.TestCase):
    """examples/python/trainer.py, started by torchrun's launcher, as copies of this process: it learns a text and saves what it has
    learned."""

    def test_trainer(self):
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        text = "the quick brown fox jumps over the lazy dog. " * 300
        folder = os.environ["ZR_TEST_FOLDER"] + "/example"
        os.makedirs(folder)
        with open(f"{folder}/text", "w") as file:
            file.write(text)
        with open(f"{folder}/ds_config.json", "w") as file:
            json.dump({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}, "bf16": {"enabled": "auto"},
                       "train_batch_size": "auto", "gradient_accumulation_steps": "auto", "gradient_clipping": "auto"}, file)
        models.save_tiny_llama(f"{folder}/model", text)
        script = os.path.join(os.path.dirname(__file__), "../../examples/python/trainer.py")
        config = LaunchConfig(1, 1, 2, run_id="none", rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0, start_method="fork")
        libzero.close()  # what copies have is not theirs
        elastic_launch(config, run_script)(script, [
            f"{folder}/model", f"{folder}/text", "--deepspeed", f"{folder}/ds_config.json", "--output_dir", f"{folder}/tuned", "--max_steps",
            "20", "--learning_rate", "0.01", "--gradient_accumulation_steps", "2", "--use_cpu", "--report_to", "none", "--save_strategy", "no",
            "--disable_tqdm", "true"], f"{folder}/said")
        with open(f"{folder}/said0") as file:
            said = float(file.read().split("held-out loss ")[1].split()[0])
        self.assertLess(said, 2.0)
        tuned = transformers.AutoModelForCausalLM.from_pretrained(f"{folder}/tuned")
        tokens = torch.tensor([transformers.AutoTokenizer.from_pretrained(f"{folder}/tuned")(text)["input_ids"][:32]])
        self.assertAlmostEqual(tuned(input_ids=tokens, labels=tokens).loss.item(), said, delta=0.2)


if __name__ == "__main__":
    of_ranks = ["Parity.test_stages", "Parity.test_one_micro_batch", "Use.test_go_on", "Use.test_without_values",
                "Use.test_generated_in_evaluation", "Adapters.test_loop", "SavedAdapters"]
    names = sys.argv[1:] or (of_ranks if N_RANKS > 1 else [])
    unittest.main(argv=[sys.argv[0], *names], verbosity=2 if RANK == 0 else 0)
