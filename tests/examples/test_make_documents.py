#!/usr/bin/env python3
"""examples/data/make_documents.py against transformers: tokens, and which have a loss; and what
zero-train reads of it.

    python3 tests/examples/test_make_documents.py ZERO_TRAIN

Exits with 77 where Python has no tokenizers, transformers or jinja2 (tests/ref/requirements.txt).
"""

import array
import gzip
import importlib.util
import json
import os
import random
import re
import shutil
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

SCRIPT = os.path.join(
    os.path.dirname(__file__), "..", "..", "examples", "data", "make_documents.py"
)
WORDS = "the quick brown fox jumps over a lazy dog while 7 grüne Äpfel fall".split()


def unmarked(template):
    return re.sub(r"{% (end)?generation %}", "", template)


GENERATION = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}<|im_end|>"
    "{% endgeneration %}{{ '\n' }}{% else %}{{ message['content'] }}<|im_end|>\n{% endif %}{% "
    "endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# The same without the marks, as most models have it; one that writes thoughts in the last turn
# alone; and one that forgets what came before.
CHATML = unmarked(GENERATION)
THINKS = CHATML.replace(
    "{{ message['content'] }}", "{% if loop.last %}<think>{% endif %}{{ message['content'] }}", 1
)
FORGETS = "{% for message in messages[-1:] %}" + CHATML.split("%}", 1)[1]


def mark(said):
    """The template of what is said, marked as the assistant's where it is."""
    return (
        "{% if m['role'] == 'assistant' %}{% generation %}"
        + said
        + "{% endgeneration %}{% else %}"
        + said
        + "{% endif %}"
    )


# Shapes of published templates, with marks: headers and an end of turn; a text in brackets, with an
# end token; a model's own name of the role.
SHAPES = {
    "headers": (
        "{{ bos_token }}{% for m in messages %}<|start|>{{ m['role'] }}<|stop|>\n\n"
        + mark("{{ m['content'] | trim }}<|im_end|>")
        + "{% endfor %}{% if add_generation_prompt %}<|start|>assistant<|stop|>\n\n{% endif %}"
    ),
    "brackets": (
        "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set first = "
        "messages[0]['content'] + '\n\n' %}"
        "{% set rest = messages[1:] %}{% else %}{% set first = '' %}{% set rest = messages %}{% "
        "endif %}"
        "{% for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}{% if m['role'] == 'user' "
        "%}[INST] "
        "{{ (first if loop.first else '') + m['content'] }} [/INST]{% else %}"
        "{% generation %} {{ m['content'] }}{{ eos_token }}{% endgeneration %}{% endif %}{% "
        "endfor %}"
    ),
    "turns": (
        "{{ bos_token }}{% for m in messages %}{% set role = 'model' if m['role'] == "
        "'assistant' else m['role'] %}"
        "<|start|>{{ role }}\n"
        + mark("{{ m['content'] | trim }}<|stop|>")
        + "{{ '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}<|start|>model\n{% endif %}"
    ),
}
# The end of a turn stands in front of the next one; or the marker of the next one is the end; or
# there are words alone.
LATE = (
    "{% for m in messages %}{% if not loop.first %}<|im_end|>\n{% endif %}<|im_start|>{{ "
    "m['role'] }}\n"
    "{{ m['content'] }}{% endfor %}{% if add_generation_prompt "
    "%}<|im_end|>\n<|im_start|>assistant\n{% endif %}"
)
MARKER = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
SPOKEN = (
    "{% for m in messages %}{{ m['role'] | upper }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT: {% endif %}"
)
# A token ends the conversation; content is parts alone; thoughts of earlier turns are left out, and
# no turn is ended.
CLOSED = CHATML + "{% if not add_generation_prompt %}{{ eos_token }}{% endif %}"
PARTS = CHATML.replace(
    "{{ message['content'] }}", "{% for part in message['content'] %}{{ part.text }}{% endfor %}"
)
THOUGHTS = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] if loop.index > messages | "
    "length - 1 else "
    "m['content'].split('7')[-1] "
    "}}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# One that asks for thoughts, and leaves them out of what was said.
