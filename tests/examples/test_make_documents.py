#!/usr/bin/env python3
"""examples/data/make_documents.py against transformers: tokens, and which have a loss; and what zero-train reads of it.

    python3 tests/examples/test_make_documents.py ZERO_TRAIN

Exits with 77 where Python has no tokenizers, transformers or jinja2 (tests/ref/requirements.txt).
"""

import array
import json
import os
import random
import subprocess
import sys
import tempfile

try:
    import jinja2  # noqa: F401
    import tokenizers
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

SCRIPT = os.path.join(os.path.dirname(__file__), "..", "..", "examples", "data", "make_documents.py")
WORDS = "the quick brown fox jumps over a lazy dog while 7 grüne Äpfel fall".split()
GENERATION = ("{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
              "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}<|im_end|>"
              "{% endgeneration %}{{ '\n' }}{% else %}{{ message['content'] }}<|im_end|>\n{% endif %}{% endfor %}"
              "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
# The same without the marks, as most models have it; one that writes thoughts in the last turn alone; and one that
# forgets what came before.
CHATML = GENERATION.replace("{% generation %}", "").replace("{% endgeneration %}", "")
THINKS = CHATML.replace("{{ message['content'] }}", "{% if loop.last %}<think>{% endif %}{{ message['content'] }}", 1)
FORGETS = "{% for message in messages[-1:] %}" + CHATML.split("%}", 1)[1]


def make_model(folder, template):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    special = ["<|end|>", "<|im_start|>", "<|im_end|>"]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, special_tokens=special,
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([" ".join(WORDS)] * 20, trainer)
    os.makedirs(folder)
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": {"__type": "AddedToken", "content": "<|end|>"},
                   "chat_template": template}, file)


def make_text(dice, most):
    return " ".join(dice.choice(WORDS) for _ in range(dice.randint(1, most)))


def make_conversation(dice):
    messages = [{"role": "system", "content": make_text(dice, 5)}] if dice.random() < 0.5 else []
    for _ in range(dice.randint(1, 3)):
        messages.append({"role": "user", "content": make_text(dice, 9)})
        messages.append({"role": "assistant", "content": make_text(dice, 9) + dice.choice(["", "\n", "  ?"])})
    return messages


def run(arguments, code=0):
    result = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True)
    assert result.returncode == code, (arguments, result.stdout, result.stderr)
    return result.stdout + result.stderr


def read(path, code="I"):
    with open(path, "rb") as file:
        header = array.array("I", file.read(1024))
        elements = array.array(code, file.read())
    assert header[2] == len(elements)
    return header[0], elements.tolist()


def read_documents(path):
    magic, elements = read(path)
    assert magic == 20261123
    documents = []
    for element in elements:
        if element & 1 << 30:
            documents.append(([], []))
        documents[-1][0].append(element & (1 << 30) - 1)
        documents[-1][1].append(not element & 1 << 31)
    return documents


def write_jsonl(path, entries):
    with open(path, "w", encoding="utf-8") as file:
        for entry in entries:
            file.write(json.dumps(entry) + "\n\n")


def check_conversations(folder, conversations):
    """Each template, with transformers' own mask."""
    theirs = transformers.AutoTokenizer.from_pretrained(f"{folder}/marks")
    write_jsonl(f"{folder}/chat.jsonl", [{"messages": messages} for messages in conversations])
    for model in ("marks", "chatml"):
        run(["--model", f"{folder}/{model}", "--out", f"{folder}/chat.bin", f"{folder}/chat.jsonl"])
        documents = read_documents(f"{folder}/chat.bin")
        assert len(documents) == len(conversations)
        for (tokens, has_loss), messages in zip(documents, conversations):
            expected = theirs.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
            assert tokens == expected["input_ids"], messages
            assert has_loss == [bool(x) for x in expected["assistant_masks"]], messages
    check_turns(folder, conversations)
    said = run(["--model", f"{folder}/forgets", "--out", f"{folder}/no.bin", f"{folder}/chat.jsonl"], 1)
    assert "chat.jsonl:1: the chat template does not go on from what came before" in said, said
    assert not os.path.exists(f"{folder}/no.bin")


def check_turns(folder, conversations):
    """Of a template that writes the last turn otherwise, each turn is what the model would have had to say."""
    theirs = transformers.AutoTokenizer.from_pretrained(f"{folder}/thinks")
    run(["--model", f"{folder}/thinks", "--out", f"{folder}/chat.bin", f"{folder}/chat.jsonl"])
    documents, n_split = iter(read_documents(f"{folder}/chat.bin")), 0
    for messages in conversations:
        turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        n_split += len(turns) > 1
        for i in turns:
            tokens, has_loss = next(documents)
            prompt = theirs.apply_chat_template(messages[:i], add_generation_prompt=True, tokenize=False)
            whole = theirs.apply_chat_template(messages[:i + 1], tokenize=False)
            assert theirs.decode(tokens) == whole
            said = theirs.decode([token for token, has in zip(tokens, has_loss) if has])
            assert said == whole[len(prompt):].rstrip() and "<think>" in said, (said, whole)
    assert next(documents, None) is None and n_split > 10


def check_texts(folder, texts):
    theirs = transformers.AutoTokenizer.from_pretrained(f"{folder}/chatml")
    end = theirs.convert_tokens_to_ids("<|end|>")
    write_jsonl(f"{folder}/texts.jsonl", [{"text": text} for text in texts[1:]])
    with open(f"{folder}/first.txt", "w", encoding="utf-8") as file:
        file.write(texts[0])
    expected = [theirs(text)["input_ids"] + [end] for text in texts]
    files = [f"{folder}/first.txt", f"{folder}/texts.jsonl"]
    model = ["--model", f"{folder}/chatml", "--out", f"{folder}/texts.bin"]
    run([*model, *files])
    assert read_documents(f"{folder}/texts.bin") == [(ids, [True] * len(ids)) for ids in expected]
    for form, magic, code in (("gpt2", 20240520, "H"), ("llama", 20240801, "I")):
        run([*model, "--format", form, *files])
        assert read(f"{folder}/texts.bin", code) == (magic, sum(expected, []))
    said = run([*model, "--format", "llama", f"{folder}/chat.jsonl"], 1)
    assert "takes texts alone" in said, said


def check_packing(folder, zero_train):
    """Packed sequences are fuller, hold the same documents, and are counted as zero-train counts them."""
    files = [f"{folder}/texts.jsonl", f"{folder}/chat.jsonl"]
    counts = {}
    for name, more in (("plain", []), ("packed", ["--pack", "256"])):
        said = run(["--model", f"{folder}/chatml", "--out", f"{folder}/{name}.bin", *more, *files])
        result = subprocess.run(
            [zero_train, "--data", f"{folder}/{name}.bin", "--model", "layers=1,channels=16,heads=2,seq=256,vocab=512",
             "--steps", "2", "--micro-batch", "2", "--json", "--quiet"], capture_output=True, text=True, check=True)
        data = json.loads(result.stdout)["data"]
        assert f"{data['tokens']} tokens, {data['targets']} with a loss" in said, (said, data)
        counts[name] = data["windows"]
    assert f"{counts['packed']} sequences of 256, " in said, (said, counts)
    documents = [read_documents(f"{folder}/{name}.bin") for name in counts]
    assert sorted(documents[0]) == sorted(documents[1]) and documents[0] != documents[1]
    print(f"{counts['plain']} sequences, packed {counts['packed']}: {said.strip()}")
    least = -(-sum(len(tokens) for tokens, _ in documents[0]) // 256)
    assert counts["packed"] < counts["plain"] and counts["packed"] <= 1.05 * least


def check_refusals(folder):
    broken = f"{folder}/broken.jsonl"
    for line, said in (("{", "broken.jsonl:2: "), ("{}", 'an object with "text" or "messages"'),
                       ('{"text": 3}', 'an object with "text"')):
        with open(broken, "w", encoding="utf-8") as file:
            file.write('{"text": "a"}\n' + line + "\n")
        assert said in run(["--model", f"{folder}/chatml", "--out", f"{folder}/no.bin", broken], 1)
    assert "no tokenizer.json" in run(["--model", folder, "--out", f"{folder}/no.bin", broken], 1)


def main():
    dice = random.Random(7)
    with tempfile.TemporaryDirectory() as folder:
        for name, template in (("marks", GENERATION), ("chatml", CHATML), ("thinks", THINKS),
                               ("forgets", FORGETS)):
            make_model(f"{folder}/{name}", template)
        check_conversations(folder, [make_conversation(dice) for _ in range(60)])
        check_texts(folder, [make_text(dice, 60) for _ in range(80)])
        check_packing(folder, sys.argv[1])
        check_refusals(folder)


if __name__ == "__main__":
    main()