ASKS = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'].split('</think>')[-1] "
    "}}<|stop|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
)
# One that asks whether there is a content at all, and writes no calls if there is.
ASKS_NONE = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{% if m['content'] is none %}{% for call "
    "in m.tool_calls %}"
    "<|call|>{{ call.function.name }} {{ call.function.arguments | tojson }}{% endfor %}{% else %}"
    "{{ m['content'] }}{% endif %}<|stop|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
# One for calls of tools.
CALLS = (
    "{% if tools %}<|start|>tools{% for tool in tools %}\n{{ tool | tojson }}{% endfor "
    "%}<|stop|>{% endif %}"
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}{% for call in "
    "m.tool_calls or [] %}"
    "<|call|>{{ call.function.name }} "
    "{{ call.function.arguments | tojson }}{% endfor %}<|stop|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def make_model(folder, template):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    special = [
        "<|end|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|start|>",
        "<|stop|>",
        "<|begin|>",
        "<|call|>",
        "<|user|>",
        "<|assistant|>",
        "<|system|>",
    ]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=special,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([" ".join(WORDS)] * 20, trainer)
    os.makedirs(folder)
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": {"__type": "AddedToken", "content": "<|end|>"},
                "bos_token": "<|begin|>",
                "chat_template": template,
            },
            file,
        )


def make_text(dice, most):
    return " ".join(dice.choice(WORDS) for _ in range(dice.randint(1, most)))


def make_conversation(dice):
    messages = [{"role": "system", "content": make_text(dice, 5)}] if dice.random() < 0.5 else []
    for _ in range(dice.randint(1, 3)):
        messages.append({"role": "user", "content": make_text(dice, 9)})
        messages.append(
            {"role": "assistant", "content": make_text(dice, 9) + dice.choice(["", "\n", "  ?"])}
        )
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


def check_masks(folder, conversations, shape):
    """A template, with marks and without, with transformers' own mask."""
    theirs = transformers.AutoTokenizer.from_pretrained(f"{folder}/{shape}-marked")
    for model in (f"{shape}-marked", shape):
        run(["--model", f"{folder}/{model}", "--out", f"{folder}/chat.bin", f"{folder}/chat.jsonl"])
        documents = read_documents(f"{folder}/chat.bin")
        assert len(documents) == len(conversations)
        for (tokens, has_loss), messages in zip(documents, conversations):
            expected = theirs.apply_chat_template(
                messages, return_dict=True, return_assistant_tokens_mask=True
            )
            assert tokens == expected["input_ids"], messages
            assert has_loss == [bool(x) for x in expected["assistant_masks"]], messages


def check_conversations(folder, conversations):
    write_jsonl(f"{folder}/chat.jsonl", [{"messages": messages} for messages in conversations])
    for shape in ("chatml", *SHAPES):
        check_masks(folder, conversations, shape)
    check_turns(folder, conversations)
    said = run(
        ["--model", f"{folder}/forgets", "--out", f"{folder}/no.bin", f"{folder}/chat.jsonl"], 2
    )
    assert "chat.jsonl:1: the chat template does not go on from what came before" in said, said
    assert not os.path.exists(f"{folder}/no.bin")


def check_turns(folder, conversations):
    """Of a template that writes the last turn otherwise, each turn is what the model would have
    had to say."""
    theirs = transformers.AutoTokenizer.from_pretrained(f"{folder}/thinks")
    run(["--model", f"{folder}/thinks", "--out", f"{folder}/chat.bin", f"{folder}/chat.jsonl"])
    documents, n_split = iter(read_documents(f"{folder}/chat.bin")), 0
    for messages in conversations:
        turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        n_split += len(turns) > 1
        for i in turns:
            tokens, has_loss = next(documents)
            prompt = theirs.apply_chat_template(
                messages[:i], add_generation_prompt=True, tokenize=False
            )
            whole = theirs.apply_chat_template(messages[: i + 1], tokenize=False)
            assert theirs.decode(tokens) == whole
            said = theirs.decode([token for token, has in zip(tokens, has_loss) if has])
            assert said == whole[len(prompt) :].rstrip() and "<think>" in said, (said, whole)
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
    said = run([*model, "--format", "llama", f"{folder}/chat.jsonl"], 2)
    assert "takes texts alone" in said, said


def check_packing(folder, zero_train):
    """Packed sequences are fuller, hold the same documents, and are counted as zero-train counts
    them."""
    files = [f"{folder}/texts.jsonl", f"{folder}/chat.jsonl"]
    counts = {}
    for name, more in (("plain", []), ("packed", ["--pack", "256"])):
        said = run(["--model", f"{folder}/chatml", "--out", f"{folder}/{name}.bin", *more, *files])
        result = subprocess.run(
            [
                zero_train,
                "--data",
                f"{folder}/{name}.bin",
                "--model",
                "layers=1,channels=16,heads=2,seq=256,vocab=512",
                "--steps",
                "2",
                "--micro-batch",
                "2",
                "--json",
                "--quiet",
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        data = json.loads(result.stdout)["data"]
        assert f"{data['tokens']} tokens, {data['targets']} with a loss" in said, (said, data)
        counts[name] = data["windows"]
    assert f"{counts['packed']} sequences of 256, " in said, (said, counts)
    documents = [read_documents(f"{folder}/{name}.bin") for name in counts]
    assert sorted(documents[0]) == sorted(documents[1]) and documents[0] != documents[1]
    print(f"{counts['plain']} sequences, packed {counts['packed']}: {said.strip()}")
    least = -(-sum(len(tokens) for tokens, _ in documents[0]) // 256)
    assert counts["packed"] < counts["plain"] and counts["packed"] <= 1.05 * least


def make(folder, model, entries, *more):
    """What is said of entries, the texts of their documents, and what of each has a loss."""
    theirs = transformers.AutoTokenizer.from_pretrained(f"{folder}/{model}")
    write_jsonl(f"{folder}/made.jsonl", entries)
    said = run(
        [
            "--model",
            f"{folder}/{model}",
            "--out",
            f"{folder}/made.bin",
            *more,
            f"{folder}/made.jsonl",
        ]
    )
    documents = read_documents(f"{folder}/made.bin")
    return (
        said,
        [theirs.decode(tokens) for tokens, _ in documents],
        [
            theirs.decode([token for token, has in zip(tokens, has_loss) if has])
            for tokens, has_loss in documents
        ],
    )


def turns(*texts):
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


def check_ends(folder):
    """The model learns to end each turn, also where the template has no end of the last one, and
    no others."""
    chat = [
        {"messages": turns("a dog", "jumps", "a fox", "falls")},
        {"messages": turns("a dog", "jumps")},
        {"messages": turns("a dog", "jumps", "a fox")},
    ]
    for model, ends, last in (
        ("late", "<|im_end|>", "<|im_end|>"),
        ("marker", "<|user|>", "<|user|>"),
        ("spoken", "\nU", "<|end|>"),
        ("asks", "<|stop|>", "<|stop|>"),
    ):
        theirs = transformers.AutoTokenizer.from_pretrained(f"{folder}/{model}")
        _, texts, learned = make(folder, model, chat)
        learned = [said.replace(" ", "") for said in learned]  # a token may begin with the prompt's
        assert learned == [f"jumps{ends}falls{last}", f"jumps{last}", f"jumps{ends}"], (
            model,
            learned,
        )
        for text, entry in zip(texts, chat):
            expected = theirs.apply_chat_template(entry["messages"], tokenize=False).rstrip()
            assert text.startswith(expected) and text[len(expected) :].strip() in ("", last), (
                text,
                expected,
            )


def check_forms(folder):
    """Documents stay whole where a token ends the conversation, and have texts where parts are
    asked for."""
    chat = [{"messages": turns("a dog", "jumps", "a fox", "falls")}]
    _, texts, learned = make(folder, "closed", chat)
    assert learned == ["jumps<|im_end|>falls<|im_end|>\n<|end|>"], learned
    theirs = transformers.AutoTokenizer.from_pretrained(f"{folder}/closed")
    assert texts == [theirs.apply_chat_template(chat[0]["messages"], tokenize=False)]
    assert make(folder, "parts", chat)[1:] == make(folder, "chatml", chat)[1:]
    _, texts, learned = make(
        folder, "thoughts", [{"messages": turns("a dog", "fall7jumps", "a fox", "dog7falls")}]
    )
    assert learned == ["fall7jumps<|user|>", "dog7falls<|user|>"], (texts, learned)


def check_calls(folder):
    """Tools are written as transformers writes them, calls without a text as well; JSON in a
    string once."""
    theirs = transformers.AutoTokenizer.from_pretrained(f"{folder}/calls")
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]

    def chat(arguments, **content):
        call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
        return [
            *turns("a dog"),
            {"role": "assistant", "tool_calls": [call], **content},
            {"role": "tool", "content": "7"},
            {"role": "assistant", "content": "a fox"},
        ]

    expected = theirs.apply_chat_template(
        chat({"x": "None"}, content=""), tools=tools, tokenize=False
    )
    assert '{"x": "None"}' in expected and '"parameters"' in expected
    called = '<|call|>f {"x": "None"}<|stop|>a fox<|stop|>'
    entries = [
        {"messages": chat(arguments, **content), "tools": given}
        for arguments in ({"x": "None"}, '{"x": "None"}')
        for content in ({}, {"content": None}, {"content": ""})
        for given in (tools, json.dumps(tools))
    ]
    _, texts, learned = make(folder, "calls", entries)
    assert texts == [expected] * 12 and learned == [called] * 12, (texts, learned)
    make_model(
        f"{folder}/named",
        [{"name": "default", "template": CHATML}, {"name": "tool_use", "template": CALLS}],
    )
    _, texts, learned = make(folder, "named", [*entries[:1], {"messages": turns("a dog", "jumps")}])
    assert (texts[0], learned) == (expected, [called, "jumps<|im_end|>"]), (texts, learned)
    make_model(f"{folder}/none", ASKS_NONE)
    _, texts, learned = make(
        folder,
        "none",
        [{"messages": chat({"x": "None"}, **content)} for content in ({}, {"content": None})],
    )
    assert learned == [called] * 2, (texts, learned)
    call = {"from": "function_call", "value": '{"name": "f", "arguments": {"x": "None"}}'}
    shared = [
        {"from": "human", "value": "a dog"},
        call,
        {"from": "observation", "value": "7"},
        {"from": "gpt", "value": "a fox"},
    ]
    wrapped = CALLS.replace("call.function.", "call.")
    make_model(f"{folder}/wrapped", wrapped)
    _, texts, learned = make(folder, "wrapped", [{"conversations": shared, "tools": tools}])
    assert (texts, learned) == ([expected], [called])


def check_layouts(folder):
    """Layouts of published data, and which turns they want learned."""
    chat = turns("a dog", "jumps", "a fox", "falls")
    parts = [
        {
            **message,
            "content": [
                {"type": "text", "text": message["content"][:3]},
                {"type": "text", "text": message["content"][3:]},
            ],
        }
        for message in chat
    ]
    shared = [
        {"from": ("human", "gpt")[i % 2], "value": message["content"]}
        for i, message in enumerate(chat)
    ]
    system = [{"role": "system", "content": "over"}]
    plain, told = {"messages": chat}, {"messages": system + turns("a dog\n\n7", "jumps")}
    both, first, second = "jumps<|im_end|>falls<|im_end|>", "jumps<|im_end|>", "falls<|im_end|>"
    cases = [  # an entry, one that it is the same as, and what has a loss
        ({"messages": parts}, plain, both),
        ({"conversations": shared}, plain, both),
        ({"conversations": shared, "system": "over"}, {"messages": system + chat}, both),
        (
            {
                "messages": [{**message, "name": None, "tool_calls": None} for message in chat],
                "text": None,
            },
            plain,
            both,
        ),
        (
            {"messages": [chat[0], {**chat[1], "weight": 0}, chat[2], {**chat[3], "weight": 1}]},
            plain,
            second,
        ),
        (
            {
                "messages": [
                    chat[0],
                    {**chat[1], "train": True},
                    {**chat[2], "train": False},
                    {**chat[3], "train": False},
                ]
            },
            plain,
            first,
        ),
        (
            {"messages": [chat[0], {**chat[1], "weight": 0}, chat[2], {**chat[3], "weight": 0.0}]},
            plain,
            "",
        ),
        *(
            (
                {"messages": [chat[0], {**chat[1], key: no}, chat[2], {**chat[3], key: yes}]},
                plain,
                second,
            )
            for key in ("loss", "trainable", "loss_weight", "loss_mask", "training")
            for no, yes in ((False, True), (0, 1))
        ),
        ({"prompt": chat[:3], "completion": chat[3:]}, plain, second),
        ({"instruction": "a dog", "input": "7", "output": "jumps", "system": "over"}, told, first),
        (
            {"instruction": "a dog", "input": "7", "output": "jumps", "system": "over", "text": ""},
            told,
            first,
        ),
        (
            {
                "instruction": "a fox",
                "input": "",
                "output": "falls",
                "history": [["a dog", "jumps"]],
            },
            plain,
            both,
        ),
        (
            {"messages": [{**chat[0], "role": "human"}, {**chat[1], "role": "model"}, *chat[2:]]},
            plain,
            both,
        ),
    ]
    for model in ("chatml", "chatml-marked"):
        said, texts, learned = make(folder, model, [entry for entry, _, _ in cases])
        _, same, _ = make(folder, model, [entry for _, entry, _ in cases])
        assert (texts, learned) == (same, [has for _, _, has in cases]), (texts, same, learned)
        assert "note: 1 entries without a loss" in said, said
    named = {"messages": [chat[0], {**chat[1], "role": "model"}]}
    assert make(folder, "turns", [named])[1:] == make(folder, "turns", [{"messages": chat[:2]}])[1:]
    told = {"prompt": "a dog", "completion": " jumps"}
    said, texts, learned = make(
        folder, "chatml", [{**told, "id": 7}, {"messages": [{**chat[0], "name": "x"}, chat[1]]}]
    )
    assert texts[0] == "a dog jumps<|end|>" and learned[0] == " jumps<|end|>", (texts, learned)
    assert 'note: 1 entries with "id", which is not read' in said, said
    assert 'note: 1 messages with "name", which the chat template does not write' in said, said
    told = {"instruction": "a dog", "input": "", "output": "jumps", "text": "x"}
    said, _, learned = make(folder, "chatml", [told])
    assert learned == [first] and 'note: 1 entries with "text", which is not read' in said, said


def check_files(folder):
    """Each kind of file gives the same documents as lines of JSON, and none becomes a text
    unasked."""
    chat = [{"messages": turns("a dog", "jumps")}, {"messages": turns("grüne Äpfel", "fall")}]
    told = [
        {"instruction": "a dog", "output": "jumps"},
        {"instruction": "grüne Äpfel", "output": "fall"},
    ]
    _, expected, _ = make(folder, "chatml", chat)
    theirs = transformers.AutoTokenizer.from_pretrained(f"{folder}/chatml")
    lines = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in chat)
    table = "".join(f"{entry['instruction']},{entry['output']}\n" for entry in told)

    def texts_of(name, content, *more, code=0):
        with open(f"{folder}/{name}", "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
        said = run(
            [
                "--model",
                f"{folder}/chatml",
                "--out",
                f"{folder}/files.bin",
                *more,
                f"{folder}/{name}",
            ],
            code,
        )
        return (
            said
            if code
            else [theirs.decode(tokens) for tokens, _ in read_documents(f"{folder}/files.bin")]
        )

    good = [
        ("a.JSONL", lines),
        ("b.json", json.dumps(chat, indent=2)),
        ("c.json", lines),
        ("d.json", json.dumps(told)),
        ("e.jsonl.gz", gzip.compress(lines.encode())),
        ("f.jsonl", gzip.compress(lines.encode())),
        ("g.jsonl", b"\xef\xbb\xbf" + lines.encode()),
        ("h.jsonl", lines.replace("\n", "\r\n")),
        ("i.csv", "instruction,output\n" + table),
        ("j.tsv", ("instruction,output\n" + table).replace(",", "\t")),
    ]
    for name, content in good:
        assert texts_of(name, content) == expected, name
    assert texts_of("k", lines, "--as", "jsonl") == expected
    assert texts_of("l.jsonl", lines, "--as", "text") == [lines + "<|end|>"]
    assert texts_of("m.txt.gz", gzip.compress(b"a dog")) == ["a dog<|end|>"]
    refused = [
        (
            "n.txt",
            lines,
            "n.txt:1: the file is JSON; name it .jsonl, or use --as jsonl, or --as text",
        ),
        ("o", json.dumps(chat, indent=2), "o:1: the file is JSON; name it .json"),
        (
            "p.txt",
            b"a\nb\n" + "Äpfel".encode("latin1"),
            "p.txt:3: byte 0xc4 is not UTF-8; if the file is in Latin-1",
        ),
        (
            "q.jsonl",
            lines.encode() + '{"text": "Ä"}\n'.encode("latin1"),
            "q.jsonl:3: byte 0xc4 is not UTF-8",
        ),
        ("r.jsonl.gz", gzip.compress(lines.encode())[:-9], "r.jsonl.gz: cannot be decompressed"),
        (
            "s.json",
            '[\n{"text": "a"}\n{"text": "b"}]',
            "s.json:3: not JSON: Expecting ',' delimiter at column 1",
        ),
        ("t.json", '[{"text": "a"},\n', "t.json:2: not JSON"),
        ("u.csv", "text\na,b\n", "u.csv:2: the row has not as many cells"),
        ("v.csv", "question,answer\na,b\n", 'keys of this one: "question", "answer"'),
        ("va.csv", "text,a,text\na,b,c\n", 'va.csv:1: "text": there more than once'),
        (
            "vb.json",
            '[{"text": "a", "b": ' + "7" * 5000 + '},\n{"text": "\\udc00"},\n{"text": "a"}]',
            'vb.json:2: "text": \\udc00',
        ),
        ("vb.json", '[{"text": "a"},\n{"a": {"b": 1, "b": 2}}, {}]', "2 of 3 entries are refused"),
        ("w.txt", b"a\0b", "w.txt:1: the file is binary"),
        ("x.txt", b"PK\3\4....", "x.txt: the file is a zip archive"),
        (
            "y",
            b"version https://git-lfs.github.com/spec/v1\n",
            "y: the file is a pointer of git-lfs",
        ),
        ("z.jsonl", "", "z.jsonl: the file has no entry"),
        ("z.jsonl", "\n", "make_documents.py: 1 of 1 files have no entry, so nothing is written"),
        ("z.json", "[]", "z.json: the file has no entry"),
        ("z.csv", "text\n", "z.csv: the file has no entry"),
        ("z.txt", "", "z.txt: the file has no entry"),
        ("za", b"PAR1", "za: the file is Parquet"),
        ("zb.jsonl.zst", b"\x28\xb5\x2f\xfd", "compressed by zstd"),
        ("zc.txt", b"\xff\xfea\0", "UTF-16"),
    ]
    piped = subprocess.run(
        [
            "bash",
            "-c",
            'exec "$@" <(cat "$0")',
            f"{folder}/m.txt.gz",
            sys.executable,
            SCRIPT,
            "--model",
            f"{folder}/chatml",
            "--out",
            f"{folder}/files.bin",
        ],
        capture_output=True,
        check=True,
    )
    assert b"1 documents" in piped.stdout
    assert [theirs.decode(tokens) for tokens, _ in read_documents(f"{folder}/files.bin")] == [
        "a dog<|end|>"
    ]
    for name, content, said in refused:
        assert said in texts_of(name, content, code=2), (
            name,
            said,
            texts_of(name, content, code=2),
        )
    assert not [name for name in os.listdir(folder) if name.endswith(".part")]
    assert "no.jsonl: cannot be read: No such file" in run(
        ["--model", f"{folder}/chatml", "--out", f"{folder}/no.bin", f"{folder}/no.jsonl"], 2
    )
    check_parquet(folder, chat, expected, texts_of)


def check_parquet(folder, chat, expected, texts_of):
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        assert "a.parquet: Parquet needs pyarrow: pip install pyarrow" in texts_of(
            "a.parquet", b"PAR1", code=2
        )
        return
    rows = [
        {**chat[0], "id": None},
        {"messages": [{**message, "weight": None} for message in chat[1]["messages"]]},
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), f"{folder}/rows")
    with open(f"{folder}/rows", "rb") as file:
        content = file.read()
    assert texts_of("a.parquet", content) == expected
    twice = pyarrow.Table.from_arrays([pyarrow.array(["a"])] * 2, ["text", "text"])
    pyarrow.parquet.write_table(twice, f"{folder}/rows")
    with open(f"{folder}/rows", "rb") as file:
        assert '"text": there more than once' in texts_of("c.parquet", file.read(), code=2)
    assert "b.parquet: not a whole Parquet file" in texts_of("b.parquet", content[:-9], code=2)


def check_refusals(folder):
    """Each with its line and cause; the others are written if that is asked for."""

    def chat(**changes):
        return json.dumps({"messages": [turns("a dog")[0], {**turns("", "jumps")[1], **changes}]})

    def entry(**keys):
        return json.dumps({"messages": turns("a dog", "jumps"), **keys})

    cases = [
        ("{", "not JSON: "),
        ("{}", 'an object with "text" or "messages"'),
        ('{"text": 3}', 'an object with "text"'),
        ("[]", "an entry must be an object, not a list"),
        ('{"a": 1}', 'keys of this one: "a"'),
        ('{"messages": []}', "the list is empty"),
        ('{"messages": "a"}', "a list is needed, not a string"),
        (chat(role="assitant"), 'message 1: role "assitant" is unknown; did you mean "assistant"?'),
        (chat(role=None), '"role" must be a string, not null'),
        (chat(role="user"), "there is no turn of the assistant"),
        (chat(content=None), '"content" is absent or null'),
        (chat(content=7), "not a number"),
        (chat(content=[{"type": "image_url", "image_url": "x"}]), 'part of type "image_url"'),
        (chat(weight=0.5), '"weight": 0.5; allowed: 0'),
        (chat(loss=0.7), '"loss": 0.7; allowed: 0'),
        (chat(loss_mask=[0, 1]), '"loss_mask": [0, 1]; allowed: 0'),
        (chat(mask=0), '"mask" is not supported; in some files 1 means'),
        (chat(weight="0"), '"weight": "0"; allowed: 0'),
        (
            json.dumps({"messages": [{**turns("a")[0], "train": True}, *turns("", "b")[1:]]}),
            '"train": true: a message',
        ),
        (chat(tool_calls=[{"function": {"name": "f"}}]), 'does not write "tool_calls"'),
        (chat(function_call={}), '"function_call" is not supported; write it as "tool_calls"'),
        (chat(train_detail=[]), '"train_detail" is not supported'),
        (entry(tools=[{"name": "f"}]), 'the chat template does not write "tools"'),
        (entry(tools="{"), '"tools" is not JSON'),
        (entry(images=["x"]), '"images" is not supported: only text'),
        (
            '{"prompt": "a", "chosen": "b", "rejected": "c"}',
            '"chosen" is not supported: preferences',
        ),
        ('{"prompt": "a", "completion": ["b"]}', "two strings or two lists of messages"),
        ('{"prompt": "a", "completion": "b", "label": false}', '"label" is not supported'),
        ('{"instruction": "a", "output": 7}', '"output" must be a string, not a number'),
        ('{"text": "a\\ud800b"}', '"text": \\ud800 is half a character'),
        ('{"text": "a", "\\udc00": 1}', "\\udc00 is half a character"),
        (chat(content="a\ud800"), '"content": \\ud800 is half a character'),
        ('{"text": "a", "id": [' + "7" * 5000 + "]}", '"id": an integer of 5000 digits'),
        ("-" + "7" * 5000, "an integer of 5001 digits"),
        ('{"text": "one", "text": "two"}', '"text": there more than once'),
        (chat().replace('"role"', '"content": "", "role"', 1), '"content": there more than once'),
        (entry(tools='[{"a": 1, "a": 2}]'), '"a": there more than once'),
        ('{"text": ' + "[" * 100000 + "]" * 100000 + "}", "nested too deeply"),
    ]
    with open(f"{folder}/broken.jsonl", "w", encoding="utf-8") as file:
        file.write('{"text": "a"}\n' + "".join(line + "\n" for line, _ in cases))
    for number, (line, _) in enumerate(cases):  # at most twenty are told of one run
        if number % 20 == 0:
            with open(f"{folder}/part.jsonl", "w", encoding="utf-8") as file:
                file.write(
                    '{"text": "a"}\n'
                    + "".join(line + "\n" for line, _ in cases[number : number + 20])
                )
            said = run(
                [
                    "--model",
                    f"{folder}/chatml",
                    "--out",
                    f"{folder}/no.bin",
                    f"{folder}/part.jsonl",
                ],
                2,
            )
            told = dict(re.findall(r"part\.jsonl:(\d+): (.*)", said))
        assert cases[number][1] in told[str(number % 20 + 2)], (
            line[:200],
            told[str(number % 20 + 2)],
        )
    model = ["--model", f"{folder}/chatml", "--out", f"{folder}/no.bin"]
    n = len(cases)
    assert f"{n} of {n + 1} entries are refused, so nothing is written" in run(
        [*model, f"{folder}/broken.jsonl"], 2
    )
    assert not os.path.exists(f"{folder}/no.bin") and not os.path.exists(f"{folder}/no.bin.part")
    said = run([*model, "--skip-refused", f"{folder}/broken.jsonl"])
    assert said.count("broken.jsonl:") == 20, said
    assert f"left out: {n} of {n + 1} entries are refused" in said, said
    assert len(read_documents(f"{folder}/no.bin")) == 1
    drops = unmarked(GENERATION).replace(
        "{% for message in messages %}",
        "{% for message in messages if message['role'] != 'system' %}",
    )
    make_model(f"{folder}/drops", drops)
    write_jsonl(
        f"{folder}/drops.jsonl",
        [{"messages": [{"role": "system", "content": "over"}, *turns("a", "b")]}],
    )
    said = run(
        ["--model", f"{folder}/drops", "--out", f"{folder}/no.bin", f"{folder}/drops.jsonl"], 2
    )
    assert 'message 0 (role "system"): the chat template does not write its content' in said, said
    assert "no tokenizer.json" in run(
        ["--model", folder, "--out", f"{folder}/no.bin", f"{folder}/chat.jsonl"], 2
    )


def check_model_and_out(folder):
    """Files of the model that are broken, and an --out that cannot be, are told before any work."""
    for name, content, said in (
        ("tokenizer.json", "{}", "tokenizer.json: not a tokenizer of Hugging Face: "),
        ("tokenizer_config.json", "{", "tokenizer_config.json: the file is not JSON: "),
        ("tokenizer_config.json", "[]", "tokenizer_config.json: must be an object, not a list"),
        ("tokenizer_config.json", '{"eos_token": 7}', '"eos_token" of tokenizer_config.json must'),
        ("tokenizer_config.json", '{"chat_template": [{}]}', '"chat_template" of tokenizer_config'),
    ):
        model = f"{folder}/broken-model"
        shutil.copytree(f"{folder}/chatml", model, dirs_exist_ok=True)
        with open(f"{model}/{name}", "w", encoding="utf-8") as file:
            file.write(content)
        told = run(["--model", model, "--out", f"{folder}/no.bin", f"{folder}/chat.jsonl"], 2)
        assert said in told and told.count("\n") == 1, told
    for out, said in (
        (f"{folder}/absent/o", f"there is no folder {folder}/absent; make it first"),
        (folder, "must be a file, not a folder"),
    ):
        told = run(["--model", f"{folder}/chatml", "--out", out, f"{folder}/broken.jsonl"], 2)
        assert told == f"make_documents.py: --out {out}: {said}\n", told


def check_controls(folder):
    """No text of a file, and no name of one, moves a terminal's cursor."""
    message = {**turns("a dog")[0], "role": "\x1b[2J\u202eb"}
    with open(f"{folder}/a\x1b[31m\n.jsonl", "w", encoding="utf-8") as file:
        file.write(json.dumps({"text": "a", "key\x1b[2J\x9b": 1}) + "\n")
        file.write(json.dumps({"messages": [message]}) + "\n")
    model = ["--model", f"{folder}/chatml", "--out", f"{folder}/no\x07.bin"]
    said = run([*model, "--skip-refused", file.name])
    assert r"a\x1b[31m\x0a.jsonl:2: message 0: role " + r'"\x1b[2J\u202eb" is unknown' in said, said
    assert r'"key\x1b[2J\u009b", which is not read' in said and r"no\x07.bin: 1 doc" in said, said
    said = run([*model, os.fsencode(f"{folder}/") + b"\xff\x1b"], 2)
    assert r"/\xff\x1b: cannot be read" in said, said


def check_guide():
    """The guide's tables are those of the script; --write in place of ZERO_TRAIN writes them."""
    spec = importlib.util.spec_from_file_location("make_documents", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    path = os.path.join(os.path.dirname(SCRIPT), "..", "..", "docs", "guide", "fine-tune.md")
    with open(path, encoding="utf-8") as file:
        guide = file.read()
    begin, end = (
        "<!-- formats: begin (tests/examples/test_make_documents.py --write) -->\n",
        "<!-- formats: end -->",
    )
    before, after = guide.split(begin)[0], guide.split(end)[1]
    expected = before + begin + script.tables() + end + after
    if sys.argv[1] == "--write":
        with open(path, "w", encoding="utf-8") as file:
            file.write(expected)
    assert guide == expected or sys.argv[1] == "--write", (
        "run tests/examples/test_make_documents.py --write"
    )


def main():
    if sys.argv[1] == "--write":
        return check_guide()
    dice = random.Random(7)
    with tempfile.TemporaryDirectory() as folder:
        for name, template in {"chatml": GENERATION, **SHAPES}.items():
            make_model(f"{folder}/{name}-marked", template)
            make_model(f"{folder}/{name}", unmarked(template))
        for name, template in (
            ("thinks", THINKS),
            ("forgets", FORGETS),
            ("late", LATE),
            ("marker", MARKER),
            ("spoken", SPOKEN),
            ("asks", ASKS),
            ("calls", CALLS),
            ("closed", CLOSED),
            ("parts", PARTS),
            ("thoughts", THOUGHTS),
        ):
            make_model(f"{folder}/{name}", template)
        check_conversations(folder, [make_conversation(dice) for _ in range(60)])
        check_texts(folder, [make_text(dice, 60) for _ in range(80)])
        check_packing(folder, sys.argv[1])
        check_ends(folder)
        check_forms(folder)
        check_calls(folder)
        check_layouts(folder)
        check_files(folder)
        check_refusals(folder)
        check_model_and_out(folder)
        check_controls(folder)
        check_guide()


if __name__ == "__main__":
    main()
